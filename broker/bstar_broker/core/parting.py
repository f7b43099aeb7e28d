"""How a node gives its role up on purpose: for a stop (SIGTERM), or for an operator's switchover.

Both drain first. Workers finish what they hold, and new requests wait. Then the machine gets its input
(``Leave`` or ``Handover``), the role goes to the peer, and what waits goes back to its clients, who ask
there. So no request is executed for nothing, and none is lost.

A stop goes on when its time is over, whatever workers hold. A switchover does not: it is called off, and the
node serves on as before.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from bstar.star import Drain, Handover, HandoverRefused, Leave, StarMachine, State
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import Output

# After a handover a node refuses requests for this time before it ends, because clients still send. The
# client of a request that is unread at the end cannot know whether it was executed; a refused one was not.
# The time is longer than a round trip to a client.
FAREWELL_S = 0.2


class Switchover(msgspec.Struct, gc=False):
    """One switchover. ``refusal`` says why the role stayed. Times are those of the node's clock.

    From ``asked_at`` on no request was dispatched here, from ``released_at`` on the node did not serve, and
    at ``ended_at`` it heard that its peer serves, in ``epoch``.
    """

    asked_at: float
    drain_until: float
    released_at: float | None = None
    ended_at: float | None = None
    epoch: int = 0
    refusal: str = ""

    @property
    def phase(self) -> Literal["drains", "released", "moved", "refused"]:
        """What it does now, or how it ended."""
        if self.ended_at is not None:
            return "refused" if self.refusal else "moved"
        return "drains" if self.released_at is None else "released"


class Parting:
    """What one node does between an order to give its role up and the end of that.

    The node calls ``next_input`` after each event that may end a drain, hands its result to the machine, and
    calls ``follow`` when the machine has moved. ``switchover`` is the last one, None before the first.
    ``drain_why``: an operator drains this node, or has drained it; "" otherwise. ``is_storing``: the disks
    lack ends of durable requests, and the peer would execute these again.
    """

    def __init__(
        self, machine: StarMachine, broker: Broker, drain_timeout_s: float, is_storing: Callable[[], bool]
    ) -> None:
        self.is_draining = False
        self.switchover: Switchover | None = None
        self.farewell_until: float | None = None
        self.drain_why = ""
        self._machine = machine
        self._broker = broker
        self._drain_timeout_s = drain_timeout_s
        self._is_storing = is_storing
        self._leave_at: float | None = None

    def leave(self, now: float) -> None:
        """The process is to stop. Idempotent."""
        if self._leave_at is not None:
            return
        self.drain_why = ""
        if self._is_open("drains"):
            self._end(now, "this node is stopping")
        self._leave_at = now + self._drain_timeout_s
        self._drain()

    def switch_over(self, now: float, why_not: str = "") -> list[Output]:
        """An operator moves the role to the peer. ``why_not``: what the caller knows against it."""
        if self._is_open("drains") or self._is_open("released"):
            return [HandoverRefused("a switchover is under way")]
        self.switchover = Switchover(now, now + self._drain_timeout_s)
        why_not = self._machine.why_no_handover(now) or why_not
        if self._leave_at is not None:
            why_not = "this node is stopping"
        if why_not:
            self._end(now, why_not)
            return [HandoverRefused(why_not)]
        self._drain()
        return []

    def drain_node(self, why: str, now: float, why_not: str = "") -> list[Output]:
        """An operator takes this node out of the pair. One that serves first moves the role to its peer; if
        that fails, nothing has changed and ``drain_why`` is empty again.
        """
        if self._leave_at is not None or self.drain_why:
            return []
        self.drain_why = why
        if not self._machine.is_active:
            return []
        is_moving = self._is_open("drains") or self._is_open("released")
        outputs = [] if is_moving else self.switch_over(now, why_not)
        if self._is_open("refused"):
            self.drain_why = ""
        return outputs

    @property
    def is_under_way(self) -> bool:
        """True if ``next_input`` may have something to do."""
        return self.is_draining or (self.drain_why != "" and not self._machine.is_leaving)

    def next_input(self, now: float) -> Leave | Handover | Drain | None:
        """What the machine is to do now that workers hold nothing, or the time is over."""
        is_awaited = self._broker.is_awaited
        if self._leave_at is not None:
            if self._machine.is_leaving or (now < self._leave_at and (is_awaited or self._is_storing())):
                return None
            if self._machine.is_active:
                self.farewell_until = now + FAREWELL_S
            return Leave()
        # The machine ignores it until the peer has taken the role.
        if self.drain_why and not self._machine.is_active:
            return Drain(self.drain_why)
        move = self.switchover
        if move is None or move.phase != "drains" or is_awaited:
            return None
        return None if now < move.drain_until and self._is_storing() else Handover()

    def follow(self, now: float) -> list[Output]:
        """Note how far the switchover is, and end it if it has ended."""
        move = self.switchover
        if move is None or move.ended_at is not None:
            return []
        machine = self._machine
        if move.released_at is None:
            if machine.is_released:
                move.released_at = now
                self._stop_draining()
            elif not machine.is_active:
                why = f"this node became {machine.state.name} meanwhile"
                return [HandoverRefused(why), *self.call_off(why, now)]
            elif now >= move.drain_until and self._broker.is_awaited:
                why = (
                    f"workers still held requests after {self._drain_timeout_s:g} s (timing.drain_timeout_s)"
                )
                return [HandoverRefused(why), *self.call_off(why, now)]
        if move.released_at is None:
            return []
        if machine.is_active:
            self._end(now, "the peer did not take the role, so this node serves again")
        elif machine.peer.state is State.ACTIVE and not machine.peer.is_silent(now):
            move.epoch = machine.epochs.seen
            self._end(now, "")
        return []

    def call_off(self, why: str, now: float) -> list[Output]:
        """End the switchover: the role stays, and the node dispatches what waits."""
        self._end(now, why)
        self._stop_draining()
        return self._broker.resume(now) if self._machine.is_active else []

    def end_farewell(self, now: float) -> None:
        """The time for clients to hear of the end may be over."""
        if self.farewell_until is not None and now >= self.farewell_until:
            self.farewell_until = None

    def _is_open(self, phase: str) -> bool:
        return self.switchover is not None and self.switchover.phase == phase

    def _drain(self) -> None:
        self.is_draining = True
        self._machine.cut_off.is_suspended = True
        if self._machine.is_active:
            self._broker.drain()

    def _stop_draining(self) -> None:
        self.is_draining = False
        self._machine.cut_off.is_suspended = False
        self._broker.end_drain()

    def _end(self, now: float, refusal: str) -> None:
        assert self.switchover is not None
        self.switchover.ended_at = now
        self.switchover.refusal = refusal
        if refusal:
            self.drain_why = ""
