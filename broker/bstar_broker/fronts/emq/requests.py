"""Requests of EventMQ's clients.

    header           what becomes of it
    none             a plain request: REPLY [msgid] if it goes to a worker at once, nothing if it waits
    reply-requested  its end follows as REPLY [JSON result] [msgid]
    retry-count:n    after a failure the front asks again, up to n times, a second apart
    guarantee        the durable store takes it: REPLY [msgid] when it is on the disks
    timeout:n        the job manager's business

A failure is: every manager that got it was lost, its time in the queue ended, the broker refused it for now,
its job ran past its time, or the handler of a worker of another dialect raised. What a job raises is a result
like any other. A refusal is a result, too: ``{"value": "refused: …"}``.

A queue without managers is served by the default queue, if that has managers. A node that does not serve
answers KBYE: the client asks the other one.
"""

from collections import deque
from contextlib import suppress

import msgspec

from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar.wire import durable, emq, mmi
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Fetch, Receipt, Service, Standing, State, Submit
from bstar.wire.emq_jobs import check_json, encode_result
from bstar.wire.front import Order, Verb, split_peer_id
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.core.outputs import Output
from bstar_broker.fronts.emq.desk import CLIENTS, Asker, Desk
from bstar_broker.fronts.emq.jobs import to_body, to_result
from bstar_broker.fronts.emq.managers import Managers, requests_in
from bstar_broker.fronts.emq.publications import SERVICE as PUBLISH

# Requests that a failure lets begin again; each is held here besides in the broker.
_RETRIES_MAX = 100_000
_RETRY_PAUSE_S = 1.0
# A store that has just begun to lead refuses for a moment. One that refuses for longer says why.
_SUBMIT_RETRIES = 10
# How long one question for a stored request's end waits in the store.
_RESULT_WAIT_MS = 60_000
# Clients without a connection that are remembered; each result of a client that is not is looked for.
_GONE_MAX = 10_000
# Names that begin so are the broker's own, and no queues.
_RESERVED = (mmi.PREFIX, durable.PREFIX, b"titanic.")

# The first frame of an envelope: what the order that carries it answers.
REQUEST = b"request"
SUBMIT = b"submit"
RESULT = b"result"

_ASKS = b"reply-requested"
# A failure with one of these is no failure of an attempt: the next one fails like it.
_FOR_GOOD = frozenset((ErrorCode.INVALID.value, ErrorCode.NOT_ALLOWED.value))


class Attempts(msgspec.Struct):
    """A request with attempts left, as it was asked. ``is_over``: its client is gone."""

    request: Request
    user_id: str
    left: int
    is_over: bool = False


