"""A client's settings, as one frozen object, and the socket options that it may change."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import zmq

from bstar.errors import ConfigurationError
from bstar.fleet import Fleet
from bstar.security import Security

if TYPE_CHECKING:  # the journal's writer is loaded by programs that keep one
    from bstar_client.journal import JournalPlace

Dialect = Literal["native", "mdp01", "mdp02"]
WorkerProtocol = Literal["native", "mdp01", "mdp02", "ppp", "spp"]

# Headers and error texts fit into this.
_MESSAGE_BYTES_MIN = 65_536


class LinkSettings(msgspec.Struct, frozen=True):
    """Socket options that a program may want to change.

    Times in milliseconds. ``handshake_ms``, ``connect_timeout_ms``: when the client gives an attempt to
    connect up. ``reconnect_min_ms`` to ``reconnect_max_ms``: the pause before the next one, doubled each
    time. ``heartbeat_ms``: how often it probes a connection that carries nothing, ``heartbeat_timeout_ms``:
    when it closes a silent one. ``high_water_mark`` counts messages in each direction. Keep
    ``outstanding_max`` at or below it, or the node may drop replies. ``message_bytes_max``: a longer message
    ends the connection. ``security`` is the one that ``HAClient`` or ``Worker`` got.
    """

    handshake_ms: int = 1_000
    connect_timeout_ms: int = 1_000
    reconnect_min_ms: int = 20
    reconnect_max_ms: int = 250
    heartbeat_ms: int = 1_000
    heartbeat_timeout_ms: int = 5_000
    high_water_mark: int = 100_000
    message_bytes_max: int = 64 * 1024 * 1024
    security: Security | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[:-1]:
            value = getattr(self, name)
            if type(value) is not int:
                raise TypeError(f"{name} of LinkSettings is a whole number, not {type(value).__name__}")
            least = _MESSAGE_BYTES_MIN if name == "message_bytes_max" else 0
            if value < least:
                raise ConfigurationError(f"{name} of LinkSettings is {least} or more, not {value}")


def secured(link: LinkSettings, security: Security | None) -> LinkSettings:
    """The same with CURVE. TypeError if ``security`` is of another type."""
    if security is None:
        return link
    if not isinstance(security, Security):
        raise TypeError(f"security is a bstar.security.Security, not {type(security).__name__}")
    return msgspec.structs.replace(link, security=security)


class Net(Protocol):
    """Where messages travel, and what time it is there: sockets (``links.SOCKETS``), or a test's memory."""

    # In seconds, as ``time.monotonic``.
    clock: Callable[[], float]
    # Makes what ``links.Links`` is, of the same arguments.
    new_links: Callable[..., Any]


class ClientSettings(msgspec.Struct, frozen=True):
    """The arguments of a client, checked, but for those of its sessions.

    ``is_router``: its sockets are ROUTERs (10/FLP), not DEALERs.
    """

    net: Net

    fleet: Fleet
    is_native: bool
    timeout: float | None
    outstanding_max: int
    link: LinkSettings
    context: "zmq.Context[zmq.Socket[bytes]] | None"
    journal: "JournalPlace | None"
    is_router: bool = False
