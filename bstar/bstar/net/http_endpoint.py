"""An HTTP endpoint of a process: where it listens, who may read its pages, and the thread that serves them.

A node, an arbiter and a worker each have one if they are told an address. What its pages say is theirs.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from bstar.base.closing import Closing
from bstar.base.endpoints import parse_http_bind
from bstar.errors import ConfigurationError
from bstar.net.http_access import HttpAccess, HttpFiles
from bstar.net.http_server import CLOSE_S_MAX, BoundedServer, Page, Stream

ANSWER_S_MAX = 1.0
"""A loop that does not answer a probe within this time hangs."""


class HttpPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker or an arbiter serves its health and metrics: ``bind`` is ``ADDRESS:PORT``.

    ``certificate`` and ``key``, ``tokens``: paths of files as in ``http.`` of a node's configuration. An
    address that is not loopback needs both, or ``allow_remote``.
    """

    bind: str
    certificate: str | None = None
    key: str | None = None
    tokens: str | None = None
    allow_remote: bool = False

    @classmethod
    def of(cls, told: "str | HttpPlace") -> Self:
        """The place that ``told`` names, checked. ConfigurationError if it cannot work."""
        place = cls(bind=told) if isinstance(told, str) else cls(**msgspec.structs.asdict(told))
        try:
            endpoint = parse_http_bind(place.bind)
        except ValueError as error:
            raise ConfigurationError(f"http: {error}") from error
        if (place.certificate is None) != (place.key is None):
            raise ConfigurationError("http: TLS needs a certificate and its private key: name both files")
        is_guarded = place.certificate is not None and place.tokens is not None
        if not (endpoint.is_loopback or is_guarded or place.allow_remote):
            raise ConfigurationError(
                f"http: others can reach {place.bind} and read its pages: name certificate, key and tokens, "
                "bind 127.0.0.1, or say allow_remote if the network itself keeps strangers out"
            )
        return place


class HttpEndpoint(Closing):
    """Serves from the moment it is made until ``close``; ``answer(path, accept)`` makes each page.

    ``bind`` is ``ADDRESS:PORT``; port 0 takes any free one, ``url`` tells which. ``open_paths`` need no
    credentials. Raises ConfigurationError if the address cannot be listened on, or a file cannot be used;
    ``setting`` is what it calls the address.
    """

    def __init__(
        self,
        bind: str,
        files: HttpFiles,
        answer: Callable[[str, str], Page | Stream],
        open_paths: Iterable[str],
        setting: str = "http",
    ) -> None:
        self.access = access = HttpAccess(files)
        self._scheme = "http" if access.tls is None else "https"
        try:
            endpoint = parse_http_bind(bind)
            self._server = BoundedServer(endpoint.host, endpoint.port, answer, access, frozenset(open_paths))
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

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where the server is, without a path."""
        host = self._server.server_name
        return (
            f"{self._scheme}://[{host}]:{self.port}"
            if ":" in host
            else f"{self._scheme}://{host}:{self.port}"
        )

    def close(self) -> None:
        """Stop listening and end open requests, in bounded time. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.shutdown()
        self._thread.join(CLOSE_S_MAX)
        self._server.server_close()
