"""Health, status and metrics of a node over HTTP, for probes, load balancers, people and Prometheus.

    /          a page that shows all this and follows it (``page``)
    /events    what the page shows, once a second, as server-sent events
    /healthz   200 while the node's event loop answers in time; the peer has no part in it
    /readyz    200 while the node can play its part in the pair: it serves, or would take over
    /active    200 on the node that serves and 503 on the other one, for load balancers
    /status    the whole state as JSON
    /metrics   for Prometheus

The pages ask for the node's state by a callable, in threads of the server (``http_server``). So a hanging
loop shows as 503, not as silence.
"""

import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import msgspec

from bstar.errors import BstarError
from bstar.net.http_endpoint import ANSWER_S_MAX, HttpEndpoint, metrics_page
from bstar.net.http_server import JSON, Page, Stream, said
from bstar.settings import Http
from bstar_broker.core.snapshot import NodeState
from bstar_broker.operate import page
from bstar_broker.operate.metrics import make_registry

# Probes in quick succession share a snapshot, so they cannot keep the event loop busy.
SNAPSHOT_REUSED_S = 0.05
# How often a stream has an event. All streams share them.
EVENT_INTERVAL_S = 1.0


class StatusServer(HttpEndpoint):
    """A node's endpoint at ``http.bind``.

    ``snapshot(timeout_s)`` returns the node's state or raises TimeoutError. Raises ConfigurationError if the
    address cannot be listened on.
    """

    def __init__(
        self, http: Http, snapshot: Callable[[float], NodeState], *, answer_timeout_s: float = ANSWER_S_MAX
    ) -> None:
        self._ask = snapshot
        self._timeout_s = answer_timeout_s
        self._last: tuple[float, NodeState] | None = None
        self._exposition = metrics_page(make_registry(self._state))
        # The collector remembers which services have series of their own.
        self._collecting = threading.Lock()
        self._is_closing = threading.Event()
        # One stream makes the event of a second, the others take it.
        self._watching = threading.Lock()
        self._event: tuple[float, bytes] | None = None
        pages: dict[str, Callable[[str], Page | Stream]] = {
            "/healthz": lambda _: said(HTTPStatus.OK, "the event loop answers", **_who(self._state())),
            "/readyz": lambda _: _readiness(self._state()),
            "/active": lambda _: _activity(self._state()),
            "/status": lambda _: Page(HTTPStatus.OK, JSON, msgspec.json.encode(self._state())),
            "/metrics": self._metrics,
            "/": lambda _: Page(HTTPStatus.OK, "text/html; charset=utf-8", page.DOCUMENT, page.HEADERS),
            "/events": lambda _: Stream("text/event-stream; charset=utf-8", self._events()),
        }
        super().__init__(
            http.bind or "",
            pages,
            loop="the event loop",
            answer_timeout_s=answer_timeout_s,
            setting="http.bind",
        )

    def close(self) -> None:
        """Stop listening and end open requests, in bounded time. Idempotent."""
        self._is_closing.set()
        super().close()

    def _state(self) -> NodeState:
        last = self._last
        if last is not None and time.monotonic() - last[0] < SNAPSHOT_REUSED_S:
            return last[1]
        state = self._ask(self._timeout_s)
        self._last = (time.monotonic(), state)
        return state

    def _metrics(self, accept: str) -> Page:
        with self._collecting:
            return self._exposition(accept)

    def _events(self) -> Iterator[bytes]:
        """An event at once, and then one a second."""
        while True:
            yield self._event_now()
            if self._is_closing.wait(EVENT_INTERVAL_S):
                return

    def _event_now(self) -> bytes:
        with self._watching:
            last = self._event
            # Half an interval: a stream that is a moment early must not show a moment twice.
            if last is not None and time.monotonic() - last[0] < EVENT_INTERVAL_S / 2:
                return last[1]
            try:
                data = page.event(self._state())
            except (TimeoutError, BstarError) as error:
                data = page.trouble(self.why(error))
            self._event = (time.monotonic(), data)
            return data


def _who(state: NodeState) -> dict[str, object]:
    return {"role": state.pair.role, "state": state.pair.state, "epoch": state.pair.epoch}


def _activity(state: NodeState) -> Page:
    is_active = state.pair.is_active and state.broker.is_serving
    status = HTTPStatus.OK if is_active else HTTPStatus.SERVICE_UNAVAILABLE
    return said(status, "serves" if is_active else "does not serve", **_who(state))


def _readiness(state: NodeState) -> Page:
    ready = state.readiness
    status = HTTPStatus.OK if ready.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    peer = {"peer_state": state.pair.peer_state, "peer_age_s": state.pair.peer_age_s}
    return said(status, ready.why, reason=ready.reason, **_who(state), **peer)
