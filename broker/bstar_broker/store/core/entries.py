"""The entries of the store's log, and which epoch appended which of them.

An entry has the commands that both nodes carry out in the order of the log. Its number is one above that of
the entry before. Its epoch is that of the node that appended it. Only one node appends in an epoch, and its
log has no gaps. So an epoch and a number name one entry of the pair: two logs with the same epoch at a number
are the same up to there (log matching, Raft), and two histories say where two logs part.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

import msgspec

_number = attrgetter("number")


class Position(NamedTuple):
    """The place of an entry. Of two logs, the one whose last position is greater knows more."""

    epoch: int
    number: int


START = Position(0, 0)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``at_ms`` is the Unix time at which it was appended, never earlier than that of the entry before.

    ``commands`` are bytes (``commands.encode``). ``checksum`` covers all of it.
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


class History:
    """``epochs``: the first number of each epoch, as far back as it is known. ``last``: the last entry."""

    def __init__(self, epochs: Sequence[Position] = (), last: Position = START) -> None:
        self.epochs = list(epochs)
        self.last = last

    def epoch_at(self, number: int) -> int:
        """The epoch of the entry ``number``; 0 if it does not exist or is not known any more."""
        if number > self.last.number:
            return 0
        at = bisect_right(self.epochs, number, key=_number)
        return self.epochs[at - 1].epoch if at else 0

    def has(self, position: Position) -> bool:
        """True if this entry is in the log, or was before it was trimmed; START always is."""
        return position == START or (position.number > 0 and self.epoch_at(position.number) == position.epoch)

    def append(self, position: Position) -> None:
        """The log's next entry."""
        assert position.number == self.last.number + 1
        assert position.epoch >= self.last.epoch
        if position.epoch != self.last.epoch or not self.epochs:
            self.epochs.append(position)
        self.last = position

    def keep_to(self, number: int) -> None:
        """Drop the entries above ``number``."""
        if number >= self.last.number:
            return
        while self.epochs and self.epochs[-1].number > number:
            self.epochs.pop()
        self.last = Position(self.epochs[-1].epoch, number) if self.epochs and number else START

    def common(self, other: "History") -> Position:
        """The last entry that is in both; START without one, or if it is not known."""
        ends = {first.epoch: end for first, end in self.spans()}
        for first, end in reversed(list(other.spans())):
            if first.epoch in ends:
                return Position(first.epoch, min(end, ends[first.epoch]))
        return START

    def spans(self) -> Sequence[tuple[Position, int]]:
        """The first entry of each epoch, and the number of its last."""
        ends = [following.number - 1 for following in self.epochs[1:]]
        return list(zip(self.epochs, [*ends, self.last.number], strict=False))
