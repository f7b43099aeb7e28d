"""Makes foreign text safe for a terminal and a log: text of a client, worker or handler, on one line.

A service's name and an error's text may hold anything. Characters that a terminal obeys (escape sequences,
newlines, changes of direction) are written as escapes, and so are bytes that are no UTF-8.
"""

import msgspec

# A repr shows so much of a body: enough to recognise it, too little to leak or to flood a log.
_BRIEF_BYTES = 32

# People read this much; a log line stays one line.
_CHARS_MAX = 500

_MAPPED = "::ffff:"


def address_text(address: str) -> str:
    """An address as people write it: an IPv4 address that an IPv6 socket accepted, without its prefix."""
    return address.removeprefix(_MAPPED) if "." in address else address


def printable(text: str | bytes, chars_max: int = _CHARS_MAX) -> str:
    r"""The text with ``\n``, ``\x1b`` and other control characters as escapes; ``…`` ends a cut text."""
    if isinstance(text, bytes | bytearray | memoryview):
        # A character has at most four bytes.
        text = bytes(text[: 4 * chars_max + 4]).decode("utf-8", "backslashreplace")
    if len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def lines(text: str | bytes) -> str:
    """A text whose line breaks and tabs are its own, and stay; all else is written as by ``printable``."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return "\n".join(
        "\t".join(printable(part, len(part) + 1) for part in line.split("\t")) for line in text.split("\n")
    )


def brief(body: object) -> str:
    """A body for a repr: how its first frame begins, and how much more there is."""
    if isinstance(body, bytes | bytearray | memoryview):
        text = repr(bytes(body[:_BRIEF_BYTES]))
        return text if len(body) <= _BRIEF_BYTES else f"{text}… ({len(body):,} bytes)"
    if isinstance(body, list | tuple):
        if len(body) == 1:
            return brief(body[0])
        return f"{len(body)} frames: {brief(body[0])}, …" if body else "no frames"
    return f"<{type(body).__name__}>"


def compact(struct: msgspec.Struct, **shown: str) -> str:
    """The repr of a struct: the fields in ``shown`` as they are there, of the others those that are set.

    An empty text in ``shown`` leaves the field out.
    """
    fields, defaults = struct.__struct_fields__, struct.__struct_defaults__
    first = len(fields) - len(defaults)
    parts = []
    for place, name in enumerate(fields):
        value = getattr(struct, name)
        if name in shown:
            if shown[name]:
                parts.append(f"{name}={shown[name]}")
        elif place < first or value != defaults[place - first]:
            parts.append(f"{name}={value!r}")
    return f"{type(struct).__name__}({', '.join(parts)})"


def counted(count: int, what: str = "request") -> str:
    """A count with its noun in a sentence."""
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def duration(seconds: float) -> str:
    """A length of time in a sentence."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
