"""Who an HTTP caller is, and what it may ask: bearer tokens, their principals, and the pages of browsers.

A token belongs to a principal of the nodes' list, which holds its SHA-256 alone. The principal's ``calls``
say what it may ask for, as they do for keys. Without a list everybody may call, as at a node without keys. A
web page may call only if it is named: any site's page reaches the loopback of its reader.
"""

from collections.abc import Callable, Collection
from typing import Final

from bstar.base.printable import printable
from bstar.security.principals import Principal
from bstar.wire import durable, mmi
from bstar_client.arguments.bodies import to_name
from bstar_client.asgi.asked import Headers
from bstar_client.asgi.failures import FrontError

FindPrincipal = Callable[[str], Principal | None]
"""The principal of a token, None if no entry has it."""

EVERY_ORIGIN: Final = "*"
# A browser's WebSocket cannot have a header of its own: it names the token as a protocol.
_PROTOCOL_PREFIX: Final = "bearer."
# An HTTP server puts it for the bytes of a path that are not UTF-8: such a name would be another one.
_UNDECODED: Final = "\N{REPLACEMENT CHARACTER}"
# The brokers' own services. What callers need of them has a path of its own.
_RESERVED: Final = (mmi.PREFIX, durable.PREFIX, b"titanic.")


class Access:
    """Asks the list. ``find`` None: there is no list. ``origins``: the web pages that may call."""

    def __init__(self, find: FindPrincipal | None, origins: Collection[str]) -> None:
        self._find = find
        self._origins = frozenset(origins)

    @property
    def is_open(self) -> bool:
        """True without a list."""
        return self._find is None

    def principal(self, headers: Headers) -> Principal | None:
        """Who asks; None without a list. FrontError if it may not."""
        origin = headers.get("origin")
        if origin is not None and EVERY_ORIGIN not in self._origins and origin not in self._origins:
            text = f"pages of {printable(origin)} may not call: fronts.http.origins (--origins) lacks them"
            raise FrontError("not-allowed", text)
        if self._find is None:
            return None
        token = token_of(headers)
        principal = None if token is None else self._find(token)
        if principal is None:
            text = "this token is not in the list of principals" if token else "a bearer token is missing"
            raise FrontError("unauthorized", text, headers={"WWW-Authenticate": "Bearer"})
        return principal

    def check_call(self, principal: Principal | None, service: str) -> None:
        """FrontError unless the principal may call the service; also BstarError for what is no name."""
        name = to_name(service)
        if _UNDECODED in service:
            raise FrontError(
                "bad-request", f'"{printable(service)}" is not a service\'s name: it is not UTF-8'
            )
        if name.startswith(_RESERVED):
            raise FrontError("not-allowed", f'"{printable(service)}" is a service of the brokers themselves')
        if principal is not None and not principal.calls.match(name):
            text = f'{principal.name} may not call service "{printable(service)}": no pattern of its calls'
            raise FrontError("not-allowed", f"{text} matches")


def token_of(headers: Headers) -> str | None:
    """The bearer token of a request (RFC 6750), or of a WebSocket's protocols."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(_PROTOCOL_PREFIX):
            return protocol.strip().removeprefix(_PROTOCOL_PREFIX)
    return None
