"""How far a request is, as its handler says while it runs: the native dialect's PROGRESS.

The frames behind the header are ``[done (8 bytes)] [text]`` or ``[done, total (16 bytes)] [text]``: doubles
as in IEEE 754, and a text for people that may be missing. Nobody answers them, and one may be lost.
"""

import math
import struct

import msgspec

from bstar.base.printable import printable
from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.limits import PROGRESS_TEXT_BYTES_MAX

_DONE = struct.Struct(">d")
_BOTH = struct.Struct(">dd")


class Progress(msgspec.Struct, frozen=True, gc=False):
    """``done`` of ``total``, in the handler's own unit. ``total`` is None where it is not known; ``done`` may
    exceed it. ``text`` says what the handler does, for people.
    """

    done: float
    total: float | None = None
    text: str = ""

    def __str__(self) -> str:
        """As a line for people: ``12 of 40: resizing``."""
        count = _count(self.done)
        if self.total is not None:
            count += f" of {_count(self.total)}"
        return f"{count}: {printable(self.text)}" if self.text else count


def _count(number: float) -> str:
    return f"{number:,.0f}" if number.is_integer() else f"{number:,}"


def progress_of(done: object, total: object, text: object) -> Progress:
    """What a handler reports. TypeError or LocalProtocolError if it cannot be sent."""
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is a str, not {type(text).__name__}")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the text of a progress cannot be written as UTF-8: {error}") from None
    if size_bytes > PROGRESS_TEXT_BYTES_MAX:
        raise LocalProtocolError(
            f"the text of a progress has {size_bytes} bytes, more than {PROGRESS_TEXT_BYTES_MAX}: shorten it"
        )
    return Progress(_to_number(done, "done"), None if total is None else _to_number(total, "total"), text)


def _to_number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} of a progress is a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise LocalProtocolError(f"{name} of a progress is a number of 0 or more, not {number}")
    return number


def pack_progress(progress: Progress) -> list[bytes]:
    """The frames behind the header."""
    total = progress.total
    numbers = _DONE.pack(progress.done) if total is None else _BOTH.pack(progress.done, total)
    return [numbers, progress.text.encode()] if progress.text else [numbers]


def unpack_progress(frames: list[bytes]) -> Progress:
    """Read the frames behind the header. RemoteProtocolError if they are not those of a PROGRESS."""
    if not frames:
        raise RemoteProtocolError("progress", "it has no numbers")
    first = frames[0]
    if len(first) not in (_DONE.size, _BOTH.size):
        raise RemoteProtocolError("progress", f"numbers have {_DONE.size} or {_BOTH.size} bytes")
    numbers = (_DONE if len(first) == _DONE.size else _BOTH).unpack(first)
    if not all(0 <= number < math.inf for number in numbers):
        raise RemoteProtocolError("progress", "its numbers are finite, and 0 or more")
    text = b"" if len(frames) < 2 else frames[1]
    if len(text) > PROGRESS_TEXT_BYTES_MAX:
        raise RemoteProtocolError("progress", f"its text has {PROGRESS_TEXT_BYTES_MAX} bytes at most")
    done, *total = numbers
    return Progress(done, total[0] if total else None, bytes(text).decode("utf-8", "replace"))
