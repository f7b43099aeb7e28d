"""The files of a journal: their names, the open one, and how files are closed, packed and removed.

One file is a *segment*, ``PAIR.NODE.TIME.BOOT.NUMBER.ndjson`` and ``.open`` while it is written. Its writer
holds a lock on it (``flock``). The lock ends with the process, so a successor knows which files of the same
pair and node are orphans. A closed segment appears under its final name by a rename, whole; packed it is
written as ``.part`` before. So a program that lists ``*.ndjson`` and ``*.ndjson.gz`` sees every segment once,
and never a half.

Nothing here knows of threads. ``Disk`` is the operating system; tests replace it.
"""

import fcntl
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec

_log = logging.getLogger("bstar.journal")

_PAIR_OR_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NAME = re.compile(
    r"(?P<pair>[A-Za-z0-9][A-Za-z0-9._-]*)\.(?P<node>[A-Za-z0-9][A-Za-z0-9_-]*)\.(?P<time>\d{8}T\d{6}Z)"
    r"\.(?P<boot>[0-9a-f]{8})\.(?P<number>\d{4,9})\.ndjson(?P<suffix>|\.gz|\.open|\.gz\.part)",
    re.ASCII,
)
_TIME = "%Y%m%dT%H%M%SZ"

# Not yet locked, and so not yet anybody's to look at.
_UNLOCKED = ".new"
OPEN = ".open"
PART = ".gz.part"
PACKED = ".gz"

# Packed at once: ten milliseconds, so that records which come meanwhile need not wait for the whole file, and
# the interpreter lock is asked for seldom.
_PACK_BYTES = 1024 * 1024
# A quarter of the time of zlib's default for lines that it packs to a tenth instead of a twelfth.
_PACK_LEVEL = 1
_GZIP_WBITS = 31
# zlib's default, 8, takes a third more time: its tables are larger than the fastest cache. What it writes is
# as small.
_PACK_MEMORY = 5

# There may be thousands of files, so they are not looked for whenever one was added; but other processes of
# the same pair and node may add some, too.
_LOOKS_EVERY = 16


def is_name(text: str) -> bool:
    """True if a node may have this name: 1 to 64 letters, digits, ``_`` and ``-``, part of a file name."""
    return _PAIR_OR_NODE.fullmatch(text) is not None


class SegmentName(msgspec.Struct, frozen=True):
    """A segment's name, taken apart. ``suffix`` is "", ".gz", ".open" or ".gz.part"."""

    pair: str
    node: str
    time: str
    boot: str
    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """None for a file that is no segment."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(
            found["pair"], found["node"], found["time"], found["boot"], int(found["number"]), found["suffix"]
        )

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return f"{self.pair}.{self.node}.{self.time}.{self.boot}.{self.number:04}.ndjson"

    @property
    def is_sealed(self) -> bool:
        """True if it is whole and has no writer."""
        return self.suffix in ("", PACKED)


class Disk:
    """The calls of the operating system that may fail because the disk is full, or gone."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write; returns how many bytes it took."""
        return os.write(descriptor, data)

    def rename(self, old: Path, new: Path) -> None:
        """In one step."""
        old.rename(new)


class Segment:
    """An open file with its lock. ``size`` counts bytes, ``lines`` whole lines."""

    def __init__(self, path: Path, descriptor: int, disk: Disk) -> None:
        self.path = path
        self.descriptor = descriptor
        self._disk = disk
        self._inode = os.fstat(descriptor).st_ino
        self.size = 0
        self.lines = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write; returns how many bytes went out, maybe not all. OSError if none could."""
        count = self._disk.write(self.descriptor, data)
        self.size += count
        return count

    def is_there(self) -> bool:
        """True if the file is still in the directory under its name."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the file and free its lock. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Pruned(msgspec.Struct, frozen=True):
    """The files that retention removed."""

    files: int
    size_bytes: int
    newest: str


class _Sealed(msgspec.Struct, frozen=True):
    """A closed file for retention."""

    path: Path
    size_bytes: int
    written_s: float

    @classmethod
    def of(cls, path: Path) -> "_Sealed":
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime)


def _oldest_s(written_s: Iterable[float], keep_s: float, now_s: float) -> float:
    """The files written before this moment are older than ``keep_s``.

    The longest gap between two files is not counted as age of those before it: nothing was recorded in it, or
    the clock jumped there, and a clock that is set wrong must not remove all files.
    """
    times = (*sorted(time for time in written_s if time < now_s), now_s)
    gap_s, gap_end_s = max(((end - start, end) for start, end in pairwise(times)), default=(0.0, 0.0))
    oldest_s = now_s - keep_s
    return oldest_s if oldest_s > gap_end_s else oldest_s - gap_s


