"""PZQ on one node under random faults, in virtual time: consumers that die, a disk that stalls, a role that
comes and goes. What must hold is checked where the front sends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from bstar.star import Tick
from bstar.wire import pzq
from bstar.wire.durable import State
from bstar_broker.core import Output
from bstar_broker.core.outputs import FrontSend
from bstar_broker.fronts.pzq.front import PzqSettings
from support.pzq_stage import Stage

CONSUMERS = 3
PATIENCE_S = 2.0
TURNS = 2_000
CALM_TURNS_MAX = 4_000
# What happens in a turn, and how often.
ACTIONS = {
    "send": 40, "consume": 70, "say late": 4, "die": 2, "come": 4, "fill": 2, "stall": 1, "go on": 6,
    "yield": 0.5,
}  # fmt: skip


class PzqWorld(Stage):
    """One run. ``stored``: bodies that a producer was told are stored; ``done``: those that a consumer has
    acknowledged.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}/pzq")
        self.counts: Counter[str] = Counter()
        self.stored: set[bytes] = set()
        self.done: set[bytes] = set()
        # Keys whose acknowledgement the node took since it began to serve.
        self._taken: set[bytes] = set()
        self._alive: list[dict[bytes, bytes] | None] = [{} for _ in range(CONSUMERS)]
        self._late: list[bytes] = []
        self._bodies: dict[bytes, bytes] = {}
        # By message id: when the producer sends it again.
        self._open: dict[bytes, float] = {}
        self._numbers = 0
        self._words = 20_000
        self._peer_state: Literal["gone", "stands by", "serves"] = "stands by"
        self._peer_until = 0.0
        in_flight = self.rng.choice((1, 4, 32))
        super().__init__(
            consumers=CONSUMERS, settings=PzqSettings(ack_timeout_s=1.0, in_flight_max=in_flight)
        )

    # --- what the node sends ------------------------------------------------------------------------------

    def carry_out(self, outputs: Iterable[Output]) -> None:
        """Look at each message first."""
        outputs = list(outputs)
        for output in outputs:
            if isinstance(output, FrontSend) and output.door == "consumers":
                self._look_at_delivery(output.frames[0])
            elif isinstance(output, FrontSend) and output.door == "producers":
                self._look_at_answer(*output.frames[1:3])
        super().carry_out(outputs)

    def _look_at_delivery(self, key: bytes) -> None:
        record = self.table.get(pzq.request_of(key))
        assert record is not None, f"{key!r} is delivered after its acknowledgement was applied"
        assert record.state == State.PENDING, f"{key!r} is delivered in state {record.state}"
        assert key not in self._taken, f"{key!r} is delivered after its acknowledgement was taken"

    def _look_at_answer(self, message_id: bytes, status: bytes) -> None:
        if status == pzq.STORED:
            self.counts["stored"] += 1
            self.stored.add(message_id)
            self._open.pop(message_id, None)
        else:
            self.counts["refused"] += 1

    # --- what befalls it ------------------------------------------------------------------------------------

    def run(self) -> None:
        """The storm, then the calm."""
        names, weights = list(ACTIONS), list(ACTIONS.values())
        for _ in range(TURNS):
            getattr(self, f"_{self.rng.choices(names, weights)[0].replace(' ', '_')}")()
            self._turn()
        self._calm_down()

    def _turn(self) -> None:
        self.now += self.rng.choice((0.001, 0.01, 0.05, 0.2))
        if not self.node.is_active:
            self._taken.clear()
        if self._peer_state == "serves" and self.now >= self._peer_until:
            self._peer_state = "gone"
        elif self._peer_state == "gone" and self.node.is_active:
            self._peer_state = "stands by"
            self.counts["comes to serve"] += 1
        self._words += 1
        if self._peer_state != "gone":
            is_serving = self._peer_state == "serves"
            self._peer(self._words, 3 if is_serving else 4, self._epoch if is_serving else 0)
        self.carry_out(self.node.step(Tick(), self.now))
        for message_id in [each for each, due in self._open.items() if self.now >= due]:
            self._produce(message_id)
        self.pump()
        self._hand_out()

    def _hand_out(self) -> None:
        heard, self.heard = self.heard, []
        alive = [each for each in self._alive if each is not None]
        for key, *rest in heard:
            self.counts["delivered"] += 1
            self._bodies[key] = rest[-1]
            # With nobody there it was under way to one that has died.
            if alive:
                self.rng.choice(alive)[key] = rest[-1]

    def _send(self) -> None:
        self._numbers += 1
        self._produce(b"%d" % self._numbers)

    def _produce(self, message_id: bytes) -> None:
        self._open[message_id] = self.now + PATIENCE_S
        self.produce(message_id, b"", message_id)

    def _say(self, key: bytes, status: bytes) -> None:
        before = self.front.counts["done"]
        if status == pzq.DONE:
            self.done.add(self._bodies[key])
        # The answer may make the front send at once.
        if status == pzq.DONE and self.node.is_active:
            self._taken.add(key)
        self.ack(key, status)
        if self.front.counts["done"] == before:
            self._taken.discard(key)
        self.counts[f"said {status.decode()}"] += 1

    def _consume(self) -> None:
        busy = [each for each in self._alive if each]
        if not busy:
            return
        has = self.rng.choice(busy)
        key = self.rng.choice(list(has))
        del has[key]
        match self.rng.choices(("done", "not done", "nothing"), (80, 10, 10))[0]:
            case "done":
                self._say(key, pzq.DONE)
            case "not done":
                self._say(key, b"0")
            case _:
                self._late.append(key)

    def _say_late(self) -> None:
        if self._late:
            key = self._late.pop(self.rng.randrange(len(self._late)))
            self._say(key, self.rng.choice((pzq.DONE, pzq.DONE, b"0")))

    def _die(self) -> None:
        self._change(None)

    def _come(self) -> None:
        self._change({})

    def _change(self, to: dict[bytes, bytes] | None) -> None:
        found = [place for place, each in enumerate(self._alive) if (each is None) != (to is None)]
        if found:
            self._alive[self.rng.choice(found)] = to
            self.counts["consumers come" if to is not None else "consumers die"] += 1
            self.connect(sum(each is not None for each in self._alive))

    def _fill(self) -> None:
        self.room = self.rng.choice((0, 1, 5))

    def _stall(self) -> None:
        self.counts["stalls"] += not self.is_held
        self.is_held = True

    def _go_on(self) -> None:
        self.room = 1_000_000
        self.release()

    def _yield(self) -> None:
        if self.node.is_active:
            self.counts["yields"] += 1
            self._epoch = self.node.machine.epoch + 1
            self._peer_state = "serves"
            self._peer_until = self.now + self.rng.uniform(0.5, 3.0)

    def _calm_down(self) -> None:
        self._go_on()
        for _ in range(CONSUMERS):
            self._come()
        for _ in range(CALM_TURNS_MAX):
            self._turn()
            if self._peer_state == "gone" and not self._open:
                self._send()
            for has in self._alive:
                for key in list(has or ()):
                    del has[key]  # type: ignore[union-attr]
                    self._say(key, pzq.DONE)
            if not self._open and not self.kept and self.node.is_active:
                break
