"""Makes foreign text safe for a terminal and a log: text of a client, worker or handler, on one line.

A service's name and an error's text may hold anything. Characters that a terminal obeys (escape sequences,
newlines, changes of direction) are written as escapes, and so are octets that are no UTF-8.
"""

# People read this much; a log line stays one line.
_CHARS_MAX = 500

_MAPPED = "::ffff:"


def address_text(address: str) -> str:
    """An address as people write it: an IPv4 address that an IPv6 socket accepted, without its prefix."""
    return address.removeprefix(_MAPPED) if "." in address else address


def printable(text: str | bytes, chars_max: int = _CHARS_MAX) -> str:
    r"""The text with ``\n``, ``\x1b`` and other control characters as escapes; ``…`` ends a cut text."""
    if isinstance(text, bytes | bytearray | memoryview):
        # A character has at most four octets.
        text = bytes(text[: 4 * chars_max + 4]).decode("utf-8", "backslashreplace")
    if len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )
