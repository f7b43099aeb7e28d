"""The arbiter's process, and its connections to the two nodes (bstar.pair.arbiter, arbiter_link)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bstar.errors import RemoteProtocolError
from bstar.star.arbiter import ArbiterMachine, ArbiterOutput, BallotGiven, BallotReturned, Reply
from bstar.wire import arbiter as wire
from bstar.wire.arbiter import Question
from sim.network import RECONNECT_MAX_S, RETRANSMIT_S, Frames, Path
from sim.world import Process, World

if TYPE_CHECKING:
    from sim.node import SimNode


class ArbiterLink:
    """One node's DEALER. In order and without loss while a connection lasts; a new one knows nothing of what
    was under way. Now and then what an older connection brought is read after what a newer one did.
    """

    def __init__(self, node: SimNode, arbiter: SimArbiter, there: Path, back: Path) -> None:
        self.node = node
        self.arbiter = arbiter
        self.there = there
        self.back = back
        self._world = node.world
        self._rng = self._world.rng(f"link of {node.name} to the arbiter")
        self._runs = (0, 0)
        self._up_from = 0.0
        self._arrives_at = {id(there): 0.0, id(back): 0.0}
        self._held: list[tuple[Path, tuple[int, int], Frames]] = []

    def ask(self, question: Question) -> None:
        """From the node; dropped if there is no connection."""
        if self._is_up():
            self._carry(self.there, wire.encode_question(question))

    def answer(self, frames: Frames) -> None:
        """From the arbiter."""
        if self._is_up():
            self._carry(self.back, frames)

    def _is_up(self) -> bool:
        if not (self.node.is_alive and self.arbiter.is_alive):
            return False
        runs = (self.node.runs, self.arbiter.runs)
        if runs != self._runs:
            # A process is new: it takes a moment to connect again.
            self._runs = runs
            self._up_from = self._world.now + self._rng.random() * RECONNECT_MAX_S
        return self._world.now >= self._up_from

    def _carry(self, path: Path, frames: Frames) -> None:
        if path.is_blocked:
            self._held.append((path, self._runs, frames))
            return
        when = self._world.now + path.travel_s()
        if path.loss and path.rng.random() < path.loss:
            when += RETRANSMIT_S
        if path.reorders and path.rng.random() < path.reorders:
            when += path.rng.random() * path.rng.choice((0.05, 0.5, 3.0))
        else:
            self._arrives_at[id(path)] = when = max(when, self._arrives_at[id(path)])
        self._world.at(when, partial(self._arrive, path, self._runs, frames))

    def _arrive(self, path: Path, runs: tuple[int, int], frames: Frames) -> None:
        if path.is_blocked:
            self._held.append((path, runs, frames))
        elif path is self.there:
            # What a node that is dead by now had sent still arrives.
            if runs[1] == self.arbiter.runs and self.arbiter.is_alive:
                self.arbiter.hear(self, frames)
        elif runs[0] == self.node.runs:
            self.node.hear_arbiter(frames)

    def heal(self) -> None:
        """What waited arrives at once, or never, if the connection was given up meanwhile."""
        held, self._held = self._held, []
        is_given_up = self._rng.random() < 0.5
        for path, runs, frames in held:
            if path.is_blocked:
                self._held.append((path, runs, frames))
            elif not is_given_up:
                self._world.after(path.travel_s(), partial(self._arrive, path, runs, frames))


class SimArbiter(Process):
    """The third voter over all its runs."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.machine: ArbiterMachine
        self._inbox: list[tuple[ArbiterLink, Frames]] = []

    def start(self) -> None:
        """A new run."""
        self.boot()
        self._inbox.clear()
        self.machine = ArbiterMachine(now=self.clock())
        self.arrange()

    def die(self) -> None:
        """The process is gone."""
        if self.is_alive:
            self.world.note(f"{self.name} dies")
            self.is_alive = self.is_frozen = False
            self.release()

    def deadline(self) -> float | None:
        return self.machine.next_deadline()

    def on_time(self) -> None:
        self._do(None, self.machine.handle_timer(self.clock()))

    def hear(self, link: ArbiterLink, frames: Frames) -> None:
        """A node's question."""
        if self.is_frozen:
            self._inbox.append((link, frames))
            return
        try:
            question = wire.decode_question(frames)
        except RemoteProtocolError as error:
            raise AssertionError("nodes send nothing else") from error
        self._do(link, self.machine.receive(question, self.clock()))
        self.arrange()

    def catch_up(self) -> None:
        inbox, self._inbox = self._inbox, []
        # The reactor notices that it was away.
        self._do(None, self.machine.stalled(self.world.now - self.frozen_at, self.clock()))
        for link, frames in inbox:
            self.hear(link, frames)

    def _do(self, link: ArbiterLink | None, outputs: list[ArbiterOutput]) -> None:
        for output in outputs:
            match output:
                case Reply():
                    assert link is not None
                    link.answer(wire.encode_answer(output.answer))
                case BallotGiven():
                    self.world.note(f"{self.name} gives its ballot to {output.role}")
                case BallotReturned():
                    how = "runs out" if output.has_expired else "comes back"
                    self.world.note(f"{self.name}: the ballot of {output.role} {how}")
                case _:
                    raise AssertionError(output)
