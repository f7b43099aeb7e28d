"""What a simulated node says of itself: the lines of its journal, its status and its metrics.

All of it is made in every run as production makes it, and read again. Where it cannot be made, the run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from bstar import records
from bstar.base.sampling import is_sampled, limit_of
from bstar.journal import Journal, JournalOptions
from bstar.journal.buffer import Buffer, JournalCounters
from bstar_broker.core.snapshot import NodeState
from bstar_broker.journal import NodeJournal
from bstar_broker.operate import page
from bstar_broker.operate.metrics import NodeCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from bstar_broker.core import Node

_FIRST_AT_US = 1_767_571_200_000_000
_RECORDS_MAX = 1_000_000
# Status and metrics cost as much as hundreds of events.
_LOOKS_EACH = 20


class Book:
    """Stands for a ``Journal``: no file, and each line is read again."""

    def __init__(self, node: str, boot: str, sample: float) -> None:
        self.options = JournalOptions("none", sample=sample)
        self.boot = boot
        self.weight = 1 / sample
        self.who: dict[str, Any] = {"v": records.VERSION, "pair": "simulated", "node": node, "boot": boot}
        self.counters = JournalCounters()
        self._limit = limit_of(sample)
        self._buffer = Buffer(_RECORDS_MAX, self.counters)
        self.write, self.offer, self.offer_all = (
            self._buffer.write,
            self._buffer.offer,
            self._buffer.offer_all,
        )

    def is_sampled(self, identity: bytes) -> bool:
        """As ``Journal.is_sampled``."""
        return is_sampled(identity, self._limit)

    def read(self) -> None:
        """Make all lines, and read them."""
        entries, counters = self._buffer.entries, self.counters
        while entries:
            now, make, given = entries.popleft()
            mono_us = int(now * 1e6)
            stamp = {**self.who, "seq": counters.records + 1, "at": mono_us + _FIRST_AT_US, "mono": mono_us}
            made = make(**stamp, **given) if isinstance(given, dict) else make(stamp, *given)
            if made is None:
                continue
            text, count = made if isinstance(made, tuple) else (made, 1)
            lines = (text if isinstance(text, bytes) else records.encode(text)).split(b"\n")
            read = [records.decode(line) for line in lines]
            first = counters.records + 1
            assert [each.seq for each in read] == [*range(first, first + count)], lines
            counters.records += count


class Recorder:
    """Of one run of a node, whose observer ``journal`` is."""

    def __init__(self, name: str, node_id: bytes, clock: Callable[[], float], *, sample: float) -> None:
        self._book = Book(name, node_id.hex(), sample)
        self._clock = clock
        self._node: Node
        self._looks = 0
        self.journal = NodeJournal(cast("Journal", self._book), node_id=node_id, clock=clock)
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(self._state))

    def look(self, node: Node) -> None:
        """Make all of it, at the first look and some of the later ones."""
        self._looks += 1
        if self._looks % _LOOKS_EACH != 1:
            return
        self._node = node
        self.journal.tick(self._clock())
        self._book.read()
        generate_latest(self._registry)
        data = page.event(self._state())
        msgspec.json.decode(data.removeprefix(b"data: "), type=_View)

    def _state(self) -> NodeState:
        return msgspec.structs.replace(self._node.state(self._clock()), journal=self.journal.state())


class _View(msgspec.Struct):
    state: NodeState
