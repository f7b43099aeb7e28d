"""A disk with a queue of orders: what was not synced is lost in a crash, and a sync may stall or fail.

The table is as simple as it can be: each entry adds one record, whose seq is the entry's number.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from bstar_broker.store.core.entries import START, Entry, History, Position
from bstar_broker.store.core.events import (
    Applied,
    Damaged,
    DiskInput,
    Export,
    Exported,
    Import,
    LogRead,
    Mark,
    Opened,
    ReadLog,
    Rebuild,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.records import Record, Totals
from sim.world import World

Order = Write | Import | Trim | ReadLog | Export | Rebuild


class State:
    """What is on the disk."""

    def __init__(self) -> None:
        self.log: dict[int, Entry] = {}
        self.history = History()
        self.first = 1
        self.applied = 0
        self.at_ms = 0
        self.mark: Mark | None = None
        self.table: dict[int, Record] = {}
        # Parts of the peer's table.
        self.staged: dict[int, Record] = {}
        self.damage = ""
        self.must = START
        # It began empty in the place of a damaged one, and was not in sync since.
        self.is_rebuilt = False

    @property
    def is_damaged(self) -> bool:
        """Whether this copy needs the peer's."""
        return bool(self.damage) or self.is_rebuilt

    def copy(self) -> State:
        """What a transaction works on."""
        other = State()
        other.__dict__.update(self.__dict__)
        other.log, other.table = dict(self.log), dict(self.table)
        other.history = History(self.history.epochs, self.history.last)
        return other

    def has(self, number: int, body: bytes) -> bool:
        """True if this command is in the table, or would be when the log is applied."""
        if number <= self.applied or number not in self.log:
            return number in self.table and self.table[number].body == [body]
        return self.log[number].commands == body


