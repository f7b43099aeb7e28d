"""The HTTP pages of a worker: its health, whether a node has registered it, and its metrics.

    /healthz   200 while the worker's loop answers and no handler is stuck
    /readyz    200 while a node has registered the worker and it takes requests
    /metrics   for Prometheus; needs prometheus-client

A loop that hangs shows as 503. Code that holds the interpreter's lock stops these pages, too: the probe then
gets no answer at all, which is the same to its asker.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus

from bstar.net.http_endpoint import ANSWER_S_MAX, HttpEndpoint, HttpPlace, metrics_page, process_registry
from bstar.net.http_server import Page, said
from bstar_client.core.figures import WorkerFigures

_log = logging.getLogger("bstar_client")

Exposition = Callable[[str], Page]
"""Makes the page of metrics from the value of the header Accept."""


class WorkerProbes(HttpEndpoint):
    """``answers(timeout_s)`` is True if the worker's loop makes a turn in that time."""

    def __init__(
        self,
        place: HttpPlace,
        figures: Callable[[], WorkerFigures],
        answers: Callable[[float], bool],
        exposition: Exposition,
    ) -> None:
        self._figures = figures
        self._answers = answers
        pages = {"/healthz": self._health, "/readyz": self._readiness, "/metrics": exposition}
        super().__init__(place.bind, pages, loop="the worker's loop")
        _log.info("health and metrics of the worker: %s", self.url)

    def _living(self) -> WorkerFigures:
        if not self._answers(ANSWER_S_MAX):
            raise TimeoutError
        return self._figures()

    def _readiness(self, _accept: str) -> Page:
        figures = self._living()
        nodes = [node for node, is_registered in figures.registered.items() if is_registered]
        if figures.is_stopping:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "the worker is stopping", nodes=nodes)
        if not nodes:
            why = f"no node has registered this worker of {figures.service}"
            return said(HTTPStatus.SERVICE_UNAVAILABLE, why, nodes=nodes)
        return said(HTTPStatus.OK, "registered", nodes=nodes)

    def _health(self, _accept: str) -> Page:
        figures = self._living()
        counts = {"running": figures.running, "stuck": figures.stuck}
        if figures.stuck:
            why = f"{figures.stuck} handlers ran past handler_timeout_s and have not returned"
            return said(HTTPStatus.SERVICE_UNAVAILABLE, why, **counts)
        return said(HTTPStatus.OK, "the worker's loop answers", **counts)


def exposition_of(subject: object) -> Exposition:
    """The page of metrics of one worker. ConfigurationError's page if prometheus-client is not installed."""
    try:
        from bstar_client.metrics import register  # noqa: PLC0415
    except ModuleNotFoundError:
        why = "metrics need prometheus-client, which is missing: pip install '.[server]' in a clone of bstar"
        return lambda accept: said(HTTPStatus.NOT_IMPLEMENTED, why)
    registry = process_registry()
    register(subject, registry=registry)  # type: ignore[arg-type]  # a worker
    return metrics_page(registry)
