"""What an operator on the node's machine may ask of it, over the control socket
(``bstar_broker.operate.control``).

An argument and an answer are one JSON object each. A request that takes a while is answered at once; the
command then asks how far it is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from bstar.star import PauseTakeovers, ResumeTakeovers
from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar_broker.core import Node, Output
from bstar_broker.core.parting import Switchover

SWITCH_OVER: Final = b"switch over"
SWITCHOVER: Final = b"how far is the switchover"
PAUSE: Final = b"pause takeovers"
RESUME: Final = b"resume takeovers"
PAUSED: Final = b"are takeovers paused"
DRAIN: Final = b"drain"
REJOIN: Final = b"end the drain"
DRAINED: Final = b"how far is the drain"

_log = logging.getLogger("bstar_broker.operations")


class SwitchoverWish(msgspec.Struct, frozen=True):
    """The argument of ``SWITCH_OVER``. ``to`` is the role of the node that is to serve, "" for the other."""

    to: Literal["", "primary", "backup"] = ""
    is_if_healthy: bool = False


class SwitchoverTold(msgspec.Struct, frozen=True):
    """How far the node's last switchover is. ``refusal`` says why the role stays.

    ``waited_s`` counts from the moment from which this node dispatched no request, ``handover_s`` from the
    moment from which it did not serve. Both end when it heard that its peer serves, in ``epoch``.
    """

    phase: Literal["none", "drains", "released", "moved", "refused"]
    refusal: str = ""
    to: str = ""
    epoch: int = 0
    waited_s: float = 0.0
    handover_s: float = 0.0


class PauseWish(msgspec.Struct, frozen=True):
    """The argument of ``PAUSE`` and ``RESUME``. ``why``: who asks, and the reason."""

    why: str
    for_s: Annotated[float, msgspec.Meta(ge=0, le=PAUSE_S_MAX)] = 0.0


class PauseTold(msgspec.Struct, frozen=True):
    """Takeovers are paused for ``for_s`` more; 0 if they are not. ``is_shared``: the peer knows it as well.
    ``refusal`` says why a wish changed nothing.
    """

    for_s: float
    is_shared: bool
    refusal: str = ""


class DrainWish(msgspec.Struct, frozen=True):
    """The argument of ``DRAIN`` and ``REJOIN``. ``why``: who asks, and the reason."""

    why: Annotated[str, msgspec.Meta(min_length=1)]


class DrainTold(msgspec.Struct, frozen=True):
    """How far the drain is: ``queued`` requests wait here, and workers hold ``in_flight``. ``refusal`` says
    why the node is as it was.
    """

    phase: Literal["none", "drains", "drained", "refused"]
    refusal: str = ""
    queued: int = 0
    in_flight: int = 0


class Operations:
    """Carries an operator's requests out on ``node``. ``clock`` is the reactor's, in its thread."""

    def __init__(
        self, node: Node, carry_out: Callable[[Sequence[Output]], None], clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._carry_out = carry_out
        self._clock = clock
        self.by_request: Mapping[bytes, Callable[[bytes], str]] = {
            SWITCH_OVER: self._switch_over,
            SWITCHOVER: lambda _: _encode(self._told()),
            PAUSE: self._pause,
            RESUME: self._pause,
            PAUSED: lambda _: _encode(self._pause_told()),
            DRAIN: self._drain,
            REJOIN: self._rejoin,
            DRAINED: lambda _: _encode(self._drain_told()),
        }

    def force_store(self) -> str:
        """Let the durable store go on from this node's copy; why not, or ""."""
        store = self._node.store
        if store is None:
            return "this node has no durable store"
        if not self._node.is_active:
            return "this node does not serve: ask the one that does"
        if not store.trouble:
            return ""
        _log.warning("bstar store force: the store goes on from this copy; before: %s", store.trouble)
        self._carry_out(self._node.force_store(self._clock()))
        return store.trouble

    def _switch_over(self, argument: bytes) -> str:
        try:
            wish = msgspec.json.decode(argument, type=SwitchoverWish)
        except msgspec.DecodeError as error:
            return _encode(SwitchoverTold("refused", f"the request cannot be read: {error}"))
        role = self._node.machine.settings.role
        if wish.to == role.value:
            is_there = "serves already" if self._node.is_active else f"is {self._node.machine.state.name}"
            where = "" if self._node.is_active else f": ask the {role.peer.value}, on its machine"
            return _encode(SwitchoverTold("refused", f"the {role.value} {is_there}{where}"))
        _log.info("bstar switchover: the operator asks to give the role to the %s", role.peer.value)
        before = self._node.parting.switchover
        self._carry_out(self._node.switch_over(self._clock(), is_if_healthy=wish.is_if_healthy))
        if before is not None and self._node.parting.switchover is before:
            return _encode(SwitchoverTold("refused", "another switchover is under way"))
        return _encode(self._told())

    def _told(self) -> SwitchoverTold:
        move: Switchover | None = self._node.parting.switchover
        if move is None:
            return SwitchoverTold("none")
        until = self._clock() if move.ended_at is None else move.ended_at
        return SwitchoverTold(
            move.phase,
            move.refusal,
            self._node.machine.settings.role.peer.value,
            move.epoch,
            waited_s=round(until - move.asked_at, 6),
            handover_s=0.0 if move.released_at is None else round(until - move.released_at, 6),
        )

    def _pause(self, argument: bytes) -> str:
        """Pause takeovers for the time of the wish; no time resumes them."""
        now = self._clock()
        try:
            wish = msgspec.json.decode(argument, type=PauseWish)
        except msgspec.DecodeError as error:
            return _encode(PauseTold(0.0, False, f"the request cannot be read: {error}"))
        if not wish.for_s and not self._node.machine.pause.is_on(now):
            return _encode(PauseTold(0.0, True, "takeovers are not paused"))
        order = PauseTakeovers(wish.for_s, wish.why) if wish.for_s else ResumeTakeovers(wish.why)
        self._carry_out(self._node.step(order, now))
        return _encode(self._pause_told())

    def _pause_told(self) -> PauseTold:
        machine, now = self._node.machine, self._clock()
        is_shared = machine.pause.peer_number == machine.pause.number and not machine.peer.is_silent(now)
        return PauseTold(machine.pause.rest_s(now), is_shared)

    def _drain(self, argument: bytes) -> str:
        try:
            wish = msgspec.json.decode(argument, type=DrainWish)
        except msgspec.DecodeError as error:
            return _encode(DrainTold("refused", f"the request cannot be read: {error}"))
        _log.info("bstar drain: %s", wish.why)
        self._carry_out(self._node.drain(wish.why, self._clock()))
        return _encode(self._drain_told())

    def _rejoin(self, argument: bytes) -> str:
        try:
            wish = msgspec.json.decode(argument, type=DrainWish)
        except msgspec.DecodeError as error:
            return _encode(DrainTold("refused", f"the request cannot be read: {error}"))
        if not self._node.machine.drained_why:
            return _encode(DrainTold("refused", "this node is not drained"))
        self._carry_out(self._node.rejoin(wish.why, self._clock()))
        return _encode(self._drain_told())

    def _drain_told(self) -> DrainTold:
        node, ledger = self._node, self._node.broker.ledger
        queued = ledger.waiting.count
        in_flight = sum(worker.held for worker in ledger.workers.values())
        if node.parting.drain_why:
            is_done = node.machine.drained_why and not queued and not in_flight
            return DrainTold("drained" if is_done else "drains", "", queued, in_flight)
        move = node.parting.switchover
        if move is not None and move.refusal and node.is_active:
            return DrainTold("refused", move.refusal, queued, in_flight)
        return DrainTold("refused", "this node is stopping") if node.machine.is_leaving else DrainTold("none")


def _encode(told: SwitchoverTold | PauseTold | DrainTold) -> str:
    return msgspec.json.encode(told).decode()
