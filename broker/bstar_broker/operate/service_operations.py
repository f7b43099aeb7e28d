"""What an operator on the node's machine may ask about one service, over the control socket
(``bstar_broker.operate.control``): pause, resume, purge. An argument and an answer are one JSON object each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar_broker.core import Node, Output
from bstar_broker.core.records import ServiceRecord
from bstar_broker.core.services import unknown_service

PAUSE_SERVICE: Final = b"pause a service"
RESUME_SERVICE: Final = b"resume a service"
PURGE_SERVICE: Final = b"purge a service"


class ServiceWish(msgspec.Struct, frozen=True):
    """``why``: who asks, and the reason. ``for_s`` is the time of a pause, 0 for no end."""

    service: str
    why: Annotated[str, msgspec.Meta(min_length=1)]
    for_s: Annotated[float, msgspec.Meta(ge=0, le=PAUSE_S_MAX)] = 0.0


class ServiceTold(msgspec.Struct, frozen=True):
    """The service afterwards: ``queued`` requests wait, workers hold ``in_flight``. ``purged`` ended.

    ``is_serving``: this node serves. ``refusal`` says why nothing has changed.
    """

    refusal: str = ""
    queued: int = 0
    in_flight: int = 0
    purged: int = 0
    is_serving: bool = False


class ServiceOperations:
    """Carries an operator's orders out on ``node``. ``clock`` is the reactor's, in its thread."""

    def __init__(
        self, node: Node, carry_out: Callable[[Sequence[Output]], None], clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._carry_out = carry_out
        self._clock = clock
        self.by_request: Mapping[bytes, Callable[[bytes], str]] = {
            PAUSE_SERVICE: lambda argument: self._answer(argument, self._pause),
            RESUME_SERVICE: lambda argument: self._answer(argument, self._resume),
            PURGE_SERVICE: lambda argument: self._answer(argument, self._purge),
        }

    def _answer(self, argument: bytes, carry_out: Callable[[ServiceRecord, ServiceWish], ServiceTold]) -> str:
        try:
            wish = msgspec.json.decode(argument, type=ServiceWish)
        except msgspec.DecodeError as error:
            return _encode(ServiceTold(f"the request cannot be read: {error}"))
        service = self._node.broker.ledger.services.labelled(wish.service)
        if service is None:
            return _encode(ServiceTold(unknown_service(wish.service)))
        return _encode(carry_out(service, wish))

    def _pause(self, service: ServiceRecord, wish: ServiceWish) -> ServiceTold:
        orders = self._node.broker.orders
        self._act(lambda now: orders.pause(service, wish.for_s, wish.why, now))
        return self._told(service)

    def _resume(self, service: ServiceRecord, wish: ServiceWish) -> ServiceTold:
        if not service.pause_why:
            return ServiceTold(f"{service.title} is not paused on this node")
        self._act(lambda now: self._node.broker.orders.resume(service, wish.why, now))
        return self._told(service)

    def _purge(self, service: ServiceRecord, wish: ServiceWish) -> ServiceTold:
        if not self._node.is_active:
            return ServiceTold("this node does not serve: ask the one that does, on its machine")
        before = service.queue.length
        self._act(lambda now: self._node.broker.orders.purge(service, wish.why, now)[1])
        told = self._told(service)
        return msgspec.structs.replace(told, purged=before - told.queued)

    def _act(self, change: Callable[[float], list[Output]]) -> None:
        self._carry_out(self._node.act(change, self._clock()))

    def _told(self, service: ServiceRecord) -> ServiceTold:
        ledger = self._node.broker.ledger
        held = sum(worker.held for worker in ledger.workers.values() if worker.service is service)
        return ServiceTold("", service.queue.length, held, 0, self._node.is_active)


def _encode(told: ServiceTold) -> str:
    return msgspec.json.encode(told).decode()
