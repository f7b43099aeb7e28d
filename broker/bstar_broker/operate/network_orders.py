"""Orders from elsewhere: those of ``orders``, over the socket of clients, from keys that may give them.

An order is a native REQUEST for ``mmi.order`` with a ``Sent`` in its body; its identity is the order's id
(BSN-B-33). It names the run of the node and the epoch for which it is meant. So no other node obeys it, no
later run and no later epoch, and this run remembers the ids: an order is carried out once, also after a
failover, without a disk and without a word to the peer. A ``Sent`` that names no run asks for the ``Stamp``
that an order needs, and changes nothing.

The journal gets each order and each refusal with the principal.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from bstar.base.printable import printable
from bstar.base.undecodable import UNDECODABLE
from bstar.security.principals import Principal
from bstar.settings.schema import Settings
from bstar.wire import mmi
from bstar.wire.epochs import EPOCH_MAX
from bstar.wire.messages import Request
from bstar.wire.native_broker import CODEC
from bstar.wire.refusals import ORDER_INVALID, ORDER_NOT_ALLOWED, ORDER_REPEATED, ORDER_STALE, Refusal
from bstar_broker.core.outputs import OrderReceived, Output, Send
from bstar_broker.operate.orders import ORDERS, Operator, Order

# A reason and a name of a service are the longest arguments. The journal has them whole.
ORDER_BYTES_MAX: Final = 4_096
# 200 bytes each. Only the holder of a key can send an order twice, and does so within seconds, if at all.
IDS_KEPT: Final = 10_000

# By their words, and by those that ask how far they are.
_ORDERS: Final[Mapping[str, Order]] = {order.word: order for order in ORDERS} | {
    f"{order.word}-progress": order for order in ORDERS if order.progress is not None
}

_UNREADABLE: Final = ORDER_INVALID.saying(f"an order is a JSON object of at most {ORDER_BYTES_MAX} bytes")

_log = logging.getLogger("bstar_broker.orders")


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command sends. ``node`` and ``epoch`` are those of a stamp, or the operator names the epoch."""

    word: str
    node: str = ""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)] = 0
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Stamp(msgspec.Struct, frozen=True):
    """For whom an order is meant, and how long to wait for its end (None: as long as it takes)."""

    node: str
    epoch: int
    wait_s: float | None


class NetworkOrders:
    """Decides about orders from elsewhere; ``operator`` carries them out."""

    def __init__(self, operator: Operator, settings: Settings) -> None:
        self._operator = operator
        self._node = operator.node
        self._settings = settings
        self._ids: dict[bytes, None] = {}

    def receive(self, received: OrderReceived) -> list[Output]:
        """Carry the order out, or refuse it; what answers it."""
        request, authority = received.request, self._node.authority
        assert authority is not None, "without keys the node refuses"
        sent = _read(request)
        name = received.user_id.partition(" ")[0]
        refusal = self._judge_sender(authority.principal(received.user_id), name)
        if refusal is None:
            refusal = _UNREADABLE if sent is None else self._judge(sent, request.identity)
        if refusal is not None:
            self._note(sent, request, name, refusal.reason, refusal.text)
            ledger = self._node.broker.ledger
            outputs = ledger.note_denied(refusal.reason, refusal.text, name)
            return outputs + self._node.broker.refuse_for(request, refusal)
        assert sent is not None
        return [self._answer(request, self._take(sent, request, name))]

    def _judge_sender(self, principal: Principal | None, name: str) -> Refusal | None:
        """Why this principal may give no order; None if it may."""
        if not self._settings.security.orders:
            text = "this node takes no orders from elsewhere: its configuration lacks security.orders: true"
            return ORDER_NOT_ALLOWED.saying(text)
        if principal is None or not principal.may_order:
            return ORDER_NOT_ALLOWED.saying(f"{name} may give no orders: its entry lacks orders: true")
        return None

    def _judge(self, sent: Sent, identity: bytes) -> Refusal | None:
        """Why this order is not taken; None if it is."""
        order, machine = _ORDERS.get(sent.word), self._node.machine
        if order is None:
            return ORDER_INVALID.saying("this node knows no such order: it is of another release")
        if order.is_local:
            text = f"give bstar {order.command} on the machine of {order.at}: it looks around there first"
            return ORDER_INVALID.saying(text)
        if sent.node not in ("", machine.node):
            return ORDER_STALE.saying("the order is for another node, or for an earlier run of this one")
        if not sent.node or sent.word != order.word:
            return None
        if identity in self._ids:
            return ORDER_REPEATED.saying(f"this order came before, in epoch {sent.epoch}: it is not repeated")
        if sent.epoch != machine.epochs.seen:
            text = f"the order is for epoch {sent.epoch}, and the pair is in epoch {machine.epochs.seen}"
            return ORDER_STALE.saying(text)
        return None

    def _take(self, sent: Sent, request: Request, name: str) -> msgspec.Struct:
        order = _ORDERS[sent.word]
        if not sent.node:
            machine = self._node.machine
            wait_s = None if order.wait_s is None else order.wait_s(self._settings)
            return Stamp(machine.node, machine.epochs.seen, wait_s)
        if sent.word != order.word:
            return self._operator.obey(sent.word.encode(), b"{}")
        self._ids[request.identity] = None
        if len(self._ids) > IDS_KEPT:
            del self._ids[next(iter(self._ids))]
        _log.info("%s orders %s from %s", name, sent.word, self._address)
        answer = self._operator.obey(sent.word.encode(), bytes(sent.arguments), by=name)
        reason = "refused" if answer.refusal else ""
        self._note(sent, request, name, reason, answer.refusal or answer.text)
        return answer

    @property
    def _address(self) -> str:
        return self._node.broker.ledger.address()

    def _answer(self, request: Request, answer: msgspec.Struct) -> Send:
        body, epoch = [mmi.OK, msgspec.json.encode(answer)], self._node.machine.epoch
        return Send(CODEC.final(request, request.service, epoch, 0, body, b""))

    def _note(self, sent: Sent | None, request: Request, name: str, reason: str, text: str) -> None:
        observer = self._node.broker.ledger.observer
        if observer is None:
            return
        observer.order_given(
            self._operator.clock(),
            principal=name,
            order=sent.word if sent is not None and sent.word in _ORDERS else "",
            id=request.identity.hex(),
            address=self._address,
            epoch=0 if sent is None else sent.epoch,
            arguments="" if sent is None else printable(bytes(sent.arguments), ORDER_BYTES_MAX),
            reason=reason,
            text=text,
        )


def _read(request: Request) -> Sent | None:
    """What was sent; None if it cannot be read."""
    body = request.body[-1]
    if len(body) > ORDER_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(body, type=Sent)
    except UNDECODABLE:
        return None
