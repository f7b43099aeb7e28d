"""CURVE on sockets: the side that listens, with a ZAP handler in the reactor, and the side that connects.

libzmq asks the ZAP handler of its context about each connection before the first message passes (27/ZAP). The
handler runs in the reactor's thread, one answer for each request, and waits for nothing. A handshake without
an answer ends after the socket's ``handshake_ivl``.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import zmq

from bstar.errors import ConfigurationError
from bstar.net.agenda import Timer
from bstar.net.listener import Listener
from bstar.net.origins import Origins
from bstar.net.reactor import Reactor
from bstar.net.zap_socket import ZapSocket
from bstar.security import Principal, Principals, Security, read_key
from bstar.security.connector import FAILURES, GIVEN_UP_PAUSE_S, Connector
from bstar.security.files import LOOK_INTERVAL_S, explained
from bstar.security.zap import CLIENTS, Rule, is_peer

if TYPE_CHECKING:
    from bstar.settings.schema import SecuritySettings

_log = logging.getLogger("bstar.security")


class NodeSecurity:
    """The key of one listening process and its principals, as its configuration names them.

    ``to_peer`` and ``to_arbiter`` are what its own connections use; their servers follow the principals file.
    Raises ConfigurationError if a file cannot be used, or if the own key is not in the list as a peer.
    """

    def __init__(self, key_path: str, principals_path: str, role: str = "peer") -> None:
        # It reads YAML, which a server of one's own without keys does without.
        from bstar.settings.principals import watch_principals  # noqa: PLC0415

        with explained("security.key"):
            self.key = read_key(key_path)
        with explained("security.principals"):
            self._file = watch_principals(principals_path)
        self._path = principals_path
        self._on_change: list[Callable[[bool], object]] = []
        # What this process connects with; their servers follow the list.
        self._trusts: dict[str, Security] = {}
        self._role = role
        self._key_path = key_path
        if self._lacks:
            raise ConfigurationError(self._lacks)

    @classmethod
    def of(cls, settings: "SecuritySettings") -> "NodeSecurity | None":
        """What a node's configuration says; None without a key."""
        if settings.key is None or settings.principals is None:
            return None
        return cls(settings.key, settings.principals)

    @property
    def principals(self) -> Principals:
        """The list as it was read last."""
        return self._file.value

    @property
    def error(self) -> str:
        """Why a node could not start with the principals file as it is now; "" if it could."""
        return self._file.error or self._lacks

    @property
    def _lacks(self) -> str:
        """Who is missing in the list as it was read last, or ""."""
        own = self.principals.of_key(self.key.public.decode())
        if own is None or self._role not in own[1].roles:
            return (
                f"security.principals: {self._path} does not list this node's own key, {self._key_path}, "
                f"with {self._role}: true: add it there, or name another key"
            )
        return next((self._lacks_other(role) for role in self._trusts if not self._keys_of(role)), "")

    def _lacks_other(self, role: str) -> str:
        return (
            f"security.principals: {self._path} lists no {role} beside this process: add an entry with its "
            f"keys and {role}: true"
        )

    def find(self, user_id: str) -> Principal | None:
        """The principal of a connection's user id; None if its key is not listed now."""
        return self._file.value.of_user(user_id)

    def to_peer(self) -> Security:
        """For the connection to the peer: any other key of a peer is the peer's."""
        return self._trust("peer")

    def to_arbiter(self) -> Security:
        """For the connection to the arbiter."""
        return self._trust("arbiter")

    def _keys_of(self, role: str) -> tuple[bytes, ...]:
        listed = (key.encode() for entry in self.principals.all if role in entry.roles for key in entry.keys)
        return tuple(key for key in listed if key != self.key.public)

    def _trust(self, role: str) -> Security:
        if not self._keys_of(role):
            raise ConfigurationError(self._lacks_other(role))
        # One for all links to that role: the link of the pair and that of the store follow the same list.
        return self._trusts.setdefault(role, Security(self.key, servers=self._keys_of(role)))

    def on_change(self, handler: Callable[[bool], object]) -> None:
        """Call ``handler(is_any_gone)`` when the list has changed: True if a key is no peer's any more."""
        self._on_change.append(handler)

    def refresh(self) -> bool:
        """Read the principals file again if it has changed; True if there is a new list."""
        before = self.principals
        is_new = self._file.refresh()
        if is_new:
            _log.info("the principals file was read again: %d principals", len(self.principals.all))
            for role, trust in self._trusts.items():
                trust.servers = self._keys_of(role)
            if self._lacks:
                _log.warning(
                    "the principals file holds, but this process cannot start with it: %s", self._lacks
                )
            is_any_gone = not before.keys_of(is_peer) <= self.principals.keys_of(is_peer)
            for handler in self._on_change:
                handler(is_any_gone)
        return is_new


