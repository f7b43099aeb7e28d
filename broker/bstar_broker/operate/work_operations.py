"""What an operator on the node's machine may ask about its workers and requests, over the control socket
(``bstar_broker.operate.control``). An argument and an answer are one JSON object each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from bstar.base.printable import printable
from bstar_broker.core import Node, Output
from bstar_broker.core.management import listed_worker
from bstar_broker.core.records import Accepted, ServiceRecord, WorkerRecord
from bstar_broker.core.services import unknown_service
from bstar_broker.core.snapshot import ListedWorker, RequestState

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
    workers: list[ListedWorker] = []
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
            LIST_WORKERS: lambda argument: _answer(argument, ListWish, self._list_workers, WorkersTold),
            DRAIN_WORKER: lambda argument: _answer(argument, WorkWish, self._drain, WorkersTold),
            RESUME_WORKER: lambda argument: _answer(argument, WorkWish, self._resume, WorkersTold),
            LIST_REQUESTS: lambda argument: _answer(argument, ListWish, self._list_requests, RequestsTold),
            SHOW_REQUEST: lambda argument: _answer(argument, WorkWish, self._show, RequestsTold),
            CANCEL_REQUEST: lambda argument: _answer(argument, WorkWish, self._cancel, RequestsTold),
        }

    def _act(self, change: Callable[[float], list[Output]]) -> None:
        self._carry_out(self._node.act(change, self._clock()))

    # --- workers --------------------------------------------------------------------------------------------

    def _list_workers(self, wish: ListWish) -> WorkersTold:
        service = self._service(wish.service)
        known = self._node.broker.ledger.workers.values()
        workers = [each for each in known if service in (None, each.service)]
        now = self._clock()
        return WorkersTold("", [listed_worker(each, now) for each in workers[: wish.count]], len(workers))

    def _drain(self, wish: WorkWish) -> WorkersTold:
        worker = self._worker(wish.about)
        self._act(lambda now: self._node.broker.work_orders.drain(worker, wish.why, now))
        return WorkersTold("", [listed_worker(worker, self._clock())], 1)

    def _resume(self, wish: WorkWish) -> WorkersTold:
        worker = self._worker(wish.about)
        if not worker.drain_why:
            raise _RefusedError(f"worker {wish.about} of {worker.service.title} is not drained")
        self._act(lambda now: self._node.broker.work_orders.resume(worker, wish.why, now))
        return WorkersTold("", [listed_worker(worker, self._clock())], 1)

    def _worker(self, label: str) -> WorkerRecord:
        worker = self._node.broker.work_orders.find_worker(label)
        if worker is None:
            name = printable(label.encode())
            raise _RefusedError(f'this node has no worker "{name}": bstar workers ls lists them')
        return worker

    # --- requests -------------------------------------------------------------------------------------------

    def _list_requests(self, wish: ListWish) -> RequestsTold:
        service = self._service(wish.service)
        broker = self._node.broker
        listed = broker.work_orders.oldest(service, wish.count, self._clock())
        running = sum(each.held for each in broker.ledger.workers.values() if service in (None, each.service))
        waiting = broker.ledger.waiting.count if service is None else service.queue.length
        return RequestsTold("", listed, running, waiting)

    def _show(self, wish: WorkWish) -> RequestsTold:
        return self._told(self._request(wish.about, "show"))

    def _cancel(self, wish: WorkWish) -> RequestsTold:
        request = self._request(wish.about, "cancel")
        told = self._told(request)
        self._act(lambda now: self._node.broker.work_orders.cancel(request, wish.why, now))
        return told

    def _request(self, text: str, verb: str) -> Accepted:
        if not self._node.is_active:
            raise _RefusedError("this node does not serve: ask the one that does, on its machine")
        durable = f"it is durable: bstar durable {verb} {text[:_DURABLE_DIGITS]}"
        if len(text) == _DURABLE_DIGITS:
            raise _RefusedError(durable)
        try:
            identity = bytes.fromhex(text)
        except ValueError:
            identity = b""
        if len(text) != _DIGITS or not identity:
            raise _RefusedError(f"a request's id has {_DIGITS} hexadecimal digits: bstar request ls")
        request = self._node.broker.work_orders.find_request(identity)
        if request is None:
            raise _RefusedError(f"this node has no request {text}: it has ended, or never came here")
        if request.codec is self._node.broker.ledger.mailbox:
            raise _RefusedError(durable)
        if request.is_abandoned:
            raise _RefusedError(f"request {text} was given up already; a worker still runs it")
        return request

    def _told(self, request: Accepted) -> RequestsTold:
        return RequestsTold("", [self._node.broker.work_orders.describe(request, self._clock())])

    def _service(self, label: str) -> ServiceRecord | None:
        """None for all services."""
        if not label:
            return None
        service = self._node.broker.ledger.services.labelled(label)
        if service is None:
            raise _RefusedError(unknown_service(label))
        return service


class _RefusedError(Exception):
    """Nothing has changed; the text says why."""


def _answer(
    argument: bytes,
    kind: type[Wish],
    carry_out: Callable[[Wish], WorkersTold | RequestsTold],
    told: type[WorkersTold] | type[RequestsTold],
) -> str:
    """Read what is asked, as ``kind``, and do it; ``told`` has a refusal."""
    try:
        answer: WorkersTold | RequestsTold = carry_out(msgspec.json.decode(argument, type=kind))
    except msgspec.DecodeError as error:
        answer = told(f"the request cannot be read: {error}")
    except _RefusedError as error:
        answer = told(str(error))
    return msgspec.json.encode(answer).decode()
