"""Every order of a few faults, of two production replicas beside an arbiter that keeps its sets.

``make store-sim EXPLORE=4``: breadth first from a pair in sync, each situation once. The
simulator (``run``) draws orders of events at random and lets them happen within messages and syncs. Here
nothing is drawn: after each step all that is under way arrives, and either no time passes or more than any
timeout. Two situations are one if marks, logs, leaderships and the arbiter's set compare alike; of times
counts whether they are over.

Always: a node that begins to serve the store has all that was acknowledged. From each situation in which no
disk was lost, when all faults end, the active node leads with both copies, whichever of the two is active.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

from bstar.star.arbiter import Reply
from bstar.star.in_sync import InSyncSets
from bstar.wire.arbiter import Question
from bstar_broker.core.outputs import Output
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    AskArbiter,
    Export,
    Exported,
    Import,
    LogRead,
    Opened,
    ReadLog,
    ToPeer,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.replica import Replica, ReplicaSettings
from store_sim.disk import SimDisk, State

DEPTH = 4
_TICK_S = 0.25
_TIMEOUT_S = 2.0
# Longer than every timeout, and than a leader's pause after a peer failed to join.
_LONG_S = 5.0
_CALM_S = 40.0
_SETTINGS = ReplicaSettings(heartbeat_s=_TICK_S, peer_timeout_s=_TIMEOUT_S, has_arbiter=True)
_ROLES: tuple[Literal["primary", "backup"], ...] = ("primary", "backup")

Step = tuple[str, str]


class _Disk(SimDisk):
    """A disk that syncs at once."""

    def __init__(self) -> None:
        self.durable = State()
        self._told = 0

    def perform(self, order: Write | Import | Trim | ReadLog | Export) -> list[Any]:
        """Carry this out; what the disk answers."""
        answers: list[Any] = self._carry_out(order, self.durable)
        if isinstance(order, Write | Import):
            answers.append(Written(self.durable.history.last, order.order))
        return answers


class _Node:
    def __init__(self, role: Literal["primary", "backup"]) -> None:
        self.role = role
        self.disk = _Disk()
        self.replica: Replica | None = None
        self.run = 0
        # The Binary Star's, 0 while it is passive.
        self.epoch = 0
        # The first entry of the epoch in which it leads, until that is applied: then it serves.
        self.began = 0
        self.led_in = 0
        self.is_arbiter_cut = False
        self.proposed: dict[int, bytes] = {}


class Situation:
    """Both nodes, their links and the arbiter. ``broken``: what a step broke, "" if nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: dict[str, _Node] = {role: _Node(role) for role in _ROLES}
        self.sets = InSyncSets({}, now=0.0)
        self.is_store_cut = self.is_pair_cut = False
        self.epoch_max = 0
        self.acknowledged: dict[int, bytes] = {}
        self.count = 0
        self.lost = ""
        self.broken = ""
        self._events: deque[tuple[str, str, int, Any]] = deque()
        for role in _ROLES:
            self._start(role)
        self._lead("primary")
        self.settle(_LONG_S)

    def other(self, role: str) -> _Node:
        """The other node."""
        return self.nodes["backup" if role == "primary" else "primary"]

    # --- steps ----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """What may happen now."""
        for role, node in self.nodes.items():
            if node.replica is None:
                yield "start", role
            else:
                yield "crash", role
                if not self.lost:
                    yield "lose disk", role
                if not node.epoch:
                    yield "activate", role
            yield ("mend arbiter" if node.is_arbiter_cut else "cut arbiter"), role
        yield ("mend store" if self.is_store_cut else "cut store"), ""
        yield ("mend pair" if self.is_pair_cut else "cut pair"), ""

    def take(self, step: Step, seconds: float) -> None:
        """Let this happen, and so much time pass."""
        what, role = step
        match what:
            case "start":
                self._start(role)
            case "crash" | "lose disk":
                self._crash(role)
                if what == "lose disk":
                    self.nodes[role].disk = _Disk()
                    self.lost = role
                    self._start(role)
            case "activate":
                if not self.is_pair_cut and self.other(role).epoch:
                    self._follow(self.other(role))
                self._lead(role)
            case "cut arbiter" | "mend arbiter":
                self.nodes[role].is_arbiter_cut = what == "cut arbiter"
            case "cut store" | "mend store":
                self.is_store_cut = what == "cut store"
                self._reconnect()
            case _:
                self.is_pair_cut = what == "cut pair"
                self._meet()
        self.settle(seconds)

    def _start(self, role: str) -> None:
        node = self.nodes[role]
        node.run += 1
        node.epoch = node.began = node.led_in = 0
        node.proposed = {}
        new = f"{role}{node.run}".encode().ljust(16, b".")
        node.replica = Replica(pair="p", role=node.role, settings=_SETTINGS, new_store=new, now=self.now)
        state = node.disk.durable
        last, epochs = state.history.last, list(state.history.epochs)
        opened = Opened(state.mark, last, state.first, state.applied, state.at_ms, epochs, Totals(), {})
        self._do(node, node.replica.opened(opened, self.now))
        self._reconnect()

    def _crash(self, role: str) -> None:
        node = self.nodes[role]
        node.replica = None
        node.epoch = 0
        self._reconnect()

    def _lead(self, role: str) -> None:
        node = self.nodes[role]
        assert node.replica is not None
        self.epoch_max += 1
        self.epoch_max += (self.epoch_max % 2 == 0) == (role == "primary")
        node.epoch = self.epoch_max
        self._do(node, node.replica.lead(node.epoch, self.now))

    def _follow(self, node: _Node) -> None:
        node.epoch = 0
        assert node.replica is not None
        self._do(node, node.replica.follow(self.now))

    def _reconnect(self) -> None:
        for node in self.nodes.values():
            if node.replica is not None:
                self._do(node, node.replica.peer_lost(self.now))

    def _meet(self) -> None:
        """Of two active nodes that hear each other the one in the lower epoch yields."""
        active = [node for node in self.nodes.values() if node.epoch]
        if len(active) == 2 and not self.is_pair_cut:
            self._follow(min(active, key=lambda node: node.epoch))

    # --- time -----------------------------------------------------------------------------------------------

    def settle(self, seconds: float) -> None:
        """A client writes, all that is under way arrives, and time passes."""
        self._deliver()
        self._write()
        self._deliver()
        until = self.now + seconds
        while self.now < until:
            self.now += _TICK_S
            for node in self.nodes.values():
                if node.replica is None:
                    continue
                self._do(node, node.replica.handle_timer(self.now))
                if self.other(node.role).epoch and not self.is_pair_cut:
                    self._do(node, node.replica.peer_serves(self.now))
            self._deliver()
        self._check()

    def _write(self) -> None:
        for node in self.nodes.values():
            if node.replica is not None and node.replica.is_leading:
                self.count += 1
                body = b"\x90%d" % self.count
                outputs = node.replica.propose(body, self.count, self.now)
                node.proposed[node.replica.last.number] = body
                self._do(node, outputs)

    def _do(self, node: _Node, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Write() | Import() | Trim() | ReadLog() | Export():
                    self._events += [
                        ("disk", node.role, node.run, each) for each in node.disk.perform(output)
                    ]
                case ToPeer():
                    self._events.append(("peer", self.other(node.role).role, 0, output.frames))
                case AskArbiter() if not node.is_arbiter_cut:
                    self._events.append(("arbiter", node.role, node.run, output))
        replica = node.replica
        assert replica is not None
        if replica.epoch != node.led_in:
            node.led_in = replica.epoch
            node.began = replica.last.number if replica.epoch else 0
            node.proposed = {}

    def _deliver(self) -> None:
        while self._events:
            kind, role, run, given = self._events.popleft()
            node = self.nodes[role]
            replica = node.replica
            if replica is None or (kind != "peer" and run != node.run):
                continue
            if kind == "disk":
                self._do(node, self._hear_disk(node, replica, given))
            elif kind == "arbiter":
                question = Question("look", "p", node.role, str(run), given.number, 1_000, given.claim)
                reply = self.sets.receive(question, given.claim, self.now)[-1]
                assert isinstance(reply, Reply)
                said = ArbiterSaid(given.number, reply.answer.store)
                self._do(node, replica.arbiter_said(said, self.now))
            elif not self.is_store_cut:
                self._do(node, replica.receive(given, self.now))

    def _hear_disk(self, node: _Node, replica: Replica, given: Any) -> list[Output]:
        match given:
            case Applied():
                outputs = replica.applied(given, self.now)
                body = node.proposed.pop(given.number, None)
                if body is not None and replica.epoch:
                    self.acknowledged[given.number] = body
                return outputs
            case Written():
                return replica.written(given, self.now)
            case LogRead():
                return replica.log_read(given, self.now)
            case Exported():
                return replica.exported(given, self.now)
        raise AssertionError(f"no answer of a disk: {given}")

    # --- what must hold -------------------------------------------------------------------------------------

    def _check(self) -> None:
        for node in self.nodes.values():
            replica = node.replica
            if replica is None or not node.began or replica.applied_to < node.began:
                continue
            node.began = 0
            missing = [n for n, body in self.acknowledged.items() if not node.disk.durable.has(n, body)]
            if missing:
                self.broken = f"the {node.role} serves without the acknowledged entries {missing}"

    def calm(self, role: str) -> str:
        """All faults end, and this node is the active one: why it does not lead with both copies; or ""."""
        self.is_store_cut = self.is_pair_cut = False
        for each in _ROLES:
            self.nodes[each].is_arbiter_cut = False
            if self.nodes[each].replica is None:
                self._start(each)
        self._reconnect()
        if self.other(role).epoch:
            self._follow(self.other(role))
        node = self.nodes[role]
        if not node.epoch:
            self._lead(role)
        until = self.now + _CALM_S
        while self.now < until and not self.broken:
            self.settle(_TICK_S)
            assert node.replica is not None
            if node.replica.copies == 2 and not node.began:
                return self.broken
        assert node.replica is not None
        return self.broken or f"the {role} does not lead with both copies: {node.replica.trouble}"

    def form(self) -> tuple[Any, ...]:
        """What tells two situations apart: names of epochs and entries are ranks, times are over or not."""
        numbers, epochs = {0}, {0}
        for node in self.nodes.values():
            history = node.disk.durable.history
            numbers |= {history.last.number, node.disk.durable.applied, *(at.number for at in history.epochs)}
            epochs |= {node.epoch, *(at.epoch for at in history.epochs)}
            if node.replica is not None:
                numbers.add(node.replica.committed)
                epochs.add(node.replica.epoch)
        epochs |= {known.epoch for known in self.sets.all.values()}
        number = {each: at for at, each in enumerate(sorted(numbers))}
        epoch = {each: at for at, each in enumerate(sorted(epochs))}
        return (
            self.is_store_cut,
            self.is_pair_cut,
            self.lost,
            tuple((epoch[known.epoch], known.in_sync) for known in self.sets.all.values()),
            *(self._form_of(node, number, epoch) for node in self.nodes.values()),
        )

    def _form_of(self, node: _Node, number: dict[int, int], epoch: dict[int, int]) -> tuple[Any, ...]:
        state, replica = node.disk.durable, node.replica
        mark = state.mark
        kept: tuple[Any, ...] = (
            node.is_arbiter_cut,
            epoch[node.epoch],
            node.began > 0,
            mark and (mark.is_in_sync, mark.is_alone, mark.leader, mark.is_doubtful),
            number[state.history.last.number],
            number[state.applied],
            tuple((epoch[at.epoch], number[at.number]) for at in state.history.epochs),
        )
        if replica is None:
            return kept
        site, following = replica._site, replica._follower
        claim, copies = site.in_sync._claim, replica._leader.copies
        return (
            *kept,
            epoch[replica.epoch],
            number[replica.committed],
            (copies.standing, copies.is_marked, self.now >= copies._join_after, replica._leader._is_peer_new),
            (site.is_sure, following.is_leased(self.now), following.is_importing),
            (site.peer.is_heard, site.peer.is_fresh, self.now >= site.peer.heard_at + _TIMEOUT_S),
            (claim.members, claim.is_granted),
            site.in_sync._known is not None and tuple(site.in_sync._known[1].in_sync),
        )


class Found(Exception):  # noqa: N818 - it is what was found
    """A way to a situation that breaks a rule."""


def explore(depth: int, tell: Callable[[str], None] = lambda text: None) -> tuple[int, int]:
    """Visit all situations within so many steps: how many, and how many steps led to them. Raises Found."""
    first = Situation()
    known = {first.form()}
    frontier: list[tuple[bytes, tuple[str, ...]]] = [(pickle.dumps(first), ())]
    steps = 0
    for level in range(depth):
        following: list[tuple[bytes, tuple[str, ...]]] = []
        for kept, path in frontier:
            for step in list(pickle.loads(kept).steps()):
                for seconds in (0.0, _LONG_S):
                    situation: Situation = pickle.loads(kept)
                    situation.take(step, seconds)
                    steps += 1
                    way = (*path, f"{' '.join(step).strip()}{', time passes' if seconds else ''}")
                    if situation.broken:
                        raise Found(f"{situation.broken}: {'; '.join(way)}")
                    form = situation.form()
                    if form in known:
                        continue
                    known.add(form)
                    after = pickle.dumps(situation)
                    _check_calm(after, way)
                    following.append((after, way))
        frontier = following
        tell(f"{level + 1} steps: {len(known)} situations, {steps} transitions")
    return len(known), steps


def _check_calm(kept: bytes, way: tuple[str, ...]) -> None:
    for role in _ROLES:
        situation: Situation = pickle.loads(kept)
        trouble = situation.calm(role)
        if situation.broken or (trouble and not situation.lost):
            raise Found(f"{trouble}: {'; '.join(way)}; all faults end, the {role} is active")


def main() -> int:
    """Explore, and say how far it is."""
    parser = argparse.ArgumentParser(prog="make store-sim EXPLORE=4", description=__doc__)
    parser.add_argument("--depth", type=int, default=DEPTH, help=f"how many steps (default {DEPTH})")
    depth = parser.parse_args().depth
    began = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{text}, {time.perf_counter() - began:.0f} s", flush=True)

    try:
        explore(depth, tell)
    except Found as found:
        print(f"VIOLATION {found}")
        return 1
    print("every situation keeps the rules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
