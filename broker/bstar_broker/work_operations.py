"""What an operator on the node's machine may ask about its workers and requests, over the control socket
(``bstar_broker.control``). An argument and an answer are one JSON object each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from bstar.printable import printable
from bstar_broker.core import Node, Output
from bstar_broker.core.management import worker_state
from bstar_broker.core.records import Accepted, ServiceRecord
from bstar_broker.core.snapshot import RequestState, WorkerState

LIST_WORKERS: Final = b"list workers"
DRAIN_WORKER: Final = b"drain a worker"
RESUME_WORKER: Final = b"resume a worker"
LIST_REQUESTS: Final = b"list requests"
SHOW_REQUEST: Final = b"show a request"
CANCEL_REQUEST: Final = b"cancel a request"

LISTED_MAX: Final = 1_000
# Hexadecimal digits: of a durable request's id, and of a request's identity.
_DURABLE_DIGITS = 32
_DIGITS = 48

Wish = TypeVar("Wish", bound=msgspec.Struct)


class ListWish(msgspec.Struct, frozen=True):
    """The argument of ``LIST_WORKERS`` and ``LIST_REQUESTS``. ``service``: its workers or requests only."""

    service: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = LISTED_MAX


class WorkWish(msgspec.Struct, frozen=True):
    """``about`` is a worker's or a request's id, ``why`` who asks and the reason."""

    about: str
    why: Annotated[str, msgspec.Meta(min_length=1)]


class WorkersTold(msgspec.Struct, frozen=True):
    """Workers after a request about them; ``total`` counts those that were not listed, too.

    ``refusal`` says why nothing has changed.
    """

    refusal: str = ""
    workers: list[WorkerState] = []
    total: int = 0


class RequestsTold(msgspec.Struct, frozen=True):
    """Requests. Workers hold ``running`` requests of these services, and ``waiting`` ones are queued.

    ``refusal`` says why nothing has changed.
    """

    refusal: str = ""
    requests: list[RequestState] = []
    running: int = 0
    waiting: int = 0


class WorkOperations:
    """Carries an operator's orders out on ``node``. ``clock`` is the reactor's, in its thread."""

    def __init__(
        self, node: Node, carry_out: Callable[[Sequence[Output]], None], clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._carry_out = carry_out
        self._clock = clock
        self.by_request: Mapping[bytes, Callable[[bytes], str]] = {
            LIST_WORKERS: lambda argument: self._workers(argument, ListWish, self._list_workers),
            DRAIN_WORKER: lambda argument: self._workers(argument, WorkWish, self._drain),
            RESUME_WORKER: lambda argument: self._workers(argument, WorkWish, self._resume),
            LIST_REQUESTS: lambda argument: self._requests(argument, ListWish, self._list_requests),
            SHOW_REQUEST: lambda argument: self._requests(argument, WorkWish, self._show),
            CANCEL_REQUEST: lambda argument: self._requests(argument, WorkWish, self._cancel),
        }

    # --- workers --------------------------------------------------------------------------------------------

    def _workers(self, argument: bytes, kind: type[Wish], answer: Callable[[Wish], WorkersTold]) -> str:
        try:
            told = answer(msgspec.json.decode(argument, type=kind))
        except msgspec.DecodeError as error:
            told = WorkersTold(f"the request cannot be read: {error}")
        return msgspec.json.encode(told).decode()

    def _list_workers(self, wish: ListWish) -> WorkersTold:
        if wish.service and self._service(wish.service) is None:
            return WorkersTold(_unknown_service(wish.service))
        workers = [
            each
            for each in self._node.broker.ledger.workers.values()
            if not wish.service or each.service.label == wish.service
        ]
        now = self._clock()
        return WorkersTold("", [worker_state(each, now) for each in workers[: wish.count]], len(workers))

    def _drain(self, wish: WorkWish) -> WorkersTold:
        orders = self._node.broker.work_orders
        worker = orders.find_worker(wish.about)
        if worker is None:
            return WorkersTold(_unknown_worker(wish.about))
        self._carry_out(orders.drain(worker, wish.why, self._clock()))
        return WorkersTold("", [worker_state(worker, self._clock())], 1)

    def _resume(self, wish: WorkWish) -> WorkersTold:
        orders = self._node.broker.work_orders
        worker = orders.find_worker(wish.about)
        if worker is None:
            return WorkersTold(_unknown_worker(wish.about))
        if not worker.drain_why:
            return WorkersTold(f"worker {wish.about} of {worker.service.title} is not drained")
        self._carry_out(orders.resume(worker, wish.why, self._clock()))
        return WorkersTold("", [worker_state(worker, self._clock())], 1)

    # --- requests -------------------------------------------------------------------------------------------

    def _requests(self, argument: bytes, kind: type[Wish], answer: Callable[[Wish], RequestsTold]) -> str:
        try:
            told = answer(msgspec.json.decode(argument, type=kind))
        except msgspec.DecodeError as error:
            told = RequestsTold(f"the request cannot be read: {error}")
        return msgspec.json.encode(told).decode()

    def _list_requests(self, wish: ListWish) -> RequestsTold:
        service = self._service(wish.service) if wish.service else None
        if wish.service and service is None:
            return RequestsTold(_unknown_service(wish.service))
        broker = self._node.broker
        listed = broker.work_orders.oldest(service, wish.count, self._clock())
        running = sum(each.held for each in broker.ledger.workers.values() if service in (None, each.service))
        waiting = broker.ledger.waiting.count if service is None else service.queue.length
        return RequestsTold("", listed, running, waiting)

    def _show(self, wish: WorkWish) -> RequestsTold:
        found = self._find(wish.about, "show")
        return found if isinstance(found, RequestsTold) else self._told(found)

    def _cancel(self, wish: WorkWish) -> RequestsTold:
        found = self._find(wish.about, "cancel")
        if isinstance(found, RequestsTold):
            return found
        told = self._told(found)
        self._carry_out(self._node.broker.work_orders.cancel(found, wish.why, self._clock()))
        return told

    def _find(self, text: str, verb: str) -> Accepted | RequestsTold:
        """The request, or why there is nothing to do."""
        if not self._node.is_active:
            return RequestsTold("this node does not serve: ask the one that does, on its machine")
        durable = f"it is durable: bstar durable {verb} {text[:_DURABLE_DIGITS]}"
        if len(text) == _DURABLE_DIGITS:
            return RequestsTold(durable)
        try:
            identity = bytes.fromhex(text)
        except ValueError:
            identity = b""
        if len(text) != _DIGITS or not identity:
            return RequestsTold(f"a request's id has {_DIGITS} hexadecimal digits: bstar request ls")
        request = self._node.broker.work_orders.find_request(identity)
        if request is None:
            return RequestsTold(f"this node has no request {text}: it has ended, or never came here")
        if request.codec is self._node.broker.ledger.mailbox:
            return RequestsTold(durable)
        if request.is_abandoned:
            return RequestsTold(f"request {text} was given up already; a worker still runs it")
        return request

    def _told(self, request: Accepted) -> RequestsTold:
        return RequestsTold("", [self._node.broker.work_orders.describe(request, self._clock())])

    def _service(self, label: str) -> ServiceRecord | None:
        known = self._node.broker.ledger.services.values()
        return next((each for each in known if each.label == label), None)


def _unknown_service(label: str) -> str:
    return f'this node knows no service "{printable(label.encode())}": bstar status lists them'


def _unknown_worker(label: str) -> str:
    return f'this node has no worker "{printable(label.encode())}": bstar workers ls lists them'