class Folder:
    """The directory, as one process of one pair and node uses it. Other files in it are left alone."""

    def __init__(self, path: str | os.PathLike[str], pair: str, node: str, boot: str, disk: Disk) -> None:
        self.path = Path(path)
        self._pair = pair
        self._node = node
        self._boot = boot[:8]
        self._disk = disk
        self._number = 0
        self._sealed: deque[_Sealed] | None = None
        self._prunes = 0

    def open(self, at_s: float) -> Segment:
        """Begin the next segment; makes the directory. OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        time = datetime.fromtimestamp(at_s, UTC).strftime(_TIME)
        name = SegmentName(self._pair, self._node, time, self._boot, self._number + 1)
        path, unlocked = self.path / (name.stem + OPEN), self.path / (name.stem + _UNLOCKED)
        descriptor = self._disk.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._number += 1
        # A file system without locks keeps journals all the same: no process takes this one for an orphan.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It has its name when it is locked: between the two another journal would take it for an orphan.
        try:
            unlocked.rename(path)
        except OSError:
            os.close(descriptor)
            unlocked.unlink(missing_ok=True)
            raise
        return Segment(path, descriptor, self._disk)

    def orphans(self) -> Iterator[Segment]:
        """Segments of earlier processes of this pair and node that no process writes any more, now locked."""
        for name in self._segments():
            if name.suffix != OPEN or name.boot == self._boot:
                continue
            path = self.path / (name.stem + OPEN)
            try:
                descriptor = self._disk.open(path, os.O_RDWR)
            except FileNotFoundError:  # another process was quicker
                continue
            except PermissionError as error:
                _log.warning("journal: leaves %s open: %s; is it another user's?", path, error.strerror)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its writer lives, or it is uncertain
                os.close(descriptor)
                continue
            segment = Segment(path, descriptor, self._disk)
            if segment.is_there():
                yield segment
            else:
                segment.close()

    def seal(self, segment: Segment, *, gzip: bool) -> Iterator[None]:
        """Give a segment its final name, packed or not; a step for each ``next``. OSError.

        If packing fails the segment keeps its name and may be sealed again, unpacked.
        """
        final = segment.path.with_suffix("")
        packed = final.with_name(final.name + PACKED)
        # A run that was killed right here may have done it already.
        is_packed = packed.exists()
        if not gzip and not is_packed:
            self._disk.rename(segment.path, final)
            segment.close()
            self._note_sealed(final)
            return
        if not is_packed:
            part = final.with_name(final.name + PART)
            try:
                yield from self._pack(segment, part)
                self._disk.rename(part, packed)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        # From here on readers may see it twice for a moment, if they read open segments; never not at all.
        segment.path.unlink()
        segment.close()
        self._note_sealed(packed)

    def _note_sealed(self, path: Path) -> None:
        if self._sealed is not None:
            self._sealed.append(_Sealed.of(path))

    def _pack(self, segment: Segment, part: Path) -> Iterator[None]:
        descriptor = self._disk.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            packer = zlib.compressobj(_PACK_LEVEL, zlib.DEFLATED, _GZIP_WBITS, _PACK_MEMORY)
            position = 0
            while data := os.pread(segment.descriptor, _PACK_BYTES, position):
                position += len(data)
                self._write_all(descriptor, packer.compress(data))
                yield
            self._write_all(descriptor, packer.flush())
        finally:
            os.close(descriptor)

    def _write_all(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._disk.write(descriptor, rest) :]

    def prune(self, *, keep_bytes: int, keep_s: float, now_s: float) -> Pruned | None:
        """Remove the oldest sealed segments: those above ``keep_bytes``, and those older than ``keep_s``.

        0 is no bound. ``now_s`` is the time of day, which may be set wrong. OSError.
        """
        if self._sealed is None or self._prunes % _LOOKS_EVERY == 0:
            self._sealed = deque(self._find_sealed())
        self._prunes += 1
        total = sum(sealed.size_bytes for sealed in self._sealed)
        oldest_s = _oldest_s((sealed.written_s for sealed in self._sealed), keep_s, now_s) if keep_s else None
        files = size_bytes = 0
        newest = ""
        while self._sealed:
            oldest = self._sealed[0]
            is_too_much = bool(keep_bytes) and total > keep_bytes
            if not is_too_much and (oldest_s is None or oldest.written_s >= oldest_s):
                break
            oldest.path.unlink(missing_ok=True)
            self._sealed.popleft()
            total -= oldest.size_bytes
            files += 1
            size_bytes += oldest.size_bytes
            newest = oldest.path.name
        return Pruned(files, size_bytes, newest) if files else None

    def _find_sealed(self) -> Iterator[_Sealed]:
        """All of this pair and node, in the order in which they were begun."""
        for name in sorted(self._segments(), key=lambda name: (name.time, name.boot, name.number)):
            if name.is_sealed:
                with suppress(FileNotFoundError):
                    yield _Sealed.of(self.path / (name.stem + name.suffix))

    def _segments(self) -> Iterator[SegmentName]:
        """This pair's and node's, in the order of their names."""
        for entry in sorted(entry.name for entry in os.scandir(self.path)):
            name = SegmentName.parse(entry)
            if name is not None and name.pair == self._pair and name.node == self._node:
                yield name
