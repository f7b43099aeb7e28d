"""What a server of the HTTP front is told: by a command or a node's configuration; where it listens."""

import socket
import ssl
from typing import Final

import msgspec

from bstar.base.endpoints import parse_endpoint, parse_http_bind
from bstar.errors import ConfigurationError
from bstar.security import Security, read_key
from bstar.security.files import explained
from bstar.settings import Settings
from bstar.settings.principals import load_principals
from bstar_client.asgi import FrontSettings

# Connections that the kernel keeps until the server takes them.
_BACKLOG: Final = 2_048
_DEFAULT_TIMEOUT_S: Final = 30.0


class HttpPlan(msgspec.Struct, frozen=True):
    """What one server is told. ``tls`` are the paths of its certificate and of that one's key."""

    front: FrontSettings
    connections_max: int
    principals: str | None = None
    tls: tuple[str, str] | None = None


class ChildPlan(msgspec.Struct, frozen=True):
    """What the process of a node's front is told. ``descriptor``: its listening socket."""

    plan: HttpPlan
    endpoints: tuple[str, ...]
    key: str | None
    servers: tuple[str, ...]
    log_level: str
    log_format: str
    descriptor: int

    def security(self) -> Security | None:
        """What it connects with. Raises ConfigurationError."""
        return None if self.key is None else Security(self.key, servers=self.servers)


def front_settings(
    *,
    timeout_max_s: float,
    body_bytes_max: int,
    slow_s: float,
    origins: str,
    local: str | None = None,
    peer: str | None = None,
) -> FrontSettings:
    """What the application is told. ``origins``: the pages that may call, separated by commas. ``local`` and
    ``peer`` are for a node's own front.
    """
    return FrontSettings(
        timeout_s=min(_DEFAULT_TIMEOUT_S, timeout_max_s),
        timeout_max_s=timeout_max_s,
        body_bytes_max=body_bytes_max,
        slow_s=slow_s,
        origins=tuple(part.strip() for part in origins.split(",") if part.strip()),
        local=local,
        peer=peer,
    )


def node_plan(settings: Settings, descriptor: int) -> ChildPlan:
    """The plan of a node's front. ConfigurationError if its files cannot be used."""
    front, node = settings.fronts.http, settings.endpoints
    assert front.peer_clients is not None
    local = reachable(node.clients)
    pair = (local, front.peer_clients)
    plan = HttpPlan(
        front_settings(
            timeout_max_s=front.timeout_max_s,
            body_bytes_max=front.body_bytes_max,
            slow_s=front.slow_s,
            origins=front.origins,
            local=local,
            peer=front.peer,
        ),
        connections_max=front.connections_max,
        principals=settings.security.principals,
        tls=None if front.tls_cert is None or front.tls_key is None else (front.tls_cert, front.tls_key),
    )
    check_tls(plan.tls, "fronts.http.tls_cert, fronts.http.tls_key")
    return ChildPlan(
        plan=plan,
        # The primary first: a request without an active node is a vote, which goes to it first.
        endpoints=pair if settings.role == "primary" else pair[::-1],
        key=front.key,
        servers=_servers(settings),
        log_level=settings.log.level,
        log_format=settings.log.format,
        descriptor=descriptor,
    )


def _servers(settings: Settings) -> tuple[str, ...]:
    """The public keys of both nodes. ConfigurationError unless the list lets the front call."""
    key, principals = settings.fronts.http.key, settings.security.principals
    if key is None or principals is None:
        return ()
    with explained("fronts.http.key"):
        own = read_key(key)
    listed = load_principals(principals)
    found = listed.of_key(own.public.decode())
    if found is None or not found[1].calls:
        raise ConfigurationError(
            f"fronts.http.key: {principals} has no entry with calls for this key: bstar keys new {own.name} "
            "--calls '*', and give both nodes the list"
        )
    return tuple(sorted(listed.keys_of(lambda principal: principal.is_peer)))


def reachable(endpoint: str) -> str:
    """Where this machine connects to an endpoint that it binds."""
    place = parse_endpoint(endpoint, bind=True)
    if not place.is_wildcard:
        return endpoint
    return f"tcp://{'[::1]' if ':' in place.host else '127.0.0.1'}:{place.port}"


def bind(text: str, what: str) -> socket.socket:
    """A listening socket at ADDRESS:PORT. ConfigurationError, which names ``what``, if it cannot be had."""
    try:
        place = parse_http_bind(text)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    host = "" if place.host == "*" else place.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, place.port), family=family, backlog=_BACKLOG)
        # With its protocol named. Without it asyncio leaves Nagle's algorithm on: a response of two segments
        # then waits up to 40 ms for the first one's acknowledgement.
        return socket.socket(fileno=made.detach())
    except OSError as error:
        raise ConfigurationError(
            f"{what}: cannot bind {text}: {error.strerror}. Does another program listen there, or is the "
            "address not one of this machine?"
        ) from error


def check_tls(tls: tuple[str, str] | None, what: str) -> None:
    """ConfigurationError unless the certificate and its key can be used."""
    if tls is not None:

        def refuse_passphrase() -> str:
            raise ConfigurationError(f"{what}: {tls[1]} is encrypted: give the key without a passphrase")

        try:
            # Without a function OpenSSL asks at the terminal, and waits.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                *tls, password=refuse_passphrase
            )
        except OSError as error:  # an SSLError is one
            raise ConfigurationError(f"{what}: {' and '.join(tls)} cannot be used: {error}") from error


def url_of(listener: socket.socket, plan: HttpPlan) -> str:
    """Where it listens, for the log."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'http' if plan.tls is None else 'https'}://{host}:{port}"
