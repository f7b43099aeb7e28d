"""The durable store of a simulated pair: the production ``DurableStore`` over a played replication.

Both nodes have one log. Only the node that led last may append to it, so a node that is superseded commits
nothing; ``store_sim`` proves that real replication comes to the same. Each node applies the log to a table of
its own, which outlives its process. ``StoredJobs`` judges what becomes of what the log took; ``GroupLoad``
submits requests of serial groups, and cancels some.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, cast

import msgspec

from bstar.wire import durable
from bstar.wire.durable import Serial, State, Submit
from bstar_broker.core import Output, StoreOutput
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import StoreInput
from bstar_broker.store.core import commands
from bstar_broker.store.core.commands import Began, Cancelled, Fired, Submitted
from bstar_broker.store.core.desk import Order
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import Opened, Write
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.rules import apply
from bstar_broker.store.core.settings import StoreSettings
from sim.emq import message_of
from support.memory_table import MemoryTable
from support.solo_store import DAY_MS, PlayedDisk, PlayedReplica

if TYPE_CHECKING:
    from bstar_broker.store.core.replica import Replica
    from sim.node import SimNode
    from sim.world import World

_DISK_S_MAX = 0.005
# A run of a schedule that nobody ended, and one that is made just before its end is known.
_SPARE_RUNS = 2
# A node that another one superseded asks this often whether that one leads still.
_LOOK_S = 0.1
# In calm a schedule of one second has a run within this time.
_SILENCE_S = 5.0
_GROUPS = 4
_SUBMITS_PER_S = 3.0
_CANCELLED = 0.2


class StoredJobs:
    """What clients of EventMQ were promised, and what they see. A job is known by its message.

    The rules are those of ``k`` and ``q`` in docs/simulation.md. Times are the world's.
    """

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self._world = world
        self._fail = fail
        self.counts: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.dead: set[str] = set()
        # Schedules: since when they have been asked for, how often each was made, and by when it must end.
        self._since: dict[str, float] = {}
        self.fired: Counter[str] = Counter()
        self._fired_at: dict[str, float] = {}
        self._over_at: dict[str, float] = {}
        self._stored: set[str] = set()
        # Requests of groups, and those of each group that have not ended, with their places in its order.
        self.grouped: dict[str, Record] = {}
        self._waiting: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def took(self, message: str, *, is_dead: bool) -> None:
        """The log has a request with this message, or it has died."""
        self._stored.add(message)
        if is_dead:
            self.dead.add(message)

    def took_of_group(self, message: str, record: Record) -> None:
        """The log has a request of a group, or it has ended."""
        self.grouped[message] = record
        self.accepted.add(message)
        self._waiting[record.group].pop(message, None)
        if record.state == State.PENDING:
            self._waiting[record.group][message] = record.seq
        elif record.state == State.CANCELLED:
            self.dead.add(message)

    def check_given(self, node: SimNode) -> None:
        """(q) of one group a node that leads has given out one request at most."""
        assert node.store_disk is not None
        ledger, groups = node.node.broker.ledger, Counter[str]()
        for worker in ledger.workers.values():
            for request in worker.in_flight.values():
                is_ours = request.codec is ledger.mailbox and request.dispatched_at >= node.store_disk.led_at
                record = self.grouped.get(bytes(request.body[0]).decode()) if is_ours else None
                if record is not None:
                    groups[record.group] += 1
                    self.counts["given out of a group"] += 1
        for group, count in groups.items():
            if count > 1:
                self._fail("q", f"{node.name} has given out {count} requests of {group}")

    def was_accepted(self, message: str) -> None:
        """Its client has REPLY: the job is on the disks."""
        self.counts["jobs accepted"] += 1
        if message not in self._stored:
            self._fail("k", f"{message} was accepted, and no disk has it")
        self.accepted.add(message)

    def scheduled(self, message: str) -> None:
        """A client asks for it, perhaps once more."""
        self._since.setdefault(message, self._world.now)

    def was_fired(self, message: str) -> None:
        """The log has one more run of a schedule."""
        self.fired[message] += 1
        self._fired_at[message] = self._world.now
        self.counts["runs of schedules"] += 1
        lasted_s = self._world.now - self._since[message]
        if self.fired[message] > lasted_s + _SPARE_RUNS:
            self._fail("k", f"{message} had {self.fired[message]} runs in {lasted_s:.3f} s, one a second")

    def must_end(self, message: str, by: float) -> None:
        """A client asks for its end now, and nothing is wrong any more."""
        silent_s = self._world.now - self._fired_at.get(message, self._since[message])
        if message in self._stored and silent_s > _SILENCE_S:
            self._fail("k", f"{message} has had no run for {silent_s:.3f} s")
        self._over_at[message] = by

    def work_begun(self, message: str) -> None:
        """A worker begins it."""
        self.begun[message] += 1
        if message not in self._stored:
            self._fail("k", f"{message} was begun, and no disk has it")
        if (record := self.grouped.get(message)) is not None:
            self.counts["begun of a group"] += 1
            for other, place in self._waiting[record.group].items():
                if place < record.seq:
                    self._fail("q", f"{message} was begun before {other} of its group has ended")
        if self._world.now > self._over_at.get(message, self._world.now):
            self._fail("k", f"{message} ran after its end")

    @property
    def owed(self) -> set[str]:
        """Accepted jobs that nobody has begun, and that are not dead."""
        return self.accepted - self.begun.keys() - self.dead


class Log:
    """The entries of a pair, and the table that they make. ``leader``: who led last, in ``epoch``."""

    def __init__(self, jobs: StoredJobs) -> None:
        self.jobs = jobs
        self.entries: list[Entry] = []
        self.epoch = 0
        self.leader: SimReplica | None = None
        self._table = MemoryTable()

    @property
    def last(self) -> Position:
        """The last entry."""
        return self.entries[-1].position if self.entries else START

    def append(self, epoch: int, at_ms: int, encoded: bytes) -> Position | None:
        """One more entry; None if another node leads."""
        if epoch != self.epoch:
            return None
        entry = Entry.of(Position(epoch, self.last.number + 1), at_ms, encoded)
        self.entries.append(entry)
        for change in apply(entry, commands.decode(encoded), self._table):
            if change.new is None or change.new is change.old:
                continue
            message = bytes(change.new.body[0]).decode()
            self.jobs.took(message, is_dead=change.new.state == State.DEAD)
            if change.new.group:
                self.jobs.took_of_group(message, change.new)
            if isinstance(change.command, Fired) and change.old is None:
                self.jobs.was_fired(message)
        return entry.position


class SimReplica(PlayedReplica):
    """Leads from when its node serves until another node leads, and again when that one leads no more.

    As in real replication the epoch is the store's own, above all that the log has: a node without a state
    directory begins to count its own epochs anew.
    """

    def __init__(self, log: Log, is_running: Callable[[], bool]) -> None:
        super().__init__()
        self._log = log
        # False once the process of this run is gone.
        self.is_running = is_running
        self._is_wanted = False
        self._looks_at = inf
        self.led_at = inf

    def lead(self, epoch: int, now: float) -> list[Output]:
        self._is_wanted = True
        return self._take_over(epoch, now)

    def _take_over(self, epoch: int, now: float) -> list[Output]:
        log = self._log
        self.trouble, self._looks_at = "", inf
        self.is_leading, self._epoch, self.led_at = True, max(epoch, log.epoch + 1), now
        log.epoch, log.leader = self._epoch, self
        return self.propose(commands.encode([Began("primary")]), self._at_ms(), now)

    def follow(self, now: float) -> list[Output]:
        self._is_wanted, self._looks_at = False, inf
        return super().follow(now)

    def next_deadline(self) -> float | None:
        return None if self._looks_at == inf else self._looks_at

    def handle_timer(self, now: float) -> list[Output]:
        """Ask whether the node that superseded this one leads still."""
        leader = self._log.leader
        if leader is None or (leader.is_leading and leader.is_running()):
            self._looks_at = now + _LOOK_S
            return []
        return self._take_over(self._epoch, now)

    def _at_ms(self) -> int:
        return self._log.entries[-1].at_ms if self._log.entries else DAY_MS

    def propose(self, encoded: bytes, at_ms: int, now: float) -> list[Output]:
        position = self._log.append(self._epoch, at_ms, encoded)
        if position is None:
            # The orders of this entry get no answer before the node ceases to lead.
            self.is_leading = False
            self.trouble = "another node leads the store"
            self._looks_at = now + _LOOK_S
            self.last = Position(self._epoch, self.last.number + 1)
            return []
        self.last = position
        return [Write(entries=(self._log.entries[-1],))]


class SimDisk:
    """What a node keeps over its runs, and the orders to it."""

    def __init__(self, world: World, node: SimNode, log: Log) -> None:
        self._world = world
        self._node = node
        self._log = log
        self._rng = world.rng(f"{node.name} store")
        self._disk = PlayedDisk(log.entries)
        self._done_at = 0.0
        self._replica: SimReplica
        self.store: DurableStore

    @property
    def led_at(self) -> float:
        """Since when it leads, on the node's clock."""
        return self._replica.led_at

    @property
    def is_leading(self) -> bool:
        """True if what it is asked goes to the log."""
        return self._node.is_awake and self._replica.is_leading

    def make_store(self, broker: Broker) -> DurableStore:
        """The store of a new run."""
        node, run = self._node, self._node.runs
        self._replica = SimReplica(self._log, lambda: node.is_alive and node.runs == run)
        self.store = DurableStore(
            broker,
            StoreSettings(),
            cast("Replica", self._replica),
            wall_ms=lambda: DAY_MS + round(self._world.now * 1_000),
            random=self._rng.randbytes,
            now=self._node.clock(),
        )
        return self.store

    def open(self) -> None:
        """The run begins: read what is there."""
        disk = self._disk
        self._later([Opened(None, self._log.last, 1, disk.applied, 0, [], disk.table.totals, {b"work": 0})])

    def give(self, order: StoreOutput) -> None:
        """The node orders this."""
        run = self._node.runs
        self._done_at = max(self._done_at, self._world.now + self._rng.uniform(0.0, _DISK_S_MAX))
        self._world.at(self._done_at, partial(self._perform, run, order))

    def _perform(self, run: int, order: StoreOutput) -> None:
        if run == self._node.runs and self._node.is_alive:
            self._tell(run, self._disk.perform(order))

    def _later(self, heard: list[StoreInput]) -> None:
        run = self._node.runs
        self._world.after(self._rng.uniform(0.0, _DISK_S_MAX), lambda: self._tell(run, heard))

    def _tell(self, run: int, heard: list[StoreInput]) -> None:
        for given in heard:
            self._node.when_it_goes_on(partial(self._node.hear_store, run, given))