class Gate:
    """The ZAP handler of a context. One for each context; everything from the reactor's thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", reactor: Reactor, security: NodeSecurity
    ) -> None:
        self._reactor = reactor
        self.security = security
        # Whose connection brought the message that was read last, and which it is.
        self.user_id = ""
        self.origins = Origins()
        self._zap = ZapSocket(context, reactor, security.principals)
        self._zap.metadata = self.origins.number_next
        self._why_not: dict[bytes, Callable[[Principal, float], str]] = {}
        self.doorkeeper = self._zap.doorkeeper
        self.doorkeeper.why_not = self._refuse
        self._timer = reactor.add_timer(LOOK_INTERVAL_S, self._refresh)

    def close(self) -> None:
        """Answer no more; new connections fail. Before the reactor is closed."""
        self._timer.cancel()
        self._zap.close()

    def guard(
        self,
        listener: Listener,
        domain: bytes,
        may_enter: Rule | None = None,
        *,
        on_ended: Callable[[int], object] = lambda number: None,
        why_not: Callable[[Principal, float], str] = lambda principal, now: "",
    ) -> None:
        """The connections of this listener are of ``domain``; ``origins`` follows them.

        ``may_enter`` is the rule of the domain, if it is a new one. ``why_not`` says why a principal may open
        no more connections; ``on_ended``: see ``Origins``.
        """
        self.origins.follow(domain, listener, on_ended)
        self._zap.guard(listener, domain, may_enter or self.doorkeeper.rules[domain])
        self._why_not[domain] = why_not

    def look(self, frame: zmq.Frame, domain: bytes = CLIENTS) -> None:
        """Note the connection that brought this frame, for ``user_id`` and ``origins``."""
        self.user_id = cast("str", frame.get("User-Id"))
        self.origins.frame = frame
        self.origins.domain = domain

    def _refuse(self, domain: bytes, principal: Principal) -> str:
        why_not = self._why_not.get(domain)
        return "" if why_not is None else why_not(principal, self._reactor.now())

    def _refresh(self, now: float) -> None:
        if self.security.refresh():
            self.doorkeeper.principals = self.security.principals
            self._zap.forget_reports()


class LinkConnector(Connector):
    """A ``Connector`` that tries again by itself, from the reactor, when libzmq has given up.

    ``fault`` says why the handshakes fail; "" if none has failed since the last one that succeeded. Each
    fault is logged once until then.
    """

    def __init__(
        self, socket: "zmq.Socket[bytes]", endpoint: str, security: Security | None, reactor: Reactor
    ) -> None:
        super().__init__(socket, endpoint, security)
        self._reactor = reactor
        self._retry: Timer | None = None
        self.fault = ""
        self._reported: set[str] = set()

    def follow(self, event: int, now: float) -> None:
        """Take note of an event of the socket's monitor."""
        is_given_up = self.note(event)
        if not self.failures:
            self.fault = ""
            self._reported.clear()
        elif event & FAILURES:
            self._explain(event)
        if is_given_up:
            self.close()
            self._retry = self._reactor.call_at(now + GIVEN_UP_PAUSE_S, lambda _: self.connect_again())

    def _explain(self, event: int) -> None:
        match event:
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                who = "this side" if self._security is None else f"the key {self._security.key.name}"
                self.fault = f"{self._endpoint} refuses {who}: list it there with peer: true"
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.fault = f"{self._endpoint} has keys and this side has none, or the other way round"
            case _ if self.failures > (1 if self._security is None else len(self._security.servers)):
                # One alone may be of a process that ends, or of the key that a rotation has replaced.
                self.fault = (
                    f"{self._endpoint} is frozen or busy, or the two sides have other keys than they expect "
                    "of each other"
                )
        if self.fault and self.fault not in self._reported:
            self._reported.add(self.fault)
            _log.warning("the handshake fails: %s", self.fault)

    def connect(self) -> None:
        """As a ``Connector``. Whatever asks for it, the next attempt waits no more: it would end this one."""
        self.close()
        super().connect()

    def close(self) -> None:
        """Try no more. Before the socket closes."""
        if self._retry is not None:
            self._retry.cancel()
