"""The HTTP endpoint of a process for probes and metrics: where it listens, and the thread that serves it.

A node, an arbiter and a worker each have one if their settings name an address. What its pages say is theirs.
"""

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import msgspec

from bstar.base.closing import Closing
from bstar.base.endpoints import parse_http_bind
from bstar.errors import BstarError, ConfigurationError
from bstar.net.http_server import CLOSE_S_MAX, BoundedServer, Page, Stream, said

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

ANSWER_S_MAX = 1.0
"""A loop that does not answer a probe within this time hangs."""


class HttpPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker or an arbiter serves its health and metrics: ``bind`` is ``ADDRESS:PORT``.

    An address that is not loopback needs ``allow_remote``.
    """

    bind: str
    allow_remote: bool = False

    @classmethod
    def of(cls, given: "str | HttpPlace") -> Self:
        """The place that ``given`` names, checked. ConfigurationError if it cannot work."""
        place = cls(bind=given) if isinstance(given, str) else cls(**msgspec.structs.asdict(given))
        try:
            endpoint = parse_http_bind(place.bind)
        except ValueError as error:
            raise ConfigurationError(f"http: {error}") from error
        if not (endpoint.is_loopback or place.allow_remote):
            raise ConfigurationError(
                f"http: others can reach {place.bind} and read its pages: bind 127.0.0.1 and put a proxy "
                "with TLS before it, or say allow_remote if the network itself keeps strangers out"
            )
        return place


def process_registry() -> "CollectorRegistry":
    """A registry with the metrics of this process."""
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector  # noqa: PLC0415 - as below

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def metrics_page(registry: "CollectorRegistry") -> Callable[[str], Page]:
    """The page ``/metrics`` of this registry; it takes the header Accept."""
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - applications need not have it

    def page(accept: str) -> Page:
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return Page(HTTPStatus.OK, content_type, encode(registry))

    return page


class HttpEndpoint(Closing):
    """Serves from the moment it is made until ``close``.

    ``bind`` is ``ADDRESS:PORT``; port 0 takes any free one, ``url`` has it. ``pages`` has a function for each
    path, which takes the header Accept. If it raises TimeoutError, ``loop`` hangs, and the answer is 503.
    Raises ConfigurationError if the address cannot be listened on; ``setting`` is what it calls the address.
    """

    def __init__(
        self,
        bind: str,
        pages: Mapping[str, Callable[[str], Page | Stream]],
        *,
        loop: str,
        answer_timeout_s: float = ANSWER_S_MAX,
        setting: str = "http",
    ) -> None:
        self._pages = pages
        self._hangs = f"{loop} did not answer within {answer_timeout_s:g} s"
        try:
            endpoint = parse_http_bind(bind)
            self._server = BoundedServer(endpoint.host, endpoint.port, self._answer)
        except ValueError as error:
            raise ConfigurationError(f"{setting}: {error}") from error
        except OSError as error:
            raise ConfigurationError(
                f"{setting}: cannot listen on {bind}: {error.strerror or error}; choose another address, "
                "port 0 for any free one, or none"
            ) from error
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="bstar-status", daemon=True
        )
        self._thread.start()

    def _answer(self, path: str, accept: str) -> Page | Stream:
        make = self._pages.get(path)
        if make is None:
            return said(HTTPStatus.NOT_FOUND, "unknown path", paths=tuple(self._pages))
        try:
            return make(accept)
        except (TimeoutError, BstarError) as error:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, self.why(error))

    def why(self, error: Exception) -> str:
        """The text for a state that could not be had."""
        return str(error) or self._hangs

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where the server is, without a path."""
        host = self._server.server_name
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stop listening and end open requests, in bounded time. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.shutdown()
        self._thread.join(CLOSE_S_MAX)
        self._server.server_close()
