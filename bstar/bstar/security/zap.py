"""Answers ZAP requests (27/ZAP): is this the key of somebody who may connect here?

Each socket has a domain, and each domain has a rule. A key that the list does not have, or whose owner the
rule keeps out, is refused with 300: libzmq then ends the connection and the other side tries again.
After 400 libzmq would never try again, and a key that is added to the list later would not help. No socket is
touched here.

    request   [version] [request id] [domain] [address] [routing id] [mechanism] [credentials…]
    reply     [version] [request id] [status] [text] [user id] [metadata]
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from bstar.base.printable import address_text
from bstar.security.principals import Principal, Principals

VERSION: Final = b"1.0"
CURVE: Final = b"CURVE"
KEY_BYTES: Final = 32

# The domains of a node's main sockets, and of the arbiter's. Each door of a front has one of its own.
CLIENTS: Final = b"bstar.clients"
PEERS: Final = b"bstar.peers"

Rule = Callable[[Principal], bool]
"""True if this principal may enter."""


def uses_services(principal: Principal) -> bool:
    """True for operators, workers and clients."""
    return principal.is_operator or bool(principal.offers) or bool(principal.calls)


def uses_node(principal: Principal) -> bool:
    """True for them, and for who gives orders."""
    return uses_services(principal) or principal.may_order


def is_peer(principal: Principal) -> bool:
    """True for the nodes of the pair."""
    return principal.is_peer


_REQUEST_FRAMES_MIN = 6
_SHOWN_BYTES_MAX = 64


class Doorkeeper:
    """Decides who may connect. ``refusals`` counts by reason; ``on_refused(reason, who, address)`` reports.

    ``encode`` turns the 32 bytes of a key into Z85. ``rules`` say who may enter each domain; no peer enters
    one without a rule. ``principals`` may be replaced at any time, and so may
    ``why_not(domain, principal)``, which says why a listed principal may open no more connections ("" if it
    may), and ``on_admitted(domain, address)``, which returns the connection's metadata.
    """

    def __init__(
        self,
        principals: Principals,
        encode: Callable[[bytes], str],
        on_refused: Callable[[str, str, str], None] = lambda reason, who, address: None,
    ) -> None:
        self.principals = principals
        self.rules: dict[bytes, Rule] = {CLIENTS: uses_node, PEERS: is_peer}
        self.why_not: Callable[[bytes, Principal], str] = lambda domain, principal: ""
        self.on_admitted: Callable[[bytes, str], bytes] = lambda domain, address: b""
        self.admitted: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._encode = encode
        self._on_refused = on_refused

    def answer(self, frames: list[bytes]) -> list[bytes] | None:
        """The reply to one request; None to an invalid one (libzmq then gives up the handshake)."""
        if len(frames) < _REQUEST_FRAMES_MIN or frames[0] != VERSION:
            self._refuse("malformed", "", b"")
            return None
        request_id, domain, address, mechanism = frames[1], frames[2], frames[3], frames[5]
        credentials = frames[6:]
        if mechanism != CURVE or len(credentials) != 1 or len(credentials[0]) != KEY_BYTES:
            return self._refuse("no-curve", "", address, request_id)
        key = self._encode(credentials[0])
        found = self.principals.of_key(key)
        if found is None:
            return self._refuse("unknown-key", key, address, request_id)
        user_id, principal = found
        if not self._may_enter(principal, domain):
            return self._refuse("wrong-role", user_id, address, request_id)
        reason = self.why_not(domain, principal)
        if reason:
            return self._refuse(reason, user_id, address, request_id)
        self.admitted[principal.name] += 1
        metadata = self.on_admitted(domain, _text(address))
        return [VERSION, request_id, b"200", b"OK", user_id.encode(), metadata]

    def _may_enter(self, principal: Principal, domain: bytes) -> bool:
        rule = self.rules.get(domain)
        return rule is not None and rule(principal)

    def _refuse(self, reason: str, who: str, address: bytes, request_id: bytes = b"") -> list[bytes]:
        self.refusals[reason] += 1
        self._on_refused(reason, who, _text(address))
        return [VERSION, request_id, b"300", reason.encode(), b"", b""]


def _text(address: bytes) -> str:
    return address_text(address[:_SHOWN_BYTES_MAX].decode("ascii", "replace"))
