"""The rows of a batch: many messages of one command and one client, in one table and one blob.

A message costs time per message and per frame, not per byte. So requests that leave at the same moment for
one peer travel together, and so do replies (docs/protocol/native.md, section 3.8). The table has one row of
fixed width per message, the blob their bodies, one behind the other:

    REQUESTS  [header 0E] [number, time to live, length]… [body body …]      16 bytes a row
    FINALS    [header 0F] [number, length]… [body body …]                    12 bytes a row

The highest bit of a length in REQUESTS marks a row with extensions. In the blob their length (2 bytes) and
they themselves stand before its body.

A reader gets columns, not messages: a broker that passes a batch on makes no objects of its rows. It checks
the bounds before it takes a batch apart.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from bstar.errors import RemoteProtocolError
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX, EXTENSIONS_BYTES_MAX

Column = tuple[int, ...]

# Counted message numbers never reach this; a number above was derived from a key (BSN-G-14).
KEYED_NUMBER_MIN = 1 << 62

# In the length of a row: extensions stand before its body.
_EXTENDED = 1 << 31
_LENGTH_AT = 12
_EXTENDED_OCTET = 0x80

_REQUEST_ROW = struct.Struct(">QII")
_FINAL_ROW = struct.Struct(">QI")
REQUEST_ROW_BYTES = _REQUEST_ROW.size
FINAL_ROW_BYTES = _FINAL_ROW.size

# Layouts of whole tables that are kept. The largest takes 100 KB; to make one takes 0.02 µs for each row.
_LAYOUTS_MAX = 64


def pack_requests(
    numbers: Sequence[int],
    ttls_ms: Sequence[int],
    bodies: Sequence[bytes],
    extensions: Sequence[bytes] | None = None,
) -> list[bytes]:
    """``[table] [blob]`` of REQUESTS. ``extensions``: those of each row, b"" for a row without."""
    if extensions is None:
        return [b"".join(map(_REQUEST_ROW.pack, numbers, ttls_ms, map(len, bodies))), b"".join(bodies)]
    parts = [
        len(extension).to_bytes(2, "big") + extension + body if extension else body
        for extension, body in zip(extensions, bodies, strict=True)
    ]
    lengths = [
        len(part) | _EXTENDED if extension else len(part)
        for extension, part in zip(extensions, parts, strict=True)
    ]
    return [b"".join(map(_REQUEST_ROW.pack, numbers, ttls_ms, lengths)), b"".join(parts)]


def pack_finals(numbers: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
    """``[table] [blob]`` of FINALS."""
    return [b"".join(map(_FINAL_ROW.pack, numbers, map(len, bodies))), b"".join(bodies)]


def request_rows(frames: list[bytes], at: int) -> tuple[Column, Column, Column, bool]:
    """Numbers, times to live and lengths of the table in ``frames[at]``, whose blob is the frame behind it.

    The last is True if rows have extensions; their lengths count them (``take_extensions``).
    RemoteProtocolError if they are not the rows of a batch.
    """
    table = _table(frames, at, REQUEST_ROW_BYTES)
    fields = _layout("QII", len(table) // REQUEST_ROW_BYTES).unpack(table)
    numbers, ttls_ms, lengths = fields[0::3], fields[1::3], fields[2::3]
    blob = frames[at + 1]
    # The sum shows a mark, so a batch without one costs nothing more.
    if sum(lengths) < _EXTENDED:
        _check(numbers, lengths, blob)
        return numbers, ttls_ms, lengths, False
    sizes = tuple(length & ~_EXTENDED for length in lengths)
    _check(numbers, sizes, blob)
    _check_extended(lengths, bodies_of(blob, sizes))
    return numbers, ttls_ms, sizes, True


def final_rows(frames: list[bytes], at: int) -> tuple[Column, Column]:
    """Numbers and lengths, in the same way."""
    table = _table(frames, at, FINAL_ROW_BYTES)
    fields = _layout("QI", len(table) // FINAL_ROW_BYTES).unpack(table)
    numbers, lengths = fields[0::2], fields[1::2]
    _check(numbers, lengths, frames[at + 1])
    return numbers, lengths


def bodies_of(blob: bytes, lengths: Column, begin: int = 0) -> list[bytes]:
    """The bodies in a blob whose lengths have been checked; the first of them begins at byte ``begin``."""
    bounds = list(accumulate(lengths, initial=begin))
    return list(map(blob.__getitem__, map(slice, bounds, bounds[1:])))


def take_extensions(bodies: list[bytes], table: bytes, first: int, *, is_extended: bool) -> list[bytes]:
    """Take the extensions off the bodies of rows, beginning with row ``first`` of the table, and return them.

    ``is_extended``: that of ``request_rows``.
    """
    taken = [b""] * len(bodies)
    if is_extended:
        marks = table[first * REQUEST_ROW_BYTES + _LENGTH_AT :: REQUEST_ROW_BYTES]
        for place, body in enumerate(bodies):
            if marks[place] & _EXTENDED_OCTET:
                end = 2 + int.from_bytes(body[:2], "big")
                taken[place], bodies[place] = body[2:end], body[end:]
    return taken


@lru_cache(_LAYOUTS_MAX)
def _layout(row: str, count: int) -> struct.Struct:
    """The layout of a table of ``count`` rows. It is read in half the time of reading row by row."""
    return struct.Struct(">" + row * count)


def _table(frames: list[bytes], at: int, row_bytes: int) -> bytes:
    if len(frames) < at + 2:
        raise RemoteProtocolError("batch-frames", "a batch is [header] [table] [blob]")
    table = frames[at]
    rows, rest = divmod(len(table), row_bytes)
    if rest or not 0 < rows <= BATCH_ROWS_MAX:
        raise RemoteProtocolError("batch-table", f"a batch has 1 to {BATCH_ROWS_MAX} whole rows")
    if len(frames[at + 1]) > BATCH_BYTES_MAX:
        raise RemoteProtocolError("batch-blob", f"the bodies of a batch have at most {BATCH_BYTES_MAX} bytes")
    return table


def _check_extended(marked: Column, bodies: list[bytes]) -> None:
    for length, body in zip(marked, bodies, strict=True):
        if length & _EXTENDED:
            size = int.from_bytes(body[:2], "big")
            if len(body) < 2 + size or size > EXTENSIONS_BYTES_MAX:
                raise RemoteProtocolError("batch-blob", "the extensions of a row are longer than it may be")


def _check(numbers: Column, lengths: Column, blob: bytes) -> None:
    if sum(lengths) != len(blob):
        raise RemoteProtocolError("batch-blob", "the lengths in the table are not those of the blob")
    if len(set(numbers)) != len(numbers):
        raise RemoteProtocolError("batch-table", "a number stands twice in one batch")
    if max(numbers) >= KEYED_NUMBER_MIN:
        raise RemoteProtocolError("batch-table", "a request with a key is in no batch")
