"""What an HTTP request asks for: the options of a call in its headers."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.types import Scope

from bstar_client.asgi.failures import FrontError

# Names are in lower case.
Headers = Mapping[str, str]

# They are for the front, for the way to it, or for a browser, and not for a handler.
_KEPT: Final = frozenset(
    (
        "accept", "accept-encoding", "authorization", "connection", "content-length", "cookie", "expect",
        "host", "idempotency-key", "keep-alive", "origin", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
_KEPT_PREFIXES: Final = ("bstar-", "proxy-", "sec-")
_WORDS: Final = {"true": True, "false": False}


class Options(msgspec.Struct, frozen=True, gc=False):
    """The options of one call. ``timeout`` is in seconds."""

    timeout: float
    idempotent: bool = True
    key: str | None = None
    headers: dict[str, str] | None = None


def fields_of(scope: Scope) -> dict[str, str]:
    """The headers of a request. Those that stand twice are joined (RFC 9110, 5.3)."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1"), value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def options_of(headers: Headers, timeout_s: float, timeout_max_s: float) -> Options:
    """The options in a request's headers. FrontError for a value that is none."""
    return Options(
        seconds_of(headers, "bstar-timeout", timeout_max_s) or timeout_s,
        flag_of(headers, "bstar-idempotent"),
        headers.get("idempotency-key"),
        handed_on(headers) or None,
    )


def handed_on(headers: Headers) -> dict[str, str]:
    """The headers that the handler gets."""
    return {
        name: text
        for name, text in headers.items()
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES)
    }


def flag_of(headers: Headers, name: str) -> bool:
    """A header that is true or false; true without it."""
    text = headers.get(name, "true").lower()
    if text not in _WORDS:
        raise FrontError("bad-request", f"{name} is true or false, not {text!r:.40}")
    return _WORDS[text]


def seconds_of(headers: Headers, name: str, most: float = math.inf) -> float | None:
    """A header with a number of seconds above 0; None without it."""
    text = headers.get(name)
    return None if text is None else to_seconds(text, name, most)


def to_seconds(text: str, name: str, most: float = math.inf, *, may_be_zero: bool = False) -> float:
    """A number of seconds in a text. FrontError if it is none, or beyond its bounds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    is_right = 0 < seconds <= most or (may_be_zero and seconds == 0)
    if not is_right or math.isinf(seconds):
        bound = "0 or more" if may_be_zero else "above 0"
        bound += "" if math.isinf(most) else f", {most:g} at most"
        raise FrontError("bad-request", f"{name} is a number of seconds, {bound}, not {text!r:.40}")
    return seconds
