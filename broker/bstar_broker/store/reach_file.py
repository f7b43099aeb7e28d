"""How far the copy in a directory must reach, kept beside the database: so damage shows that SQLite hides.

SQLite takes the first wrong frame of its WAL for the WAL's end, so what follows vanishes in silence. So each
synced transaction stores its number in the database, and this file names the number after the sync.
Opening compares: a database with a lower number has lost what was synced.

The file is written without a sync of its own. It never claims what was not synced. After kill -9 it lacks the
last transaction at most, whose answers had not left; after a loss of power what the kernel had not written,
some seconds. The disk's thread syncs it at rest. What an unsynced transaction wrote is never claimed, so a
WAL that a crash has torn at its end is whole.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar_broker.store.core.entries import START, Position
from bstar_broker.store.core.events import Mark

# A disk writes a sector whole or not at all.
_SECTOR: Final = 512
_TEXT_MAX: Final = 150


class Sequence(NamedTuple):
    """The ``number`` of a synced transaction of a database. ``origin``: random bytes, drawn when it was
    made, so files of another database, or of one that was here before, have another.
    """

    origin: bytes
    number: int


class Reach(msgspec.Struct, array_like=True):
    """``origin``: that of the database. ``sequence``: the number of the last synced transaction; ``base``: of
    the last one in store.db itself, since the WAL was copied. ``last``: where the log ended, ``mark``: the
    stored mark.

    ``damage``: why this copy must be replaced by the peer's, "" if it need not; ``must``: the last entry that
    it had before. ``is_rebuilt``: what is here began empty after that, and takes the peer's copy.
    """

    origin: bytes = b""
    sequence: int = 0
    base: int = 0
    last: Position = START
    mark: Mark | None = None
    damage: str = ""
    must: Position = START
    is_rebuilt: bool = False


class ReachFile:
    """The file. ``fault``: why it cannot be believed, "" if it can; ``is_new``: it was not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reach = Reach()
        self.fault = ""
        self._is_dirty = False
        self.is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self.is_new:
            self._read()

    def _read(self) -> None:
        reach = read(os.pread(self._file, _SECTOR, 0))
        if reach is None:
            self.fault = f"{self.path} is damaged: nothing proves that this copy has all that was synced"
        else:
            self.reach = reach

    def note(self, *, is_synced: bool = False) -> None:
        """Write ``reach``. OSError if that fails."""
        content = msgspec.msgpack.encode(self.reach)
        os.pwrite(self._file, (_head(content) + content).ljust(_SECTOR, b"\0"), 0)
        self._is_dirty = True
        if is_synced:
            self.sync()

    def sync(self) -> None:
        """Bring what was noted to the disk. OSError if that fails."""
        if self._is_dirty:
            os.fdatasync(self._file)
            self._is_dirty = False

    def note_damage(self, text: str, must: Position) -> None:
        """This copy must be replaced. OSError if that cannot be stored."""
        self.reach.damage, self.reach.must = text[:_TEXT_MAX], must
        self.note(is_synced=True)

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(sector: bytes) -> Reach | None:
    """What the file's content says; None if it is damaged."""
    size = int.from_bytes(sector[4:6], "big")
    content = sector[6 : 6 + size]
    if not content or sector[:6] != _head(content):
        return None
    try:
        return msgspec.msgpack.decode(content, type=Reach)
    except UNDECODABLE:
        return None


def shortfall(reach: Reach, found: Sequence, what: str) -> str:
    """What a database with this number lacks of what was synced; "" if nothing."""
    if found.origin != reach.origin:
        return f"{what} is of another store, or of one that was here before"
    if found.number < reach.sequence:
        return (
            f"{reach.sequence - found.number} synced transactions are missing: the log had entry "
            f"{reach.last.number}; {what} or its WAL was damaged, cut or replaced"
        )
    return ""


def _head(content: bytes) -> bytes:
    return crc32(content).to_bytes(4, "big") + len(content).to_bytes(2, "big")
