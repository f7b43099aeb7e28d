"""One node: its replica, its disk, and what the simulated Binary Star makes of it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Literal

import msgspec

from bstar_broker.core.outputs import Output
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    AskArbiter,
    Damaged,
    DiskInput,
    Export,
    Exported,
    Import,
    LogRead,
    Opened,
    ReadLog,
    Rebuild,
    ToPeer,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.replica import Replica, ReplicaSettings
from sim.world import Process, World
from store_sim.disk import SimDisk
from store_sim.link import SimLink

if TYPE_CHECKING:
    from store_sim.arbiter import SimArbiter
    from store_sim.promises import Promises

SETTINGS = ReplicaSettings(heartbeat_s=0.25, peer_timeout_s=2.0, catch_up_bytes_s=1e5)


class SimNode(Process):
    """``role`` is fixed. ``epoch`` is the Binary Star's: 0 while the node is passive; ``epoch_max`` is what
    its epoch file holds.
    """

    def __init__(self, world: World, role: Literal["primary", "backup"], promises: Promises) -> None:
        super().__init__(world, role)
        self.role = role
        self.disk = SimDisk(world, self.rng)
        self.link: SimLink
        self.arbiter: SimArbiter | None = None
        self.promises = promises
        self.replica: Replica
        self.epoch = 0
        self.epoch_max = 0
        # When this node last heard, over the pair's link, that the other is active.
        self.heard_active_at = 0.0
        self._ready_epoch = 0
        self._began = 0

    # --- the process ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new run of the process."""
        self.boot()
        self.epoch = 0
        self._ready_epoch = self._began = 0
        self.heard_active_at = self.world.now
        settings = msgspec.structs.replace(SETTINGS, has_arbiter=self.arbiter is not None)
        self.replica = Replica(
            pair="p", role=self.role, settings=settings, new_store=self.rng.randbytes(16), now=self.clock()
        )
        run = self.runs
        self.disk.open(lambda given: self.when_it_goes_on(lambda: self._hear(given, run)))
        self.arrange()

    def crash(self) -> None:
        """kill -9, or the power."""
        self.is_alive = self.is_frozen = False
        self._waiting.clear()
        self.disk.crash()
        self.promises.crashed(self)
        self.world.note(f"{self.name} dies")

    def drift(self, rate: float) -> None:
        """Its clock goes faster or slower from now on, as that of a host whose time is corrected."""
        self._offset += self.world.now * (self._rate - rate)
        self._rate = rate
        self._wake_at = inf
        self.arrange()

    def deadline(self) -> float | None:
        """When the machine's timer is due."""
        return self.replica.next_deadline()

    def on_time(self) -> None:
        """It is due."""
        self.carry_out(self.replica.handle_timer(self.clock()))

    def catch_up(self) -> None:
        """What waited while it was frozen comes by ``when_it_goes_on``."""

    # --- inputs ---------------------------------------------------------------------------------------------

    def _hear(self, given: DiskInput, run: int) -> None:
        if run != self.runs or not self.is_alive:
            return
        replica, now = self.replica, self.clock()
        outputs: list[Output] = []
        match given:
            case Opened():
                outputs = replica.opened(given, now)
            case Damaged():
                outputs = replica.damaged(given, now)
            case Written():
                outputs = replica.written(given, now)
            case Applied():
                outputs = replica.applied(given, now)
                self.promises.applied(self, given.number)
            case LogRead():
                outputs = replica.log_read(given, now)
            case Exported():
                outputs = replica.exported(given, now)
        self.carry_out(outputs)

    def receive(self, frames: list[bytes], sent_at: float) -> None:
        """A message of the peer's store."""
        run = self.runs

        def take() -> None:
            if self.is_alive and run == self.runs:
                self.promises.heard(self, sent_at)
                self.carry_out(self.replica.receive(frames, self.clock()))

        self.when_it_goes_on(take)

    def hear_arbiter(self, given: ArbiterSaid) -> None:
        """The arbiter answers."""
        self._later(lambda: self.replica.arbiter_said(given, self.clock()))

    def lose_peer(self) -> None:
        """The connection broke."""
        self._later(lambda: self.replica.peer_lost(self.clock()))

    def hear_active(self, sent_at: float) -> None:
        """The pair's link says that the other node is active."""
        if self.is_awake:
            self.heard_active_at = self.world.now
            self.promises.heard(self, sent_at)
            self.carry_out(self.replica.peer_serves(self.clock()))

    def lead(self) -> None:
        """Become active."""
        self.epoch_max += 1
        self.epoch_max += (self.epoch_max % 2 == 0) == (self.role == "primary")
        self.epoch = self.epoch_max
        self.world.note(f"{self.name} is active in {self.epoch}")
        self.carry_out(self.replica.lead(self.epoch, self.clock()))

    def follow(self) -> None:
        """Become passive."""
        self.epoch = 0
        self.heard_active_at = self.world.now
        self.world.note(f"{self.name} is passive")
        self.carry_out(self.replica.follow(self.clock()))

    def propose(self, body: bytes) -> None:
        """A client's command."""
        if self.is_awake and self.replica.is_leading:
            at_ms = int(self.world.now * 1000)
            outputs = self.replica.propose(body, at_ms, self.clock())
            self.promises.proposed(self, self.replica.last, body)
            self.carry_out(outputs)

    def force(self) -> None:
        """The operator's word."""
        outputs = self.replica.force(self.clock())
        if outputs:
            self.promises.forced(self)
        self.carry_out(outputs)

    def _later(self, give: Callable[[], list[Output]]) -> None:
        run = self.runs

        def take() -> None:
            if self.is_alive and run == self.runs:
                self.carry_out(give())

        self.when_it_goes_on(take)

    # --- outputs --------------------------------------------------------------------------------------------

    def carry_out(self, outputs: list[Output]) -> None:
        """What the machine ordered, in its order."""
        for output in outputs:
            if isinstance(output, Write) and output.mark is not None:
                mark = output.mark
                self.world.note(
                    f"{self.name} marks in_sync={mark.is_in_sync} alone={mark.is_alone} leader={mark.leader}"
                )
            match output:
                case Write() | Import() | Trim() | ReadLog() | Export() | Rebuild():
                    self.disk.give(output)
                case ToPeer():
                    self.link.send(output.frames)
                case AskArbiter():
                    assert self.arbiter is not None
                    self.arbiter.ask(self, output)
        replica = self.replica
        if replica.epoch != self._ready_epoch:
            if not self._began or replica.epoch == 0:
                self.world.note(f"{self.name} leads the store in {replica.epoch}")
            self._ready_epoch = replica.epoch
            self._began = replica.last.number if replica.epoch else 0
            self.promises.led(self, self._began)
        if self._began and replica.applied_to >= self._began:
            self._began = 0
            self.promises.ready(self)
        self.arrange()
