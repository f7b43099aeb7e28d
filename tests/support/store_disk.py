"""A store's disk for tests: orders in, answers out, by events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import pytest

from bstar.base.closing import Closing
from bstar_broker.store import sqlite_file
from bstar_broker.store.core.commands import Command
from bstar_broker.store.core.entries import Entry
from bstar_broker.store.core.events import (
    Applied,
    DiskInput,
    DiskOutput,
    Export,
    Exported,
    Find,
    Found,
    Mark,
    Opened,
    Write,
    Written,
)
from bstar_broker.store.core.records import Record
from bstar_broker.store.disk import Disk
from support.entries import entry

T = TypeVar("T")

PAIR = "orders"
STORE = b"s" * 16

# How long an answer may take on a busy machine, and how often to look for it.
_ANSWER_S_MAX = 10.0
_LOOK_S = 0.01


def mark(*, is_in_sync: bool = True) -> Mark:
    """What a node keeps of itself."""
    return Mark(PAIR, "primary", STORE, is_in_sync, is_alone=False)


def decoded(part: Exported) -> list[Record]:
    """The records of a part."""
    return [msgspec.msgpack.decode(record, type=Record) for record in part.records]


class Platter(Closing):
    """A disk in a directory. ``answers`` are all that came, in order."""

    def __init__(self, directory: Path | str) -> None:
        self._woken = threading.Event()
        self.answers: list[DiskInput] = []
        self._seen = 0
        self.disk = Disk(directory, pair=PAIR, wake=self._woken.set)
        self.opened = self.wait(Opened)

    def put(self, *orders: DiskOutput) -> Self:
        """Give these orders."""
        self.disk.put(orders)
        return self

    def wait(self, kind: type[T], is_it: Callable[[T], bool] = lambda _: True) -> T:
        """The next answer of this kind that ``is_it``, after those that were waited for before."""
        until = time.monotonic() + _ANSWER_S_MAX
        while True:
            for place in range(self._seen, len(self.answers)):
                answer = self.answers[place]
                if isinstance(answer, kind) and is_it(answer):
                    self._seen = place + 1
                    return answer
            assert time.monotonic() < until, f"no {kind.__name__}"
            # An answer that no loop awaits wakes nobody.
            self._woken.wait(_LOOK_S)
            self._woken.clear()
            self.answers += self.disk.take()

    def append(self, *entries: Entry) -> Written:
        """Append these entries, and wait until they are synced."""
        self.put(Write(entries))
        return self.wait(Written, lambda written: written.last == entries[-1].position)

    def apply(self, number: int) -> list[Applied]:
        """Apply the log up to this entry; what that did."""
        begin = len(self.answers)
        self.put(Write(apply_to=number))
        self.wait(Applied, lambda applied: applied.number == number)
        self.wait(Written)
        return [answer for answer in self.answers[begin:] if isinstance(answer, Applied)]

    def carry_out(self, number: int, *commands: Command) -> Applied:
        """Append an entry of these commands, and apply it."""
        self.append(entry(number, *commands))
        return self.apply(number)[-1]

    def find(self, request: bytes) -> Record | None:
        """The record with this id."""
        self.put(Find(request, 77))
        found = self.wait(Found, lambda found: found.token == 77)
        assert not found.error, found.error
        return found.records[0] if found.records else None

    def table(self) -> list[Record]:
        """The whole table."""
        records: list[Record] = []
        after, is_last = 0, False
        while not is_last:
            self.put(Export(after, 1 << 20))
            part = self.wait(Exported)
            records += decoded(part)
            after, is_last = part.after, part.is_last
        return records

    def close(self) -> None:
        """End well."""
        self.disk.close()
        self.answers += self.disk.take()


class HangingCommits:
    """Commits wait while ``is_hung``, as on a frozen file system or a network disk without its server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        commit = sqlite_file.StoreFile.commit

        def late(file: sqlite_file.StoreFile) -> float:
            self._answers.wait()
            return commit(file)

        monkeypatch.setattr(sqlite_file.StoreFile, "commit", late)

    def answer(self) -> None:
        self._answers.set()