class Requests:
    """``run`` (16 bytes) is the random part of this run's identities."""

    def __init__(self, desk: Desk, managers: Managers, run: bytes) -> None:
        self._desk = desk
        self._inlet = desk.inlet
        self._managers = managers
        self._run = run
        self._numbers = 0
        # By client and identity; and those of them that wait for their next attempt, by time.
        self._attempts: dict[bytes, dict[bytes, Attempts]] = {}
        self._count = 0
        self._pauses: deque[tuple[float, Attempts]] = deque()
        # Clients whose connection has ended, the last one last: True if a message has found no other one.
        self._gone: dict[bytes, bool] = {}

    def receive(self, asker: Asker, request: emq.Request, now: float) -> list[Output]:
        """REQUEST."""
        headers = request.headers
        service = self.service_of(request.queue)
        if (trouble := why_no_queue(request.queue)) is not None:
            return self._desk.refuse(asker, "queue", trouble)
        try:
            check_json(request.message)
        except RemoteProtocolError as error:
            return self._desk.refuse(asker, error.reason, error.text)
        asks = _ASKS if headers.reply_requested else b""
        body = to_body(request)
        if headers.guarantee:
            attempts = 0 if headers.retry_count is None else min(headers.retry_count + 1, 1_000_000)
            submit = Submit(stored_id(service, asker.msgid), service, body, attempts_max=attempts)
            service, body = Service.SUBMIT.value, [durable.encode(submit)]
            envelope: tuple[bytes, ...] = (SUBMIT, asker.msgid, asks, asker.user_id.encode())
            left = _SUBMIT_RETRIES
        else:
            envelope = (REQUEST, asker.msgid, asks)
            left = headers.retry_count or 0
        asked = Request(asker.peer, Dialect.FRONT, envelope, service, body)
        if not left:
            return self._ask(asked, asker.user_id, now)
        if self.count() >= _RETRIES_MAX:
            return self._desk.refuse(asker, "retries-full", "too many requests with attempts left")
        return self._begin(Attempts(asked, asker.user_id, left), now)

    def publish(self, asker: Asker, message: emq.Publish, now: float) -> list[Output]:
        """PUBLISH: its end goes to who asks for it, as that of a REQUEST. There is no REPLY before."""
        if not self._desk.settings.has_subscribers:
            return self._desk.refuse(asker, "publish", "this node has no fronts.emq.subscribers")
        asks = _ASKS if message.headers.reply_requested else b""
        body = [message.topic, message.message]
        envelope = (REQUEST, asker.msgid, asks)
        asked = Request(asker.peer, Dialect.FRONT, envelope, PUBLISH, body)
        return self._managers.receive(asked, now, asker.user_id)

    def service_of(self, queue: str) -> bytes:
        """The broker's service of this queue."""
        service, settings = queue.encode(), self._desk.settings
        if settings.keeps_unknown_queues or self._inlet.is_offered(service):
            return service
        default = settings.default_queue.encode()
        return default if self._inlet.is_offered(default) else service

    def operate(
        self, asker: Asker, envelope: tuple[bytes, ...], service: Service, body: bytes, now: float
    ) -> list[Output]:
        """Ask the durable store; its answer comes as an order with this envelope."""
        asked = Request(asker.peer, Dialect.FRONT, envelope, service.value, [body])
        return self._managers.receive(asked, now, asker.user_id)

    def _begin(self, attempts: Attempts, now: float) -> list[Output]:
        """Ask with an identity of its own, by which the answer is known."""
        self._numbers += 1
        attempts.request.identity = self._run + self._numbers.to_bytes(8, "big")
        self._keep(attempts)
        return self._ask(msgspec.structs.replace(attempts.request), attempts.user_id, now)

    def _keep(self, attempts: Attempts) -> None:
        request = attempts.request
        self._attempts.setdefault(request.sender, {})[request.identity] = attempts
        self._count += 1

    def _take(self, client: bytes, identity: bytes) -> Attempts | None:
        known = self._attempts.get(client, {})
        attempts = known.pop(identity, None)
        if attempts is not None:
            self._count -= 1
            if not known:
                del self._attempts[client]
        return attempts

    def _ask(self, request: Request, user_id: str, now: float) -> list[Output]:
        # What a vote makes the broker dispatch is not this request for certain.
        was_active = self._inlet.is_active
        outputs = self._managers.receive(request, now, user_id)
        if was_active and requests_in(outputs):
            routing_id = split_peer_id(request.sender)[2]
            outputs.append(self._desk.reply(CLIENTS, routing_id, request.envelope[1]))
        return outputs

    # --- what the broker answers ----------------------------------------------------------------------------

    def deliver(self, order: Order, now: float) -> list[Output]:
        """The end of a request, or the answer of the store."""
        kind = order.envelope[0]
        if order.verb is Verb.NOT_ACTIVE:
            self._take(order.peer, order.identity)
            return [self._desk.not_active(order)]
        if kind == RESULT:
            return self._stored_result(order, now)
        attempts = self._take(order.peer, order.identity)
        if attempts is not None and attempts.left and self._is_failure(order):
            if not self._inlet.is_active:
                return [self._over(attempts.request)]
            attempts.left -= 1
            self._keep(attempts)
            self._pauses.append((now + _RETRY_PAUSE_S, attempts))
            return []
        return self._submitted(order, now) if kind == SUBMIT else self._end(order)

    @staticmethod
    def _is_failure(order: Order) -> bool:
        return order.verb is Verb.BUSY or (order.verb is Verb.FAILURE and order.code not in _FOR_GOOD)

    def _end(self, order: Order) -> list[Output]:
        _, msgid, asks = order.envelope[:3]
        result = to_result(order.body) if order.verb is Verb.FINAL else encode_result(why(order))
        if asks != _ASKS:
            return []
        return [self._desk.reply(CLIENTS, split_peer_id(order.peer)[2], msgid, result)]

    def _submitted(self, order: Order, now: float) -> list[Output]:
        _, msgid, asks, user_id = order.envelope
        asker = Asker.of(order, user_id)
        if order.verb is not Verb.FINAL:
            # A guarantee that is not given must be heard, whether a result was asked for or not.
            return [self._desk.reply(CLIENTS, asker.routing_id, msgid, encode_result(why(order)))]
        receipt = durable.decode(order.body[0], Receipt)
        outputs: list[Output] = [self._desk.reply(CLIENTS, asker.routing_id, msgid)]
        if asks == _ASKS:
            outputs += self._fetch(asker, receipt.id, now)
        return outputs

    def _fetch(self, asker: Asker, stored: bytes, now: float) -> list[Output]:
        fetch = durable.encode(Fetch(stored, _RESULT_WAIT_MS))
        envelope = (RESULT, asker.msgid, stored, asker.user_id.encode())
        return self.operate(asker, envelope, Service.RESULT, fetch, now)

    def _stored_result(self, order: Order, now: float) -> list[Output]:
        """The end of a stored request. While it is pending the front asks again."""
        if order.verb is not Verb.FINAL:
            return self._desk.note("result-unread", "the store does not tell the result of a stored request")
        standing = durable.decode(order.body[0], Standing)
        if standing.state == State.PENDING:
            return self._look_again(order, now)
        if standing.state == State.ANSWERED:
            result = to_result(order.body[1:])
        else:
            result = encode_result(standing.text or State(standing.state).name.lower())
        return [self._desk.reply(CLIENTS, split_peer_id(order.peer)[2], order.envelope[1], result)]

    def _look_again(self, order: Order, now: float) -> list[Output]:
        """Ask for the result again, unless its client is gone: each question has a place in the store.

        A client of ZeroMQ connects again with the same routing id, and says nothing. A HEARTBEAT finds out.
        """
        if (is_lost := self._gone.get(order.peer)) is True:
            return []
        outputs = self._fetch(Asker.of(order, order.envelope[3]), order.envelope[2], now)
        if is_lost is None:
            return outputs
        return [self._desk.heartbeat(CLIENTS, split_peer_id(order.peer)[2]), *outputs]

    # --- time and roles -------------------------------------------------------------------------------------

    def handle_timer(self, now: float) -> list[Output]:
        """Begin the attempts whose pause is over."""
        outputs: list[Output] = []
        while self._pauses and now >= self._pauses[0][0]:
            attempts = self._pauses.popleft()[1]
            if not attempts.is_over:
                self._take(attempts.request.sender, attempts.request.identity)
                outputs += self._begin(attempts, now)
        return outputs

    def next_deadline(self) -> float | None:
        """When the next attempt begins."""
        return self._pauses[0][0] if self._pauses else None

    def stop(self) -> list[Output]:
        """This node serves no more: clients whose attempts wait ask the other one."""
        asked = [each.request for _, each in self._pauses if not each.is_over]
        self._pauses.clear()
        for each in asked:
            self._take(each.sender, each.identity)
        return [self._over(each) for each in asked]

    def _over(self, asked: Request) -> Output:
        """The last attempt at this node has failed, and the client allows another one: at the other node."""
        return self._desk.goodbye(CLIENTS, split_peer_id(asked.sender)[2], asked.envelope[1])

    def hear(self, client: bytes) -> None:
        """This client has said something."""
        self._gone.pop(client, None)

    def disconnected(self, client: bytes) -> None:
        """Its connection has ended. It may have another one."""
        self._gone.setdefault(client, False)
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def forget(self, client: bytes) -> None:
        """This client is gone: it gets no further attempt or result; the broker drops what it asked."""
        self.disconnected(client)
        self._gone[client] = True
        known = self._attempts.pop(client, {})
        self._count -= len(known)
        for attempts in known.values():
            attempts.is_over = True

    def count(self) -> int:
        """Requests with attempts left."""
        return self._count


def why(order: Order) -> str:
    """The text of a request that ended without a result."""
    return f"refused: {order.text}" if order.verb is Verb.BUSY or order.code in _FOR_GOOD else order.text


def stored_id(service: bytes, msgid: bytes) -> bytes:
    """The store's id of a guaranteed request: the msgid's 16 bytes if it is a UUID, else a hash."""
    text = msgid.replace(b"-", b"")
    if len(msgid) == 36 and len(text) == 32:
        with suppress(ValueError):
            return bytes.fromhex(text.decode())
    return durable.keyed_id(service, msgid)


def why_no_queue(queue: str) -> str | None:
    """Why no job can go to a queue of this name; None if it can."""
    if queue.encode().startswith(_RESERVED):
        return f'"{printable(queue.encode())}" is no queue: the name is the broker\'s own'
    return emq.queue_trouble(queue)
