"""A node with PZQ and a durable store, in virtual time, and the sockets of those who meet it."""

from __future__ import annotations

from bstar.star import Tick
from bstar_broker.core.front import Front, Inlet
from bstar_broker.core.snapshot import FrontState
from bstar_broker.fronts.pzq.front import PzqFront, PzqSettings
from bstar_broker.store.core.settings import StoreSettings
from support.solo_store import DAY_MS, SoloStore


class Stage(SoloStore):
    """A node with PZQ. ``consumers`` is how many are connected; ``heard`` what they have got."""

    def __init__(
        self, *, consumers: int = 1, settings: PzqSettings | None = None, store: StoreSettings | None = None
    ) -> None:
        own = settings or PzqSettings(ack_timeout_s=5.0, in_flight_max=4)
        # The socket to the consumers has room for so many messages.
        self.room = 1_000
        self.heard: list[list[bytes]] = []

        def make(inlet: Inlet) -> list[Front]:
            return [PzqFront(inlet, own, wall_us=self.wall_us, random=self._random)]

        super().__init__(store, make_fronts=make)
        self.connect(consumers)

    def wall_us(self) -> int:
        return 1_000 * DAY_MS + round(self.now * 1_000_000)

    def connect(self, consumers: int) -> None:
        self.carry_out(self.node.front_connected("pzq", "consumers", consumers, self.now))
        self.pump()

    def produce(self, *frames: bytes, producer: bytes = b"p1") -> list[list[bytes]]:
        """What the producer hears."""
        sent = self.front_hears("pzq", "producers", producer, *frames)
        self.pump()
        return [output.frames[1:] for output in sent if output.door == "producers"]

    def ack(self, *frames: bytes) -> None:
        """A consumer says this."""
        self.front_hears("pzq", "consumers", *frames)
        self.pump()

    def monitor(self, *frames: bytes) -> list[bytes]:
        [sent] = self.front_hears("pzq", "monitor", b"m", *frames)
        return sent.frames

    def pump(self) -> None:
        """The socket takes what it has room for, one message for each consumer in a millisecond."""
        while self.left or (self.room and self.front.levels["held"] and self.front.peers["consumers"]):
            if not self.left:
                self.now += 0.001
                self.carry_out(self.node.step(Tick(), self.now))
                continue
            output = self.left.pop(0)
            if output.door != "consumers":
                continue
            if self.room and self.front.peers["consumers"]:
                self.room -= 1
                self.heard.append(output.frames)
            else:
                self.carry_out(self.node.front_unsent(output, self.now, is_gone=False))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            super().wait(min(0.05, until - self.now))
            self.pump()

    @property
    def front(self) -> FrontState:
        return self.node.fronts.all["pzq"].state(self.now)

    @property
    def kept(self) -> int:
        """How many records the store has, in whatever state."""
        totals = self.table.totals
        return totals.pending + totals.answered + totals.dead + totals.cancelled

    @property
    def bodies(self) -> list[list[bytes]]:
        return [frames[frames.index(b"") + 1 :] for frames in self.heard]
