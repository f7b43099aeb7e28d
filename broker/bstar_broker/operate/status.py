"""Health, status and metrics of a node over HTTP, for probes, load balancers, people and Prometheus.

    /          a page that shows all this and follows it (``page``)
    /events    what the page shows, once a second, as server-sent events
    /healthz   200 while the node's event loop answers in time; the peer has no part in it
    /readyz    200 while the node can play its part in the pair: it serves, or would take over
    /active    200 on the node that serves and 503 on the other one, for load balancers
    /status    the whole state as JSON
    /metrics   for Prometheus

The pages ask for the node's state by a callable, in threads of the server (``http_server``). So a hanging
loop shows as 503, not as silence. The three probes are open to everybody: they tell the node's role, its
state and what it waits for. The other pages may need credentials (``http_access``).
"""

import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import msgspec
from prometheus_client.exposition import choose_encoder

from bstar.errors import BstarError
from bstar.net.http_endpoint import ANSWER_S_MAX, HttpEndpoint
from bstar.net.http_server import JSON, Page, Stream, said
from bstar.settings import Http
from bstar_broker.core.snapshot import HttpState, NodeState
from bstar_broker.operate import page
from bstar_broker.operate.metrics import make_registry

# Probes in quick succession share a snapshot, so they cannot keep the event loop busy.
SNAPSHOT_REUSED_S = 0.05
# How often a stream has an event. All streams share them.
EVENT_INTERVAL_S = 1.0

# Without credentials, always: a prober of another program may not be able to show any.
_OPEN_PATHS = ("/healthz", "/readyz", "/active")
_PATHS = (*_OPEN_PATHS, "/status", "/metrics", "/", "/events")


class StatusServer(HttpEndpoint):
    """A node's endpoint at ``http.bind``.

    ``snapshot(timeout_s)`` returns the node's state or raises TimeoutError. Raises ConfigurationError if the
    address cannot be listened on, or a file of ``http`` cannot be used.
    """

    def __init__(
        self, http: Http, snapshot: Callable[[float], NodeState], *, answer_timeout_s: float = ANSWER_S_MAX
    ) -> None:
        self._pages = pages = _Pages(snapshot, answer_timeout_s)
        super().__init__(http.bind or "", http, pages.page, _OPEN_PATHS, "http.bind")

    def state(self) -> HttpState:
        """What the status page and the metrics say of it."""
        access = self.access
        return HttpState(access.tls is not None, access.credentials, access.refusals, access.error)

    def close(self) -> None:
        """Stop listening and end open requests, in bounded time. Idempotent."""
        self._pages.is_closing.set()
        super().close()


class _Pages:
    """What each path answers."""

    def __init__(self, snapshot: Callable[[float], NodeState], timeout_s: float) -> None:
        self._ask = snapshot
        self._timeout_s = timeout_s
        self._last: tuple[float, NodeState] | None = None
        self._registry = make_registry(self._state)
        # The collector remembers which services have series of their own.
        self._collecting = threading.Lock()
        self.is_closing = threading.Event()
        # One stream makes the event of a second, the others take it.
        self._watching = threading.Lock()
        self._event: tuple[float, bytes] | None = None

    def page(self, path: str, accept: str) -> Page | Stream:
        """The answer to GET; an unknown path is 404."""
        if path == "/":
            return Page(HTTPStatus.OK, "text/html; charset=utf-8", page.DOCUMENT, page.HEADERS)
        if path == "/events":
            return Stream("text/event-stream; charset=utf-8", self._events())
        if path not in _PATHS:
            return said(HTTPStatus.NOT_FOUND, "unknown path", paths=_PATHS)
        return self._of_state(path, accept)

    def _of_state(self, path: str, accept: str) -> Page:
        try:
            if path == "/metrics":
                return self._metrics(accept)
            state = self._state()
        except (TimeoutError, BstarError) as error:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, self._why(error))
        if path == "/status":
            return Page(HTTPStatus.OK, JSON, msgspec.json.encode(state))
        pair = state.pair
        who: dict[str, object] = {"role": pair.role, "state": pair.state, "epoch": pair.epoch}
        if path == "/healthz":
            return said(HTTPStatus.OK, "the event loop answers", **who)
        if path == "/active":
            is_active = pair.is_active and state.broker.is_serving
            status = HTTPStatus.OK if is_active else HTTPStatus.SERVICE_UNAVAILABLE
            return said(status, "serves" if is_active else "does not serve", **who)
        ready = state.readiness
        status = HTTPStatus.OK if ready.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        peer = {"peer_state": pair.peer_state, "peer_age_s": pair.peer_age_s}
        return said(status, ready.why, reason=ready.reason, **who, **peer)

    def _state(self) -> NodeState:
        last = self._last
        if last is not None and time.monotonic() - last[0] < SNAPSHOT_REUSED_S:
            return last[1]
        state = self._ask(self._timeout_s)
        self._last = (time.monotonic(), state)
        return state

    def _metrics(self, accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        with self._collecting:
            return Page(HTTPStatus.OK, content_type, encode(self._registry))

    def _why(self, error: Exception) -> str:
        return str(error) or f"the event loop did not answer within {self._timeout_s:g} s"

    def _events(self) -> Iterator[bytes]:
        """An event at once, and then one a second."""
        while True:
            yield self._event_now()
            if self.is_closing.wait(EVENT_INTERVAL_S):
                return

    def _event_now(self) -> bytes:
        with self._watching:
            last = self._event
            # Half an interval: a stream that is a moment early must not show a moment twice.
            if last is not None and time.monotonic() - last[0] < EVENT_INTERVAL_S / 2:
                return last[1]
            try:
                octets = page.event(self._state())
            except (TimeoutError, BstarError) as error:
                octets = page.trouble(self._why(error))
            self._event = (time.monotonic(), octets)
            return octets
