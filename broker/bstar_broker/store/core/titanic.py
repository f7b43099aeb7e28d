"""Titanic (9/TSP): durable requests for every Majordomo client.

    titanic.request  [service] [body…]  answer: [200] [id] when it is on disk
    titanic.reply    [id]               answer: [200] [reply…], [300] it has no answer yet, or [400]
    titanic.close    [id]               answer: [200], known or not

An id has 32 hexadecimal digits, in small letters; capitals are read, too. [400] means that asking again does
not help: an unknown or malformed id, a request without a body, a request whose attempts have all failed.
[500] means that it may: this node's store cannot take it now. The status stands alone in its frame, because
published clients compare the whole frame.
"""

from collections.abc import Callable, Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.security.principals import Principal
from bstar.wire import durable
from bstar.wire.durable import State, Submit
from bstar.wire.messages import Request
from bstar_broker.core.outputs import Output
from bstar_broker.store.core.commands import Closed
from bstar_broker.store.core.desk import Desk, Order, only
from bstar_broker.store.core.events import Change
from bstar_broker.store.core.records import Record

PREFIX = b"titanic."
REQUEST = PREFIX + b"request"
REPLY = PREFIX + b"reply"
CLOSE = PREFIX + b"close"
SERVICES = (REQUEST, REPLY, CLOSE)

OK = b"200"
PENDING = b"300"
UNKNOWN = b"400"
ERROR = b"500"


class Titanic:
    """The three services on the store. ``new_id`` makes unguessable ids (TSP-S-02)."""

    def __init__(self, desk: Desk, new_id: Callable[[], bytes]) -> None:
        self._desk = desk
        self._new_id = new_id

    def receive(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        """Handle one operation, while the store leads."""
        if message.service not in SERVICES:
            return self._say(message, UNKNOWN)
        if self._desk.is_full:
            return self.refuse(message)
        if message.service == REQUEST:
            return self._request(message, principal)
        request = _id_of(message.body)
        if message.service == CLOSE:
            return self._close(message, request, principal)
        if request is None:
            return self._say(message, UNKNOWN)

        def answer(record: Record | None, now: float) -> list[Output]:
            reply = _reply(record)
            refusal = self._desk.why_not_sent(message.sender, sum(map(len, reply[1:])))
            if refusal is not None:
                return self._desk.note(refusal) + self._say(message, ERROR)
            self._desk.note_fetched(record)
            return self._say(message, *reply)

        return self._desk.ask(message, request, principal, answer)

    def refuse(self, message: Request) -> list[Output]:
        """The store cannot lead now: the client asks again (TSP-C-02)."""
        return self._say(message, ERROR)

    def _request(self, message: Request, principal: Principal | None) -> list[Output]:
        service, *body = map(bytes, message.body)
        request = self._new_id()
        try:
            frame = durable.encode(Submit(request, service, body))
            refusal = self._desk.why_not(durable.decode(frame, Submit), principal)
        except RemoteProtocolError:
            return self._say(message, UNKNOWN)
        if refusal is not None:
            return self._desk.note(refusal) + self._say(message, ERROR if refusal.code is None else UNKNOWN)

        def done(changes: Sequence[Change], is_kept: bool) -> list[Output]:
            if not is_kept:
                return self._say(message, ERROR)
            self._desk.acknowledged += 1
            return self._say(message, OK, request.hex().encode())

        command = self._desk.submitted([msgspec.Raw(frame)], principal)
        self._desk.take(Order(command, 1, message, done, len(frame)))
        return []

    def _close(self, message: Request, request: bytes | None, principal: Principal | None) -> list[Output]:
        if request is None:
            return self._say(message, OK)  # TSP-S-05: whatever it names, it is not there any more

        def done(changes: Sequence[Change], is_kept: bool) -> list[Output]:
            return self._say(message, OK)

        self._desk.take(Order(Closed([request], only(principal)), 1, message, done))
        return []

    def _say(self, message: Request, *body: bytes) -> list[Output]:
        return [self._desk.final(message, list(body))]


def _id_of(body: Sequence[bytes]) -> bytes | None:
    digits = bytes(body[0])
    if len(digits) != 2 * durable.ID_BYTES:
        return None
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None


def _reply(record: Record | None) -> list[bytes]:
    if record is not None and record.state == State.ANSWERED:
        return [OK, *record.answer]
    return [PENDING] if record is not None and record.state == State.PENDING else [UNKNOWN]