class SimDisk:
    """``deliver`` hands inputs to the process of this run; None while there is none."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.durable = State()
        self.deliver: Callable[[DiskInput], None] | None = None
        self.sync_s = 0.002
        self.stalled_until = 0.0
        self.fails_until = 0.0
        self._orders: deque[Order] = deque()
        self._pending: tuple[State, int] | None = None
        self._run = 0
        self.replaced_at = -1e9
        # The last entry of which the results were handed out; none is handed out twice.
        self._told = 0
        self._export: list[Record] = []
        self._exported_at = START
        self.syncs = 0
        # Earlier states: a damaged WAL ends with one of them.
        self._before: deque[State] = deque(maxlen=60)

    # --- a process ------------------------------------------------------------------------------------------

    def open(self, deliver: Callable[[DiskInput], None]) -> None:
        """A process starts, and reads it."""
        self._run += 1
        self.deliver = deliver
        self._orders.clear()
        self._pending = None
        state, run = self.durable, self._run

        def opened() -> None:
            if run == self._run:
                self._told = state.applied
                deliver(_opened(state))

        self._world.after(self._rng.uniform(0.001, 0.3), opened)

    def crash(self) -> None:
        """The process is gone. A transaction under way is there or not."""
        if self._pending is not None and self._rng.random() < 0.5:
            self.durable = self._pending[0]
        self._run += 1
        self.deliver = None
        self._orders.clear()
        self._pending = None

    def damage(self, rng: random.Random) -> None:
        """The process is gone, and what it synced last cannot be read: the disk knows how much that is."""
        lost = rng.choice(self._before) if self._before else self.durable
        state = lost.copy()
        state.damage, state.must = "its WAL is damaged", max(self.durable.must, self.durable.history.last)
        state.mark = self.durable.mark
        self.replaced_at = self._world.now
        self.durable = state
        self._before.clear()

    def find_damage(self) -> None:
        """Something that was stored long ago cannot be read any more; nothing else is wrong."""
        if self.durable.damage:
            return
        for state in (self.durable, *([] if self._pending is None else [self._pending[0]])):
            state.damage, state.must = "a record is damaged", state.history.last
        self._tell(Damaged("a record is damaged"), self._run)

    def _rebuild(self, order: Rebuild) -> None:
        self.crash_at_rebuild()
        self.durable = State()
        self.durable.mark, self.durable.is_rebuilt = order.mark, True
        self.replaced_at = self._world.now
        self._told = 0
        state, run, deliver = self.durable, self._run, self.deliver
        assert deliver is not None
        self._world.after(
            self._rng.uniform(0.001, 0.1), lambda: deliver(_opened(state)) if run == self._run else None
        )

    def crash_at_rebuild(self) -> None:
        """What was ordered before was for the copy that is set aside."""
        self._run += 1
        self._orders.clear()
        self._before.clear()
        self._pending = None

    def replace(self) -> None:
        """An empty disk takes its place."""
        self.replaced_at = self._world.now
        self.durable = State()

    # --- orders ---------------------------------------------------------------------------------------------

    def give(self, order: Order) -> None:
        """Queue an order; those that wait together become one transaction."""
        if isinstance(order, Rebuild):
            self._rebuild(order)
            return
        self._orders.append(order)
        if self._pending is None:
            self._begin()

    def _begin(self) -> None:
        state, run, last_order = self.durable.copy(), self._run, 0
        orders = list(self._orders)
        answers: list[DiskInput] = []
        for order in orders:
            last_order = max(last_order, getattr(order, "order", 0))
            answers += self._carry_out(order, state)
        self._pending = (state, last_order)
        for answer in answers:
            self._tell(answer, run)
        wait_s = self._rng.expovariate(1 / self.sync_s) + max(0.0, self.stalled_until - self._world.now)
        self._world.after(wait_s, lambda: self._end(run, len(orders)))

    def _end(self, run: int, count: int) -> None:
        if run != self._run or self._pending is None:
            return
        state, last_order = self._pending
        self._pending = None
        if self._world.now < self.fails_until:
            # Nothing is kept of it. It is tried again with the next order, and after a while; questions have
            # their answers.
            for order in [self._orders.popleft() for _ in range(count)][::-1]:
                if not isinstance(order, ReadLog | Export):
                    self._orders.appendleft(order)
            self._tell(Written(self.durable.history.last, last_order, "no space left on the disk"), run)
            self._world.after(0.3, lambda: self._retry(run))
            return
        self.syncs += 1
        self._before.append(self.durable)
        self.durable = state
        for _ in range(count):
            self._orders.popleft()
        if last_order:
            self._tell(Written(state.history.last, last_order), run)
        if self._orders and self._pending is None:
            self._begin()

    def _retry(self, run: int) -> None:
        if run == self._run and self._pending is None and self._orders:
            self._begin()

    def _tell(self, answer: DiskInput, run: int) -> None:
        deliver = self.deliver
        if deliver is not None:
            self._world.after(0.0, lambda: deliver(answer) if run == self._run else None)

    def _carry_out(self, order: Order, state: State) -> list[DiskInput]:
        match order:
            case Write():
                return self._write(order, state)
            case Import():
                self._import(order, state)
            case Trim():
                assert order.number <= state.applied
                for number in range(state.first, order.number):
                    state.log.pop(number, None)
                state.first = max(state.first, order.number)
            case ReadLog():
                entries = [
                    state.log[number]
                    for number in range(order.begin, order.begin + 20)
                    if number in state.log and order.begin in state.log
                ]
                return [LogRead(order.begin, entries, order.token)]
            case Export():
                return [self._export_part(order, state)]
        return []

    def _write(self, order: Write, state: State) -> list[DiskInput]:
        if order.keep_to is not None:
            assert order.keep_to >= state.applied, "what was applied is dropped"
            for number in range(order.keep_to + 1, state.history.last.number + 1):
                state.log.pop(number, None)
            state.history.keep_to(order.keep_to)
        answers: list[DiskInput] = []
        synced = self.durable.history
        for number in range(state.applied + 1, order.apply_to + 1):
            entry = state.log[number]
            assert synced.has(entry.position), "an entry is applied that is not synced"
            state.table[number] = _record(entry)
            state.applied = number
            if number > self._told:
                self._told = number
                answers.append(Applied(number, [], Totals()))
        for entry in order.entries:
            state.history.append(entry.position)
            state.log[entry.number] = entry
            state.at_ms = entry.at_ms
        if order.mark is not None:
            state.mark = order.mark
            state.is_rebuilt &= not order.mark.is_in_sync
        if order.is_mended:
            state.damage, state.must = "", START
        return answers

    def _import(self, order: Import, state: State) -> None:
        if order.is_first:
            state.staged = {}
        state.staged = {**state.staged, **{record.seq: record for record in order.records}}
        if order.applied is not None:
            state.log.clear()
            state.table, state.staged = state.staged, {}
            state.history = History(order.epochs, order.applied)
            state.applied, state.first = order.applied.number, order.applied.number + 1
            state.at_ms = order.at_ms
            self._told = order.applied.number

    def _export_part(self, order: Export, state: State) -> Exported:
        if order.after == 0:
            self._export = sorted(state.table.values(), key=lambda record: record.seq)
            self._exported_at = Position(state.history.epoch_at(state.applied), state.applied)
        rest = [record for record in self._export if record.seq > order.after]
        part = rest[:20]
        after = part[-1].seq if part else order.after
        records = [msgspec.Raw(msgspec.msgpack.encode(record)) for record in part]
        return Exported(after, records, len(rest) == len(part), self._exported_at, state.at_ms)


def _opened(state: State) -> Opened:
    history, mark = state.history, state.mark
    if state.damage and mark is not None:
        mark = replace(mark, is_in_sync=False, is_doubtful=False)
    return Opened(
        mark, history.last, state.first, state.applied, state.at_ms, list(history.epochs), Totals(), {},
        state.damage, max(state.must, history.last),
    )  # fmt: skip


def _record(entry: Entry) -> Record:
    name = entry.number.to_bytes(16, "big")
    return Record(entry.number, name, b"s", "", [entry.commands], entry.at_ms, 0, 0, 1, 0, 0, 0)
