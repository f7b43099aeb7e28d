"""The HTTP pages of an arbiter: its health, and its counters for Prometheus.

/healthz   200 while its loop answers
/readyz    the same: an arbiter that answers is ready
/metrics   questions, refusals, ballots, dropped messages; needs prometheus-client
"""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus

import msgspec

from bstar.errors import ConfigurationError
from bstar.net.http_endpoint import ANSWER_S_MAX, HttpEndpoint, HttpPlace, metrics_page, process_registry
from bstar.net.http_server import Page, said

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    text = "--http needs prometheus-client, which is missing: pip install '.[server]' in a clone of bstar"
    raise ConfigurationError(text) from error


class ArbiterFigures(msgspec.Struct, frozen=True):
    """An arbiter at one moment. ``drops`` counts messages by the reason why they were dropped."""

    questions: int
    refusals: int
    pairs: int
    drops: dict[str, int]


class ArbiterProbes(HttpEndpoint, Collector):
    """``figures(timeout_s)`` asks the arbiter's loop; TimeoutError if it does not answer."""

    def __init__(self, place: HttpPlace, figures: Callable[[float], ArbiterFigures]) -> None:
        self._ask = figures
        registry = process_registry()
        registry.register(self)
        pages = {"/healthz": self._health, "/readyz": self._health, "/metrics": metrics_page(registry)}
        super().__init__(place.bind, pages, loop="the arbiter's loop", setting="--http")

    def describe(self) -> Iterable[Metric]:
        """Nothing: the arbiter need not answer for that."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The arbiter at this moment."""
        now = self._ask(ANSWER_S_MAX)
        yield CounterMetricFamily("bstar_arbiter_questions", "Questions of nodes.", value=now.questions)
        text = "Claims that were refused: the ballot is another node's, or the arbiter is too new."
        yield CounterMetricFamily("bstar_arbiter_refusals", text, value=now.refusals)
        yield GaugeMetricFamily("bstar_arbiter_pairs", "Pairs whose ballot a node holds.", value=now.pairs)
        drops = CounterMetricFamily("bstar_arbiter_drops", "Dropped messages, by reason.", labels=("reason",))
        for reason, count in sorted(now.drops.items()):
            drops.add_metric((reason,), count)
        yield drops

    def _health(self, _accept: str) -> Page:
        return said(HTTPStatus.OK, "the arbiter's loop answers", pairs=self._ask(ANSWER_S_MAX).pairs)
