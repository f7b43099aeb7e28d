"""What a long life must not do to a process: it remembers no more after days than after an hour.

Every hour, and at the end, all that production objects of each process refer to is counted (``weigh``), and
so is what is due. A process that grows while nothing is outstanding has remembered something for ever. A
deadline that lies too far ahead, or a state message that is overdue, is a timer that drifts.
"""

from __future__ import annotations

import gc
import random
import types
from collections.abc import Callable, Iterator, Sequence

from bstar.star import State
from sim.arbiter import SimArbiter
from sim.client import SimClient
from sim.node import SimNode
from sim.worker import SimWorker
from sim.world import World

LOOK_S = 3_600.0
# A process in its first hour has met no fault yet; tables of a fixed size fill up later (16 earlier runs of
# the peer, the requests of one hour).
GROWTH_MAX = 1_500
WEIGHT_MAX = 12_000
# Events that wait: timers and messages under way of a pair with all its clients and workers.
EVENTS_MAX = 500

_SKIPPED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, random.Random)

Fail = Callable[[str, str], None]
Watched = SimNode | SimWorker | SimClient | SimArbiter


def weigh(root: object) -> int:
    """How many objects it refers to, directly or not, without those of the simulator."""
    seen = {id(root)}
    waiting = [root]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) in seen or isinstance(each, _SKIPPED) or type(each).__module__.startswith("sim."):
                continue
            seen.add(id(each))
            waiting.append(each)
    return len(seen)


class Life:
    """Looks at the processes of one pair. ``fail`` takes a rule's letter and a text."""

    def __init__(self, world: World, processes: Sequence[object], fail: Fail) -> None:
        self._world = world
        self._processes: list[Watched] = [each for each in processes if isinstance(each, Watched)]
        self._fail = fail
        # Of each process: its run, and what it weighed when it was looked at first in this run.
        self._first: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Count and compare."""
        if self._world.waiting > EVENTS_MAX:
            self._fail("m", f"{self._world.waiting} events wait")
        for process in self._processes:
            if process.is_awake and not process.is_stopping:
                self._look_at(process)

    def _look_at(self, process: Watched) -> None:
        weight = sum(weigh(root) for root in _roots_of(process))
        run, first = self._first.get(process.name, (0, 0))
        if run != process.runs:
            self._first[process.name] = (process.runs, first := weight)
        if weight > min(first + GROWTH_MAX, WEIGHT_MAX):
            self._fail("m", f"{process.name} refers to {weight} objects, and to {first} in its first hour")
        if isinstance(process, SimNode):
            self._check_timer(process)

    def _check_timer(self, node: SimNode) -> None:
        """It says how it stands once per heartbeat interval."""
        machine, now = node.node.machine, node.clock()
        if machine.state is State.ERROR:
            return
        late_s = now - machine.published_at - machine.peer.pace.heartbeat_interval_s
        if not machine.publisher.is_mute and late_s > 1.0:
            self._fail("m", f"{node.name} has not said how it stands for {late_s:.3f} s more than it must")
        due = node.deadline()
        if due is None or due - now > machine.peer.pace.heartbeat_interval_s + 1.0:
            self._fail("m", f"{node.name} does nothing before {due}, and it is {now:.3f}")


def _roots_of(process: Watched) -> Iterator[object]:
    match process:
        case SimNode():
            yield process.node
        case SimArbiter():
            yield process.machine
        case _:
            yield process.core
