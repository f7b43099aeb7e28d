"""The rows of a batch: many messages of one command and one client, in one table and one blob.

A message costs time per message and per frame, not per octet. So requests that leave at the same moment for
one peer travel together, and so do replies (docs/protocol/native.md, section 3.8). The table has one row of
fixed width per message, the blob their bodies, one behind the other:

    REQUESTS  [header 0E] [number, time to live, length]… [body body …]      16 octets a row
    FINALS    [header 0F] [number, length]… [body body …]                    12 octets a row

A reader gets columns, not messages: a broker that passes a batch on makes no objects of its rows. It checks
the bounds before it takes a batch apart.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate

from bstar.errors import RemoteProtocolError
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX

Column = tuple[int, ...]

# Counted message numbers never reach this; a number above was derived from a key (BSN-G-14).
KEYED_NUMBER_MIN = 1 << 62

_REQUEST_ROW = struct.Struct(">QII")
_FINAL_ROW = struct.Struct(">QI")
REQUEST_ROW_BYTES = _REQUEST_ROW.size
FINAL_ROW_BYTES = _FINAL_ROW.size


def pack_requests(numbers: Sequence[int], ttls_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
    """``[table] [blob]`` of REQUESTS."""
    return [b"".join(map(_REQUEST_ROW.pack, numbers, ttls_ms, map(len, bodies))), b"".join(bodies)]


def pack_finals(numbers: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
    """``[table] [blob]`` of FINALS."""
    return [b"".join(map(_FINAL_ROW.pack, numbers, map(len, bodies))), b"".join(bodies)]


def request_rows(frames: list[bytes], at: int) -> tuple[Column, Column, Column]:
    """Numbers, times to live and lengths of the table in ``frames[at]``, whose blob is the frame behind it.

    RemoteProtocolError if they are not the rows of a batch.
    """
    rows = _REQUEST_ROW.iter_unpack(_table(frames, at, REQUEST_ROW_BYTES))
    numbers, ttls_ms, lengths = zip(*rows, strict=True)
    _check(numbers, lengths, frames[at + 1])
    return numbers, ttls_ms, lengths


def final_rows(frames: list[bytes], at: int) -> tuple[Column, Column]:
    """Numbers and lengths, in the same way."""
    numbers, lengths = zip(*_FINAL_ROW.iter_unpack(_table(frames, at, FINAL_ROW_BYTES)), strict=True)
    _check(numbers, lengths, frames[at + 1])
    return numbers, lengths


def bodies_of(blob: bytes, lengths: Column, begin: int = 0) -> list[bytes]:
    """The bodies in a blob whose lengths have been checked; the first of them begins at octet ``begin``."""
    bounds = list(accumulate(lengths, initial=begin))
    return list(map(blob.__getitem__, map(slice, bounds, bounds[1:])))


def _table(frames: list[bytes], at: int, row_bytes: int) -> bytes:
    if len(frames) < at + 2:
        raise RemoteProtocolError("batch-frames", "a batch is [header] [table] [blob]")
    table = frames[at]
    rows, rest = divmod(len(table), row_bytes)
    if rest or not 0 < rows <= BATCH_ROWS_MAX:
        raise RemoteProtocolError("batch-table", f"a batch has 1 to {BATCH_ROWS_MAX} whole rows")
    if len(frames[at + 1]) > BATCH_BYTES_MAX:
        raise RemoteProtocolError(
            "batch-blob", f"the bodies of a batch have at most {BATCH_BYTES_MAX} octets"
        )
    return table


def _check(numbers: Column, lengths: Column, blob: bytes) -> None:
    if sum(lengths) != len(blob):
        raise RemoteProtocolError("batch-blob", "the lengths in the table are not those of the blob")
    if len(set(numbers)) != len(numbers):
        raise RemoteProtocolError("batch-table", "a number stands twice in one batch")
    if max(numbers) >= KEYED_NUMBER_MIN:
        raise RemoteProtocolError("batch-table", "a request with a key is in no batch")
