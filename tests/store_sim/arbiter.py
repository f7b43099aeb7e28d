"""The arbiter with its in-sync sets: it is killed and started again, and keeps them on a disk or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bstar.star.arbiter import Reply
from bstar.star.in_sync import InSyncSet, InSyncSets, KeepSets
from bstar.wire.arbiter import Question, decode_answer, decode_question, encode_answer, encode_question
from bstar_broker.store.core.events import ArbiterSaid, AskArbiter
from sim.world import Process, World
from store_sim.link import SimLink

if TYPE_CHECKING:
    from store_sim.node import SimNode

_TTL_MS = 1_000


class SimArbiter(Process):
    """``is_kept``: it has a state directory."""

    def __init__(self, world: World, nodes: list[SimNode], *, is_kept: bool) -> None:
        super().__init__(world, "arbiter")
        self._is_kept = is_kept
        self._kept: dict[str, InSyncSet] = {}
        self._nodes = {node.name: node for node in nodes}
        self.sets: InSyncSets
        self.there = {node.name: SimLink(world, self.rng, self._reader(node)) for node in nodes}
        self.back = {node.name: SimLink(world, self.rng, self._teller(node)) for node in nodes}

    def start(self) -> None:
        """A new run of the process."""
        self.boot()
        self.sets = InSyncSets(dict(self._kept) if self._is_kept else None, now=self.clock())

    def crash(self) -> None:
        """The process is gone, and its connections."""
        self.is_alive = False
        self.world.note("arbiter dies")
        for links in (self.there, self.back):
            for link in links.values():
                link.mend()

    def set_cut(self, name: str, *, is_cut: bool) -> None:
        """Cut the node with this name off, or connect it again."""
        for link in (self.there[name], self.back[name]):
            if is_cut:
                link.cut()
            else:
                link.mend()

    def ask(self, node: SimNode, asked: AskArbiter) -> None:
        """A node's question leaves."""
        run = str(node.runs)
        question = Question("look", "p", node.role, run, asked.number, _TTL_MS, asked.claim)
        self.there[node.name].send(encode_question(question))

    def _reader(self, node: SimNode) -> Callable[[list[bytes], float], None]:
        def read(frames: list[bytes], sent_at: float) -> None:
            if not self.is_alive:
                return
            question = decode_question(frames)
            assert question.store is not None
            for output in self.sets.receive(question, question.store, self.clock()):
                match output:
                    case KeepSets():
                        self.world.note(output.text)
                        self._kept = dict(self.sets.all)
                    case Reply():
                        self.back[node.name].send(encode_answer(output.answer))

        return read

    def _teller(self, node: SimNode) -> Callable[[list[bytes], float], None]:
        def tell(frames: list[bytes], sent_at: float) -> None:
            answer = decode_answer(frames)
            if answer.node == str(node.runs) and node.is_alive:
                node.hear_arbiter(ArbiterSaid(answer.number, answer.store))

        return tell
