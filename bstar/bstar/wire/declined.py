"""How a worker says that its handler declined a request (BSN-W-20).

It is an ERROR HANDLER_FAILED whose text has a form that no exception's text has:

    Declined no-such-sku: we do not sell 7

so a peer of a release without it passes it on, or shows it, as the text of a failure. Behind the text may be
a frame of data, JSON, which such a peer leaves out.
"""

import re

from bstar.wire.limits import DECLINED_DATA_BYTES_MAX, TEXT_BYTES_MAX

# Any other exception's text is the name of its type, and after a colon what it says.
_FORM = re.compile(rb"Declined ([A-Za-z0-9._-]{1,64})(?:: |\Z)")
CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def declined_text(code: str, text: str) -> bytes:
    """The text on the wire."""
    words = "Declined " + code + (": " + text if text else "")
    return words.encode("utf-8", "replace")[:TEXT_BYTES_MAX]


def read_declined(text: bytes) -> tuple[str, str] | None:
    """The code and the handler's own text; None if the handler failed."""
    match = _FORM.match(text)
    if match is None:
        return None
    return match[1].decode(), text[match.end() :].decode("utf-8", "replace")


def data_behind(frames: list[bytes]) -> bytes:
    """The data behind the text, unread; empty if it is missing or too large."""
    return bytes(frames[0]) if frames and len(frames[0]) <= DECLINED_DATA_BYTES_MAX else b""
