"""A node with fronts. A node without them is a plain ``Node`` and pays nothing for them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from bstar.star import Input, State, Tick
from bstar.wire.messages import FromPeer
from bstar_broker.core.front import Front, Fronts, Inlet
from bstar_broker.core.node import Node
from bstar_broker.core.outputs import FrontSend, HangUp, Output
from bstar_broker.core.records import WorkerRecord
from bstar_broker.core.snapshot import FrontState, StoreState


class FrontedNode(Node):
    """``make_fronts`` makes the fronts of this node; the other arguments are those of ``Node``."""

    def __init__(self, *args: Any, make_fronts: Callable[[Inlet], Sequence[Front]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.fronts = Fronts(make_fronts(self))

    # --- the fronts' doors ----------------------------------------------------------------------------------

    def receive_front(
        self, front: str, door: str, frames: list[bytes], now: float, user_id: str = ""
    ) -> list[Output]:
        """A message has come through a door of a front."""
        receive = self.fronts.all[front].receive
        return self.act(lambda now: self._check_lease(now) + receive(door, frames, user_id, now), now)

    def front_unsent(self, output: FrontSend, now: float, *, is_gone: bool) -> list[Output]:
        """The shell could not carry out a FrontSend: there is no connection, or a full one."""
        return self.act(partial(self.fronts.all[output.front].unsent, output, is_gone), now)

    def front_connected(self, front: str, door: str, count: int, now: float) -> list[Output]:
        """A door has so many connections now."""
        return self.act(partial(self.fronts.all[front].connected, door, count), now)

    def front_peer_gone(self, front: str, door: str, routing_id: bytes, now: float) -> list[Output]:
        """The connection of this peer of a ROUTER door has ended."""
        return self.act(partial(self.fronts.all[front].peer_gone, door, routing_id), now)

    # --- what the fronts ask (``Inlet``) --------------------------------------------------------------------

    @property
    def workers(self) -> Mapping[bytes, WorkerRecord]:
        """See ``Inlet``."""
        return self.broker.ledger.workers

    def vet(self, message: FromPeer, user_id: str, now: float) -> list[Output] | None:
        """See ``Inlet``."""
        denial = None if self.authority is None else self.authority.judge(message, user_id, now)
        if denial is None:
            return None
        ledger = self.broker.ledger
        outputs = ledger.note_denied(denial.reason, denial.text, denial.who)
        outputs += ledger.note(denial.reason, denial.text)
        return [*outputs, HangUp(denial.ends)] if denial.ends else outputs

    def worker_unreached(self, peer: bytes, identity: bytes, now: float) -> list[Output]:
        """See ``Inlet``."""
        return self.broker.undelivered(peer, identity, now)

    def take_back(self, peer: bytes, identity: bytes, now: float) -> list[Output]:
        """See ``Inlet``."""
        worker = self.workers.get(peer)
        return [] if worker is None else self.broker.take_back(worker, identity, now)

    def peer_unreached(self, peer: bytes, now: float, *, is_gone: bool) -> list[Output]:
        """See ``Inlet``."""
        return self.broker.unreachable(peer, now, is_gone=is_gone)

    def client_gone(self, peer: bytes, now: float) -> list[Output]:
        """See ``Inlet``."""
        self.broker.release_client(peer, now)
        return []

    def set_credit(self, peer: bytes, credit: int, now: float) -> list[Output]:
        """See ``Inlet``."""
        return self.broker.set_credit(peer, credit, now)

    def is_offered(self, service: bytes) -> bool:
        """See ``Inlet``."""
        record = self.broker.ledger.services.get(service)
        return record is not None and record.workers > 0

    def is_peer_serving(self, now: float) -> bool:
        """See ``Inlet``."""
        return self.machine.status(now).peer_state == State.ACTIVE.value

    def note(self, reason: str, text: str) -> list[Output]:
        """See ``Inlet``."""
        return self.broker.ledger.note(reason, text)

    def forget_stored(self, request: bytes) -> bool:
        """See ``Inlet``."""
        return self.store is not None and self.store.forget(request)

    def store_state(self, now: float) -> StoreState | None:
        """See ``Inlet``."""
        return None if self.store is None else self.store.state(now)

    # --- what the node does, in the fronts' frames ----------------------------------------------------------

    def _settled(self, outputs: list[Output], now: float) -> list[Output]:
        """The outputs in the fronts' frames. Fronts may have asked the store for more meanwhile."""
        followed = self.fronts.follow(super()._settled(outputs, now), now)
        while self.store is not None and (more := self.store.settle(now)):
            followed += self.fronts.follow(more, now)
        return followed

    def step(self, given: Input, now: float) -> list[Output]:
        """See ``Node``."""
        outputs = super().step(given, now)
        if type(given) is Tick:
            outputs += self.act(lambda now: self.fronts.each(methodcaller("handle_timer", now)), now)
        return outputs

    def next_deadline(self) -> float | None:
        """See ``Node``."""
        due, fronts_due = super().next_deadline(), self.fronts.next_deadline()
        if due is None or fronts_due is None:
            return due if fronts_due is None else fronts_due
        return min(due, fronts_due)

    def _front_states(self, now: float) -> list[FrontState]:
        return [front.state(now) for front in self.fronts.all.values()]