class GroupLoad:
    """Submits requests of serial groups at the node that leads, until a time, and cancels some."""

    def __init__(self, world: World, disks: Sequence[SimDisk], until: float) -> None:
        self._world = world
        self._disks = disks
        self._until = until
        self._rng = world.rng("groups")
        self._numbers = 0
        self._later()

    def _later(self) -> None:
        pause_s = self._rng.expovariate(_SUBMITS_PER_S)
        if self._world.now + pause_s < self._until:
            self._world.after(pause_s, self._submit)

    def _submit(self) -> None:
        self._later()
        self._numbers += 1
        request = self._numbers.to_bytes(durable.ID_BYTES, "big")
        group = Serial(self._rng.choice((0, 0, 9)), f"group {self._rng.randrange(_GROUPS)}")
        body = message_of(f"group.{self._numbers}").encode()
        frame = durable.encode(Submit(request, b"work", [body], priority=group))
        self._order(Submitted("", [msgspec.Raw(frame)]))
        if self._rng.random() < _CANCELLED:
            self._world.after(self._rng.expovariate(1.0), lambda: self._order(Cancelled(request)))

    def _order(self, command: Submitted | Cancelled) -> None:
        for disk in self._disks:
            if disk.is_leading:
                disk.store._desk.take(Order(command, 1))
