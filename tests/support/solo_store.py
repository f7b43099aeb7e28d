"""A node that serves alone with a durable store whose disk is memory, in virtual time.

Replication is played: an entry counts as being on both disks as soon as it is written, unless the test holds
the disk (``is_held``) or takes the second copy away (``replica.copies``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from bstar.star import ArbiterAnswer, PeerMessage, Publish, Role, StarMachine, StarSettings, Tick
from bstar.wire import durable, native
from bstar.wire.arbiter import Answer
from bstar.wire.durable import Service
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Output, Send, StoreOutput
from bstar_broker.core.front import Front, Inlet
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import FrontSend, Notice, StoreInput
from bstar_broker.store.core import commands
from bstar_broker.store.core.commands import Began
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    Damaged,
    Exported,
    LogRead,
    Opened,
    Write,
    Written,
)
from bstar_broker.store.core.replica import Replica
from bstar_broker.store.core.settings import StoreSettings
from bstar_testing.memory.disk import LogAndTable
from support.memory_table import MemoryTable

DAY_MS = 1_800_000_000_000


class PlayedReplica:
    """The face of ``Replica``, with a peer that is always in sync."""

    def __init__(self) -> None:
        self.is_leading = False
        self.trouble = ""
        self.copies = 2
        self.last = START
        self.at_ms = 0
        self.committed = self.applied_to = self.lag = 0
        self.is_peer_heard = True
        self.catch_up = 1.0
        self.why_no_groups = ""
        self._epoch = 0

    def opened(self, opened: Opened, now: float) -> list[Output]:
        self.last = opened.last
        return []

    def lead(self, epoch: int, now: float) -> list[Output]:
        self.is_leading, self._epoch = True, epoch
        return self.propose(commands.encode([Began("primary")]), DAY_MS, now)

    def follow(self, now: float) -> list[Output]:
        self.is_leading = False
        return []

    def copies_of(self, number: int) -> int:
        return self.copies

    def peer_serves(self, now: float) -> list[Output]:
        return []

    def force(self, now: float) -> list[Output]:
        raise AssertionError

    def propose(self, encoded: bytes, at_ms: int, now: float) -> list[Output]:
        self.last = Position(self._epoch, self.last.number + 1)
        self.at_ms = max(at_ms, self.at_ms)
        return [Write(entries=(Entry.of(self.last, self.at_ms, encoded),))]

    def written(self, written: Written, now: float) -> list[Output]:
        self.committed = written.last.number
        return [Write(apply_to=self.committed)]

    def damaged(self, damaged: Damaged, now: float) -> list[Output]:
        raise AssertionError(damaged.text)

    def applied(self, applied: Applied, now: float) -> list[Output]:
        self.applied_to = applied.number
        return []

    def log_read(self, read: LogRead, now: float) -> list[Output]:
        raise AssertionError

    def exported(self, exported: Exported, now: float) -> list[Output]:
        raise AssertionError

    def receive(self, frames: list[bytes], now: float) -> list[Output]:
        raise AssertionError

    def peer_lost(self, now: float) -> list[Output]:
        raise AssertionError

    def arbiter_said(self, given: ArbiterSaid, now: float) -> list[Output]:
        raise AssertionError

    def handle_timer(self, now: float) -> list[Output]:
        return []

    def next_deadline(self) -> float | None:
        return None


class PlayedDisk(LogAndTable[MemoryTable]):
    """What a disk answers that has ``log``, and the table that its entries make. It may share the log."""

    def __init__(self, log: list[Entry]) -> None:
        super().__init__(log, MemoryTable())

    def perform(self, order: StoreOutput) -> list[StoreInput]:
        """Carry this order out."""
        if not isinstance(order, Write):
            return [self.look_up(order)]
        heard = self.apply_to(order.apply_to)
        if order.entries:
            heard.append(Written(order.entries[-1].position, order.order))
        return heard


class SoloStore(PlayedDisk):
    """The node, its disk, and what it has sent. ``now`` and ``wall_ms`` move with ``wait``."""

    def __init__(
        self,
        settings: StoreSettings | None = None,
        make_fronts: Callable[[Inlet], Sequence[Front]] = lambda inlet: [],
        has_arbiter: bool = False,
        **limits: Any,
    ) -> None:
        self.now = 0.0
        # The number of the last state message, by which a claim asks.
        self._said = 0
        # How far the wall clock is ahead of the node's own.
        self.skipped_ms = 0
        super().__init__([])
        self.is_held = False
        self.sent: list[list[bytes]] = []
        # What fronts have sent.
        self.left: list[FrontSend] = []
        # Lines for the log.
        self.notices: list[str] = []
        self._waiting: deque[StoreOutput] = deque()
        self._numbers = 0
        self.replica = PlayedReplica()
        self._arbiter = "tcp://127.0.0.1:5010" if has_arbiter else ""
        star = StarSettings(pair="test", role=Role.PRIMARY, arbiter=self._arbiter)
        machine = StarMachine(star, node="we", epoch=0, now=0.0)
        self.node = FrontedNode(
            machine,
            BrokerSettings(**limits),
            node_id=bytes(16),
            drain_timeout_s=5.0,
            version="test",
            now=0.0,
            make_store=lambda broker: DurableStore(
                broker,
                settings or StoreSettings(),
                cast("Replica", self.replica),
                wall_ms=self.wall_ms,
                random=self._random,
                now=0.0,
            ),
            make_fronts=make_fronts,
        )
        self.hear(Opened(None, START, 1, 0, 0, [], self.table.totals, {}))
        self._peer(1, 2)
        self._peer(2, 4)
        if has_arbiter:
            self.grant()
        assert self.node.is_active

    def wall_ms(self) -> int:
        return DAY_MS + round(self.now * 1000) + self.skipped_ms

    def _random(self, count: int) -> bytes:
        self._numbers += 1
        return self._numbers.to_bytes(count, "big")

    def _peer(self, seq: int, state: int, epoch: int = 0) -> None:
        said = PeerState(
            state,
            "test",
            "backup",
            "they",
            seq,
            epoch,
            heartbeat_ms=1000,
            timeout_ms=2000,
            arbiter=self._arbiter,
        )
        self.carry_out(self.node.step(PeerMessage(said), self.now))

    # --- the world ------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        until = self.now + seconds
        seq = 1_000 + round(self.now * 1_000)
        while self.now < until:
            self.now = min(until, self.now + 0.05)
            seq += 1
            self._peer(seq, 4)
            self.carry_out(self.node.step(Tick(), self.now))

    def step_down(self) -> None:
        """The peer serves, in a higher epoch."""
        self._peer(10_000 + round(self.now * 1_000), 3, epoch=self.node.machine.epoch + 1)

    def miss_peer(self) -> None:
        """The peer falls silent for so long that a client's request is the vote."""
        for _ in range(30):
            self.tick(0.25)

    def tick(self, seconds: float) -> None:
        """Time passes without a word of the peer."""
        self.now += seconds
        self.carry_out(self.node.step(Tick(), self.now))

    def grant(self) -> None:
        """The arbiter grants the claim that is under way."""
        answer = ArbiterAnswer(Answer("we", self._said, is_granted=True))
        self.carry_out(self.node.step(answer, self.now))

    def hear(self, given: StoreInput) -> None:
        self.carry_out(self.node.hear_store(given, self.now))

    def say(self, *frames: bytes, sender: bytes = b"client") -> list[list[bytes]]:
        """A message from this peer; what the node has sent since, the routing ids first."""
        before = len(self.sent)
        self.carry_out(self.node.receive_frames([sender, *frames], self.now))
        return self.sent[before:]

    def front_hears(self, front: str, door: str, *frames: bytes) -> list[FrontSend]:
        """A message comes through a door of a front; what fronts have sent since."""
        before = len(self.left)
        self.carry_out(self.node.receive_front(front, door, list(frames), self.now))
        return self.left[before:]

    def carry_out(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self.sent.append(output.frames)
            elif isinstance(output, FrontSend):
                self.left.append(output)
            elif isinstance(output, Notice):
                self.notices.append(output.text)
            elif isinstance(output, Publish):
                self._said = output.message.seq or 0
            elif isinstance(output, StoreOutput):
                self._waiting.append(output)
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """The disk carries its orders out."""
        self.is_held = False
        while self._waiting:
            order = self._waiting.popleft()
            self.log += order.entries if isinstance(order, Write) else ()
            for given in self.perform(order):
                self.carry_out(self.node.hear_store(given, self.now))

    # --- native clients and workers -------------------------------------------------------------------------

    def ask(self, service: Service, *body: bytes, sender: bytes = b"client") -> list[native.Message]:
        """A native request of a client; the answers so far."""
        self._numbers += 1
        request = native.encode_request(
            native.identity(b"c" * 16, self._numbers),
            service.value,
            list(body),
            ttl_ms=0,
            epoch=0,
            is_repeated=False,
        )
        return [
            native.decode(frames[1:]) for frames in self.say(*request, sender=sender) if frames[0] == sender
        ]

    def submit(
        self, request: bytes, service: bytes = b"work", body: bytes = b"x", **options: Any
    ) -> durable.Receipt:
        """Submit one request; its receipt."""
        [answer] = self.ask(
            Service.SUBMIT, durable.encode(durable.Submit(request, service, [body], **options))
        )
        assert answer.command == native.FINAL, answer.body
        return durable.decode(answer.body[0], durable.Receipt)

    def status(self, request: bytes) -> durable.Standing:
        """Its standing."""
        [answer] = self.ask(Service.STATUS, durable.encode(durable.Fetch(request)))
        return durable.decode(answer.body[0], durable.Standing)
