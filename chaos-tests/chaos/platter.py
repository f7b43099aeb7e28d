"""What a disk holds after its power failed: computed from the log that ``power.c`` writes of a process.

A write is *pending* until its file was synced, and so is a change of a name until its directory was. When the
power fails, what is pending is lost, wholly or in part; ``Loss`` says how. Chance has a seed.

After a sync that failed, what it should have synced is pending no more, and no later sync covers it: some of
it is on the disk (as Linux does it). A file keeps its size when a write beyond its end is lost and a later
one is not; what lies between is zeros.
"""

from __future__ import annotations

import enum
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""

_HEAD = struct.Struct("<B3xIQI")


class Record(NamedTuple):
    """One line of the log. ``number`` is an offset, a size, or how many records a sync covers."""

    kind: str
    file: int
    number: int
    octets: bytes


class Loss(enum.Enum):
    """What is lost of all that is pending."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    # What was done last, and of the last write that remains some sectors: a disk that keeps the order.
    TAIL = "tail"
    # Any sectors, and of the names of each directory the last changes: a disk that writes in its own order.
    SECTORS = "sectors"


class Write(NamedTuple):
    """Bytes at an offset."""

    offset: int
    octets: bytes

    def put(self, content: bytearray) -> None:
        """Do it to a file."""
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.octets)] = self.octets

    def sectors(self) -> list[Write]:
        """The same in parts that a disk writes whole."""
        end = self.offset + len(self.octets)
        cuts = [self.offset, *range((self.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
        return [
            Write(begin, self.octets[begin - self.offset : stop - self.offset])
            for begin, stop in pairwise(cuts)
        ]


class Resize(NamedTuple):
    """A new size; what is added is zeros."""

    size: int

    def put(self, content: bytearray) -> None:
        """Do it to a file."""
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


class Rename(NamedTuple):
    """``path`` names ``file``, and ``old`` names nothing. Without a file ``path`` names nothing."""

    path: str
    file: File | None
    old: str | None = None

    def put(self, names: dict[str, File]) -> None:
        """Do it to a table of names."""
        if self.old is not None:
            names.pop(self.old, None)
        if self.file is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.file


@dataclass(eq=False)
class File:
    """``content`` is on the disk; what is pending has the number of its record."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Write | Resize]] = field(default_factory=list)

    def settle(self, covered: int, chance: random.Random | None = None) -> None:
        """Carry out what is pending of the first ``covered`` records; with ``chance``, some of it."""
        while self.pending and self.pending[0][0] < covered:
            change = self.pending.pop(0)[1]
            if chance is None or chance.random() < 0.5:
                change.put(self.content)


class Platter:
    """The files of one directory on a disk. ``content`` is what they have when nothing is pending."""

    def __init__(self, content: Mapping[str, bytes], *, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._names = {path: File(bytearray(octets)) for path, octets in content.items()}
        self._synced_names = dict(self._names)
        self._pending_names: list[tuple[int, Rename]] = []
        # Of the process that writes now: its numbers of files and of directories.
        self._files: dict[int, File] = {}
        self._directories: dict[int, str] = {}
        self._first = 0
        self._count = 0

    def play(self, record: Record) -> None:
        """One thing more has happened."""
        number, self._count = self._count, self._count + 1
        kind, octets = record.kind, record.octets
        if kind == "W":
            self._files[record.file].pending.append((number, Write(record.number, octets)))
        elif kind == "T":
            self._files[record.file].pending.append((number, Resize(record.number)))
        elif kind in "SE":
            self._sync(record.file, self._first + record.number, self._chance if kind == "E" else None)
        elif kind == "B":
            self._files, self._directories, self._first = {}, {}, number
        elif kind == "O" and record.number:
            self._directories[record.file] = octets.decode()
        elif kind == "O":
            self._files[record.file] = self._names[octets.decode()]
        elif kind == "C":
            self._files[record.file] = File()
            self._rename(number, Rename(octets.decode(), self._files[record.file]))
        elif kind == "U":
            self._rename(number, Rename(octets.decode(), None))
        elif kind == "R":
            old, new = octets.decode().split("\0")
            self._rename(number, Rename(new, self._names[old], old))
        else:
            raise ValueError(f"no kind of record: {kind!r}")

    def _rename(self, number: int, change: Rename) -> None:
        change.put(self._names)
        self._pending_names.append((number, change))

    def _sync(self, number: int, covered: int, chance: random.Random | None) -> None:
        if number in self._files:
            self._files[number].settle(covered, chance)
            return
        directory = self._directories[number]
        if chance is not None:
            return  # its changes stay pending: another sync may cover them
        rest = []
        for at, change in self._pending_names:
            if at < covered and _parent(change.path) == directory:
                change.put(self._synced_names)
            else:
                rest.append((at, change))
        self._pending_names = rest

    def after_power_loss(self, loss: Loss, seed: int) -> dict[str, bytes]:
        """What the directory's files hold when the power fails now. Changes nothing here."""
        chance = random.Random(seed)
        end = self._count
        if loss is Loss.EVERYTHING:
            end = 0
        elif loss is Loss.TAIL:
            end = chance.choice([*self._pending(), self._count])
        names = dict(self._synced_names)
        share = chance.choice((0.1, 0.5, 0.9))
        last_of: dict[str, int] = {}
        for number, change in self._pending_names:
            directory = _parent(change.path)
            if loss is Loss.SECTORS and directory not in last_of:
                last_of[directory] = chance.randint(0, self._count)
            if number < min(end, last_of.get(directory, end)):
                change.put(names)
        return {path: self._content(file, loss, end, share, chance) for path, file in names.items()}

    def _content(self, file: File, loss: Loss, end: int, share: float, chance: random.Random) -> bytes:
        content = bytearray(file.content)
        for number, change in file.pending:
            parts = change.sectors() if isinstance(change, Write) else [change]
            part_share = share if loss is Loss.SECTORS else 1.0 if number < end else 0.0
            if loss is Loss.TAIL and number == end:
                part_share = 0.5
            for part in parts:
                if chance.random() < part_share:
                    part.put(content)
        return bytes(content)

    def _pending(self) -> list[int]:
        files = {*self._names.values(), *self._synced_names.values()}
        return sorted([
            *(number for file in files for number, _ in file.pending),
            *(number for number, _ in self._pending_names),
        ])  # fmt: skip


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def records_of(log: bytes) -> Iterator[Record]:
    """Read a log. A last record that is cut short was never answered to anybody, and is left out."""
    at = 0
    while at + _HEAD.size <= len(log):
        kind, file, number, size = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        if at + size > len(log):
            return
        yield Record(chr(kind), file, number, log[at : at + size])
        at += size
