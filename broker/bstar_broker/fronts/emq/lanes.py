"""The slots of EventMQ's job managers, and who may have the next job of a queue.

A manager's free processes are its slots. It is a worker of the broker for each of its queues (a lane), and
all its lanes share its slots. The broker may give a lane as many requests as the lane's credit says: the
manager's free slots, beside the requests under way there.

A lane has credit for free slots only while no manager of its queue with a higher weight has one (PROTOCOLS.md
12.5: the highest weight first, round robin among equal ones). The broker does the round robin.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from bstar.wire import emq
from bstar.wire.front import Order
from bstar_broker.core.front import Inlet
from bstar_broker.core.outputs import Dispatch, Output


class Job(msgspec.Struct):
    """A request at a manager. After ``ends_at`` the manager has forgotten it."""

    lane: "Lane"
    identity: bytes
    began_at: float
    ends_at: float


class Tier(msgspec.Struct, eq=False):
    """The lanes of one queue that have one weight, the least recently used first, and their free slots."""

    lanes: dict["Lane", None] = {}
    slots: int = 0


class Line(msgspec.Struct, eq=False):
    """The lanes of one queue, by weight. ``top``: the highest weight with a free slot, as last reported."""

    name: str
    tiers: dict[int, Tier] = {}
    top: int = -1

    def top_now(self) -> int:
        """The highest weight with a free slot, -1 without one."""
        return max((weight for weight, tier in self.tiers.items() if tier.slots), default=-1)


class Lane(msgspec.Struct, eq=False):
    """One queue of a manager: a worker of the broker. ``claims``: dispatched, and on the way here."""

    peer: bytes
    manager: "Manager"
    line: Line
    weight: int
    credit: int = 0
    claims: int = 0
    held: int = 0

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.line.name


class Manager(msgspec.Struct, eq=False):
    """One job manager. ``held``: requests beyond its slots. ``jobs``: by msgid, in order of dispatch.

    ``lanes`` have the highest weights first. ``free`` is changed by ``Lanes`` alone.
    ``has_overdue``: a job of it was ended without its reply.
    """

    routing_id: bytes
    user_id: str
    queues: tuple[emq.Queue, ...]
    heard_at: float
    sent_at: float
    lanes: list[Lane] = []
    free: int = 0
    held: deque[Order] = msgspec.field(default_factory=deque)
    jobs: dict[bytes, Job] = {}
    processed: int = 0
    is_dismissed: bool = False
    has_overdue: bool = False


class Lanes:
    """The lanes of all managers. After ``is_closed`` none gets anything more."""

    def __init__(self, inlet: Inlet) -> None:
        self._inlet = inlet
        self._by_peer: dict[bytes, Lane] = {}
        self._lines: dict[str, Line] = {}
        self.is_closed = False

    def get(self, peer: bytes) -> Lane | None:
        """The lane that the broker knows by this name."""
        return self._by_peer.get(peer)

    def has(self, lane: Lane) -> bool:
        """True if the broker may still give this lane requests."""
        return self._by_peer.get(lane.peer) is lane

    def add(self, peer: bytes, manager: Manager, queue: emq.Queue) -> None:
        """A manager without slots offers one queue more."""
        line = self._lines.setdefault(queue.name, Line(queue.name))
        lane = Lane(peer, manager, line, queue.weight)
        line.tiers.setdefault(queue.weight, Tier()).lanes[lane] = None
        manager.lanes.append(lane)
        self._by_peer[peer] = lane

    def remove(self, lane: Lane) -> list[Lane]:
        """A manager offers one queue less. Others may have its jobs now: give them to ``share``."""
        del self._by_peer[lane.peer]
        lane.manager.lanes.remove(lane)
        tier = lane.line.tiers[lane.weight]
        del tier.lanes[lane]
        tier.slots -= lane.manager.free
        if not tier.lanes:
            del lane.line.tiers[lane.weight]
        if not lane.line.tiers:
            del self._lines[lane.queue]
        return self._turned(lane.line)

    def free_slot(self, manager: Manager, count: int = 1) -> None:
        """One process more of this manager is free; with -1 one less."""
        manager.free += count
        for lane in manager.lanes:
            lane.line.tiers[lane.weight].slots += count

    def claimed(self, outputs: list[Output]) -> list[Output]:
        """These outputs. The dispatches among them take slots."""
        for output in outputs:
            lane = self._by_peer.get(output.frames[0]) if type(output) is Dispatch else None
            if lane is not None and lane.manager.free:
                self.free_slot(lane.manager, -1)
                lane.claims += 1
                tier = lane.line.tiers[lane.weight]
                del tier.lanes[lane]
                tier.lanes[lane] = None
        return outputs

    def share(self, lanes: Iterable[Lane], now: float) -> list[Output]:
        """Tell the broker what each of these may take, in their order, and what others may take then."""
        outputs: list[Output] = []
        pending = deque(lanes)
        while pending:
            lane = pending.popleft()
            pending.extend(self._turned(lane.line))
            credit = self._credit_of(lane)
            if credit == lane.credit or not self.has(lane):
                continue
            lane.credit = credit
            free = lane.manager.free
            outputs += self.claimed(self._inlet.set_credit(lane.peer, credit, now))
            if lane.manager.free != free:
                pending.extendleft(reversed(lane.manager.lanes))
        return outputs

    def _credit_of(self, lane: Lane) -> int:
        may_take = lane.weight >= lane.line.top and not self.is_closed
        return lane.held + lane.claims + (lane.manager.free if may_take else 0)

    @staticmethod
    def _turned(line: Line) -> list[Lane]:
        """The lanes of this queue if another weight is the highest one with a free slot now."""
        top = line.top_now()
        if top == line.top:
            return []
        line.top = top
        return [lane for tier in line.tiers.values() for lane in tier.lanes]
