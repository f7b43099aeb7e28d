"""The entries of the store's log: commands in the order in which both nodes carry them out.

The number of an entry is one above that of the entry before. Its epoch is that of the node that appended it.
So an epoch and a number name one entry of the pair: two logs with the same epoch at a number are the same up
to there.
"""

from typing import NamedTuple
from zlib import crc32

import msgspec


class Position(NamedTuple):
    """The place of an entry. Of two logs, the one whose last position is greater knows more."""

    epoch: int
    number: int


START = Position(0, 0)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``at_ms`` is the Unix time at which it was appended, never earlier than that of the entry before.

    ``commands`` are octets (``commands.encode``). ``checksum`` covers all of it.
    """

    epoch: int
    number: int
    at_ms: int
    commands: bytes
    checksum: int

    @classmethod
    def of(cls, position: Position, at_ms: int, commands: bytes) -> "Entry":
        """An entry with its checksum."""
        return cls(*position, at_ms, commands, _checksum(*position, at_ms, commands))

    @property
    def position(self) -> Position:
        """Its place."""
        return Position(self.epoch, self.number)

    @property
    def is_whole(self) -> bool:
        """True if the checksum is that of the rest."""
        return self.checksum == _checksum(self.epoch, self.number, self.at_ms, self.commands)


def _checksum(epoch: int, number: int, at_ms: int, commands: bytes) -> int:
    return crc32(commands, crc32(b"%d %d %d" % (epoch, number, at_ms)))
