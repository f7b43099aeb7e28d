"""SQLite's write-ahead log as a file: up to which frame it can be read, and what lies beyond.

SQLite reads it up to the first frame that is wrong, and says nothing of those behind it. After a crash the
last transaction may be torn; frames of the same log behind the torn one are damage, or writes that were not
synced when the power failed. The format: sqlite.org/fileformat2.html, section 4.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
# The last bit says in which order of bytes the checksums count.
_MAGIC: Final = 0x377F0682


class WalScan(NamedTuple):
    """``frames`` can be read; the ``lost`` ones behind the first that is wrong belong to the same log."""

    frames: int
    lost: int


def scan(path: Path) -> WalScan:
    """Read it. A missing or empty file has no frames. OSError if it cannot be read."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return WalScan(0, 0)
    with file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return WalScan(0, 0)
        magic, _, page_size, _, salt1, salt2, *sums = _HEADER.unpack(header)
        words = struct.Struct(f"{'>' if magic & 1 else '<'}{(8 + page_size) // 4}I")
        sizes = words.format[0]
        running = _checksum(struct.unpack(f"{sizes}6I", header[:24]), 0, 0)
        if magic & ~1 != _MAGIC or running != tuple(sums):
            return WalScan(0, 0)
        frames = lost = 0
        is_broken = False
        while len(frame := file.read(_FRAME.size + page_size)) == _FRAME.size + page_size:
            *_, frame_salt1, frame_salt2, sum1, sum2 = _FRAME.unpack(frame[: _FRAME.size])
            is_ours = (frame_salt1, frame_salt2) == (salt1, salt2)
            if is_broken:
                lost += is_ours
                continue
            running = _checksum(words.unpack(frame[:8] + frame[_FRAME.size :]), *running)
            is_broken = not is_ours or running != (sum1, sum2)
            frames += not is_broken
        return WalScan(frames, lost)


def _checksum(words: tuple[int, ...], first: int, second: int) -> tuple[int, int]:
    for place in range(0, len(words), 2):
        first = (first + words[place] + second) & 0xFFFFFFFF
        second = (second + words[place + 1] + first) & 0xFFFFFFFF
    return first, second
