"""Serves clients of the store: turns their requests into commands, and answers when these are applied.

A command is answered when it has been applied: its entry is on as many disks as it must be. A question is
answered by a look at the table.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from bstar.base.deadlines import Deadlines
from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar.security.principals import Principal
from bstar.wire import CODECS, durable, native, native_broker, refusals
from bstar.wire.batches import bodies_of, pack_finals, take_extensions
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Fetch, Filter, Listing, Receipt, Schedule, Service, Standing, State, Submit
from bstar.wire.messages import Request, Requests
from bstar.wire.refusals import Refusal
from bstar_broker.core.admission import REQUEST_BYTES
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.outputs import Output, Send
from bstar_broker.store.core import times
from bstar_broker.store.core.commands import (
    Cancelled,
    Closed,
    Command,
    Defaults,
    Retried,
    Scheduled,
    Submitted,
)
from bstar_broker.store.core.events import Change, Find, Found, Search
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.runner import identity_of
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.tally import StoreObserver

# A client that waits longer for a result asks again: another node may lead by then.
FETCH_WAIT_MS_MAX = 60_000
# Operations that wait for an answer, of all clients.
_WAITING_MAX = 200_000
# Bytes of commands that wait for the disks: half a second of a fast disk. A longer queue only costs memory.
_WAITING_BYTES_MAX = 64 << 20
# Bytes of operations, with what each needs beside its body, that wait until the store leads.
_EARLY_BYTES_MAX = 4 << 20
# A client with this many bytes of unread replies gets no more answers until it has read some.
_UNREAD_BYTES_MAX = 32 << 20
# A large submit travels in an entry, with others: up to four times its own bytes, of ``ENTRY_BYTES_MAX`` in
# all. Each byte is in so many places on its way: twice for each of command, entry, message to the peer,
# SQLite's pages and the record that is applied; ``Ledger.memory_left`` is half of what is left.
_LARGE_BYTES = 64 << 10
_ENTRY_PART = 4
_PLACES = 6
# Both loops copy an entry and compute its checksum in one turn, about 10 ms. A single order may be larger.
ENTRY_BYTES_MAX = 4 << 20

# Makes the answer to a question of the records that the disk found.
Answer = Callable[[Request, list[Record], float], list[Output]]


class Batch(msgspec.Struct, gc=False):
    """The submits of a client's batch that wait for their entry: the numbers of its rows, in order."""

    sender: bytes
    client_id: bytes
    numbers: list[int]


class Wait(msgspec.Struct, gc=False, eq=False):
    """A client asks for a result of ``request`` that is not there yet."""

    message: Request
    request: bytes
    is_over: bool = False


class Order(msgspec.Struct):
    """A command, how many changes it makes, and who waits for them.

    ``done(changes, is_kept)`` makes the answer. ``is_kept``: on as many disks as submits must be.
    ``size_bytes`` of bodies count as waiting until it is applied.
    """

    command: Command
    changes: int
    asker: Request | Batch | None = None
    done: Callable[[Sequence[Change], bool], list[Output]] | None = None
    size_bytes: int = 0


class Desk:
    """``orders`` are commands that wait to be proposed. ``why_no_submit(submit)`` is the sentence that says
    why a new request is refused now, or "".
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: StoreSettings,
        *,
        why_no_submit: Callable[[Submit], str],
        wall_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._wall_ms = wall_ms
        self._why_no_submit = why_no_submit
        self._defaults = Defaults(
            settings.attempts_max,
            round(settings.backoff_s * 1000),
            round(settings.backoff_max_s * 1000),
            round(settings.expires_s * 1000),
        )
        self.orders: list[Order] = []
        # Bytes of submits that were taken and are not applied yet.
        self.waiting_bytes = 0
        self.acknowledged = 0
        self.observer: StoreObserver | None = None
        # Questions to the disk, by token: who asks, and what becomes of the records.
        self._questions: dict[int, tuple[Request, Answer]] = {}
        self._tokens = 0
        # Requests for results, by the id of the request, and when they have waited long enough.
        self._waits: dict[bytes, dict[Wait, None]] = {}
        self._deadlines: Deadlines[Wait] = Deadlines(lambda wait, until: not wait.is_over)
        self.waiting = 0
        # Operations that came before the store led, with who sent them.
        self._early: list[tuple[Request, Principal | None]] = []
        self._early_bytes = 0
        self._handlers: dict[bytes, Callable[[Request, Principal | None, float], list[Output]]] = {
            Service.SUBMIT.value: self._submit,
            Service.SCHEDULE.value: self._schedule,
            Service.RESULT.value: self._result,
            Service.STATUS.value: self._status,
            Service.CLOSE.value: self._close,
            Service.CANCEL.value: self._cancel,
            Service.RETRY.value: self._retry,
            Service.LIST.value: self._list,
        }

    # --- what clients ask -----------------------------------------------------------------------------------

    def receive(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        """Handle one operation. Its body is one frame; more are ignored."""
        handle = self._handlers.get(message.service)
        if handle is None:
            text = f'no such service: "{printable(message.service)}"'
            return self.refuse(message, refusals.INVALID_DURABLE.saying(text))
        if self.is_full:
            return self.refuse(message, refusals.STORE_BUSY.saying("too many durable operations wait"))
        try:
            return handle(message, principal, now)
        except RemoteProtocolError as error:
            return self.refuse(message, refusals.INVALID_DURABLE.saying(error.text))

    @property
    def is_full(self) -> bool:
        """True if too many operations wait for the disk or for a result."""
        return self.waiting + len(self.orders) + len(self._questions) >= _WAITING_MAX

    def keep(self, message: Request, principal: Principal | None) -> bool:
        """Let an operation wait until the store leads; False if too many do."""
        size_bytes = sum(map(len, message.body)) + REQUEST_BYTES
        if self._early_bytes + size_bytes > _EARLY_BYTES_MAX:
            return False
        self._early_bytes += size_bytes
        self._early.append((message, principal))
        return True

    def kept(self) -> list[tuple[Request, Principal | None]]:
        """What waited until now, which is forgotten here."""
        early, self._early, self._early_bytes = self._early, [], 0
        return early

    def forget(self, request: bytes) -> bool:
        """Close a request for the node itself; False if too many operations wait."""
        if self.is_full:
            return False
        self.take(Order(Closed([request]), 1))
        return True

    def take(self, order: Order) -> None:
        """Let an order wait to be proposed. What it asks for is in its command: the message lets go of it."""
        if isinstance(order.asker, Request):
            order.asker.body = []
        self.waiting_bytes += order.size_bytes
        self.orders.append(order)

    def receive_batch(self, message: Requests, principal: Principal | None) -> list[Output]:
        """Submits that came together stay together: one command, one answer."""
        rows: list[msgspec.Raw] = []
        numbers: list[int] = []
        outputs: list[Output] = []
        for number, asker in zip(message.numbers, rows_of(message), strict=True):
            frame = asker.body[0]
            try:
                refusal = self.why_not(durable.decode(frame, Submit), principal)
            except RemoteProtocolError as error:
                refusal = refusals.INVALID_DURABLE.saying(error.text)
            if refusal is not None:
                outputs += self.refuse(asker, refusal)
                continue
            rows.append(msgspec.Raw(frame))
            numbers.append(number)
        if rows:
            batch = Batch(message.sender, message.client_id, numbers)
            command = self.submitted(rows, principal)
            done = partial(self._say_batch, batch)
            self.take(Order(command, len(rows), batch, done, sum(map(len, rows))))
        return outputs

    def _submit(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        frame = bytes(message.body[0])
        refusal = self.why_not(durable.decode(frame, Submit), principal)
        if refusal is not None:
            return self.refuse(message, refusal)
        command = self.submitted([msgspec.Raw(frame)], principal)
        self.take(Order(command, 1, message, partial(self._say_receipt, message), len(frame)))
        return []

    def _schedule(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        frame = bytes(message.body[0])
        asked = durable.decode(frame, Schedule)
        times.check(asked.repeat)
        refusal = self.why_not(asked.submit, principal)
        if refusal is not None:
            return self.refuse(message, refusal)
        now_ms, submit = self._wall_ms(), asked.submit
        from_ms = max(submit.at_ms, now_ms + submit.delay_ms)
        first_ms = times.first(asked.repeat, from_ms, is_delayed=from_ms > now_ms)
        if not first_ms:
            return self.refuse(message, refusals.INVALID_DURABLE.saying("the schedule has no time to come"))
        owner = "" if principal is None else principal.name
        command = Scheduled(owner, msgspec.Raw(frame), first_ms, self._defaults)
        self.take(Order(command, 1, message, partial(self._say_receipt, message), len(frame)))
        return []

    def why_not(self, submit: Submit, principal: Principal | None) -> Refusal | None:
        """Why this submit is refused; None if it is taken, and takes its part of the memory that is left."""
        service = submit.service
        if service.startswith(self._ledger.reserved):
            text = f'"{printable(service)}" is the broker\'s own: no worker can answer for it'
            return refusals.INVALID_DURABLE.saying(text)
        if principal is not None and not principal.calls.match(service):
            text = f'{principal.name} may not call service "{printable(service)}": no pattern of its calls'
            return refusals.CALL_NOT_ALLOWED.saying(f"{text} matches")
        if why := self._why_no_submit(submit):
            return refusals.STORE_REFUSES.saying(why)
        size_bytes = sum(map(len, submit.body)) + len(submit.headers) + REQUEST_BYTES
        if self.waiting_bytes and self.waiting_bytes + size_bytes > _WAITING_BYTES_MAX:
            text = f"{self.waiting_bytes} bytes of submits wait for the disks, as many as may"
            return refusals.STORE_BUSY.saying(text)
        needed = size_bytes
        if size_bytes >= _LARGE_BYTES:
            needed = _PLACES * max(size_bytes, min(_ENTRY_PART * size_bytes, ENTRY_BYTES_MAX))
        if needed > self._ledger.memory_left:
            return refusals.MEMORY_FULL
        self._ledger.memory_left -= size_bytes
        return None

    def submitted(self, rows: list[msgspec.Raw], principal: Principal | None) -> Submitted:
        """The command for these frames of Submit."""
        return Submitted("" if principal is None else principal.name, rows, self._defaults)

    def _result(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        fetch = durable.decode(message.body[0], Fetch)
        wait_s = min(fetch.wait_ms, FETCH_WAIT_MS_MAX) / 1000

        def answer(record: Record | None, now: float) -> list[Output]:
            if record is not None and record.state == State.PENDING and wait_s:
                # The disk tells of its end later than of this look.
                wait = Wait(message, fetch.id)
                self._waits.setdefault(fetch.id, {})[wait] = None
                self._deadlines.add(wait, now + wait_s)
                self.waiting += 1
                return []
            return self._say_result(message, fetch.id, record)

        return self.ask(message, fetch.id, principal, answer)

    def _status(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        fetch = durable.decode(message.body[0], Fetch)

        def answer(record: Record | None, now: float) -> list[Output]:
            return [self._say(message, self._standing(fetch.id, record))]

        return self.ask(message, fetch.id, principal, answer)

    def _close(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        return self._order(Closed([_id_of(message)], only(principal)), message)

    def _cancel(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        return self._order(Cancelled(_id_of(message), only(principal)), message)

    def _retry(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        return self._order(Retried(_id_of(message), only(principal)), message)

    def _order(self, command: Command, message: Request) -> list[Output]:
        def done(changes: Sequence[Change], is_kept: bool) -> list[Output]:
            [change] = changes
            return [self._say(message, _standing(change.id, change.new or change.old))]

        self.take(Order(command, 1, message, done))
        return []

    def _list(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        wanted = durable.decode(message.body[0], Filter)

        def answer(message: Request, records: list[Record], now: float) -> list[Output]:
            after = records[-1].seq if records else 0
            bodies = [record.body for record in records] if wanted.with_bodies else []
            size_bytes = sum(record.size_bytes for record in records) if wanted.with_bodies else 0
            if (refusal := self.why_not_sent(message.sender, size_bytes)) is not None:
                return self.refuse(message, refusal)
            standings = [self._standing(record.id, record) for record in records]
            return [self._say(message, Listing(standings, after, bodies))]

        return [
            Search(
                wanted.service,
                wanted.state,
                wanted.older_ms,
                wanted.after,
                wanted.limit,
                only(principal),
                self._token(message, answer),
            )
        ]

    def ask(
        self,
        message: Request,
        request: bytes,
        principal: Principal | None,
        answer: Callable[[Record | None, float], list[Output]],
    ) -> list[Output]:
        """Look for the record of ``request``; ``answer`` gets it, None if it is another principal's."""

        def found(message: Request, records: list[Record], now: float) -> list[Output]:
            return answer(records[0] if records and _is_owner(records[0], principal) else None, now)

        return [Find(request, self._token(message, found))]

    def _token(self, message: Request, answer: Answer) -> int:
        message.body = []  # as in ``take``
        self._tokens += 1
        self._questions[self._tokens] = (message, answer)
        return self._tokens

    def found(self, found: Found, now: float) -> list[Output]:
        """The disk answers a question."""
        question = self._questions.pop(found.token, None)
        if question is None:
            return []  # it was asked before the node stopped leading
        message, answer = question
        if found.error:
            return self.refuse(message, refusals.RECORD_DAMAGED.saying(found.error))
        return answer(message, found.records, now)

    # --- what has been applied ------------------------------------------------------------------------------

    def _say_receipt(self, asker: Request, changes: Sequence[Change], is_kept: bool) -> list[Output]:
        [change] = changes
        if (refusal := why_not_kept(change, is_kept)) is not None:
            return self.refuse(asker, refusal)
        self.acknowledged += 1
        return [self._say(asker, _receipt(change))]

    def _say_batch(self, batch: Batch, changes: Sequence[Change], is_kept: bool) -> list[Output]:
        outputs: list[Output] = []
        numbers: list[int] = []
        receipts: list[bytes] = []
        for number, change in zip(batch.numbers, changes, strict=True):
            if (refusal := why_not_kept(change, is_kept)) is not None:
                asker = _row(batch.sender, batch.client_id, Service.SUBMIT.value, number, [])
                outputs += self.refuse(asker, refusal)
                continue
            numbers.append(number)
            receipts.append(durable.encode(_receipt(change)))
        if numbers:
            self.acknowledged += len(numbers)
            client = batch.client_id + native.NO_NUMBER
            head = native.header(native.FINALS, identity=client, epoch=self._ledger.epoch)
            outputs.append(Send([batch.sender, head, *pack_finals(numbers, receipts)]))
        return outputs

    def ended(self, record: Record) -> list[Output]:
        """A request has an answer, or will never have one: tell all who wait for it."""
        waits = self._end_waits(record.id)
        return [output for wait in waits for output in self._say_result(wait.message, record.id, record)]

    def closed(self, request: bytes) -> list[Output]:
        """A request was forgotten: no client waits for it any longer."""
        waits = self._end_waits(request)
        return [output for wait in waits for output in self._say_result(wait.message, request, None)]

    def _end_waits(self, request: bytes) -> Iterable[Wait]:
        waits = self._waits.pop(request, {})
        self.waiting -= len(waits)
        for wait in waits:
            wait.is_over = True
        return waits

    # --- time and roles -------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Output]:
        """Answer those who have waited long enough: the request is pending."""
        outputs: list[Output] = []
        for wait in self._deadlines.pop_due(now):
            waits = self._waits[wait.request]
            del waits[wait]
            if not waits:
                del self._waits[wait.request]
            self.waiting -= 1
            outputs.append(self._say(wait.message, Standing(wait.request, State.PENDING)))
        self._deadlines.tidy(self.waiting)
        return outputs

    def leave(self, orders: Sequence[Order], now: float) -> list[Output]:
        """The node serves no more: clients ask the other one. ``orders`` were proposed and not applied."""
        status = self._ledger.status(now)
        askers = [each.asker for each in [*orders, *self.orders]]
        askers += [message for message, _ in self._questions.values()]
        askers += [wait.message for waits in self._waits.values() for wait in waits]
        askers += [message for message, _ in self.kept()]
        self.orders.clear()
        self.waiting_bytes = 0
        self._questions.clear()
        for waiting in list(self._waits):
            self._end_waits(waiting)
        outputs: list[Output] = []
        for asker in askers:
            if isinstance(asker, Batch):
                for number in asker.numbers:
                    request = _row(asker.sender, asker.client_id, Service.SUBMIT.value, number, [])
                    outputs.append(Send(native_broker.CODEC.not_active(request, status, True)))
            elif asker is not None and (frames := CODECS[asker.dialect].not_active(asker, status, True)):
                outputs.append(Send(frames))
        return outputs

    # --- answers --------------------------------------------------------------------------------------------

    def refuse(self, asker: Request, refusal: Refusal) -> list[Output]:
        """Count a refusal and tell the client."""
        outputs = self.note(refusal)
        frames = refusal.frames(CODECS[asker.dialect], asker, self._ledger.epoch)
        return outputs if frames is None else [*outputs, Send(frames)]

    def refuse_waiting(self, asker: Request, text: str) -> list[Output]:
        """The store of this node does not lead yet."""
        return self.refuse(asker, refusals.STORE_WAITS.saying(text))

    def note(self, refusal: Refusal) -> list[Output]:
        """Count a refusal."""
        return self._ledger.note(refusal.reason, refusal.text)

    def _say(self, asker: Request, message: Receipt | Standing | Listing, *more: bytes) -> Send:
        return self.final(asker, [durable.encode(message), *more])

    def _standing(self, request: bytes, record: Record | None) -> Standing:
        """What is known of a request, with the progress of the attempt that runs here."""
        standing = _standing(request, record)
        if standing.state == State.PENDING:
            accepted = self._ledger.by_identity.get(identity_of(request))
            if accepted is not None and accepted.progress is not None:
                return msgspec.structs.replace(standing, progress=accepted.progress)
        return standing

    def why_not_sent(self, client: bytes, size_bytes: int) -> Refusal | None:
        """Why this client does not get so many bytes now; None if it does, and they take their memory."""
        ledger = self._ledger
        unread = ledger.waiting.unread.get(client, 0)
        if unread and unread + size_bytes > _UNREAD_BYTES_MAX:
            return refusals.UNREAD_REPLIES.saying(
                f"{unread} bytes of replies wait for this client to read them"
            )
        if size_bytes > ledger.memory_left:
            return refusals.MEMORY_FULL
        ledger.memory_left -= size_bytes
        return None

    def _say_result(self, asker: Request, request: bytes, record: Record | None) -> list[Output]:
        answer = record.answer if record is not None else ()
        if (refusal := self.why_not_sent(asker.sender, sum(map(len, answer)))) is not None:
            return self.refuse(asker, refusal)
        self.note_fetched(record)
        return [self._say(asker, _standing(request, record), *answer)]

    def note_fetched(self, record: Record | None) -> None:
        """Report that a client gets what is known of this record, if that is an answer."""
        if self.observer is not None and record is not None and record.state == State.ANSWERED:
            self.observer.fetched(record, self._ledger.epoch)

    def final(self, asker: Request, body: list[bytes]) -> Send:
        """An answer."""
        return Send(CODECS[asker.dialect].final(asker, asker.service, self._ledger.epoch, 0, body, b""))


def only(principal: Principal | None) -> str | None:
    """Whose requests it may touch: its own; all for an operator, and for every client without keys."""
    return None if principal is None or principal.is_operator else principal.name


def _is_owner(record: Record, principal: Principal | None) -> bool:
    """True if this principal may see the record."""
    return only(principal) in (None, record.owner)


def rows_of(message: Requests) -> list[Request]:
    """The requests of a batch, each by itself."""
    bodies = bodies_of(message.blob, message.lengths)
    take_extensions(bodies, message.table, 0, is_extended=message.is_extended)
    return [
        _row(message.sender, message.client_id, message.service, number, [body])
        for number, body in zip(message.numbers, bodies, strict=True)
    ]


def _row(sender: bytes, client_id: bytes, service: bytes, number: int, body: list[bytes]) -> Request:
    return Request(sender, Dialect.NATIVE, (), service, body, native.identity(client_id, number))


def _id_of(message: Request) -> bytes:
    request = bytes(message.body[0])
    if len(request) != durable.ID_BYTES:
        raise RemoteProtocolError("durable", f"an id has {durable.ID_BYTES} bytes, not {len(request)}")
    return request


def _receipt(change: Change) -> Receipt:
    assert change.new is not None
    return Receipt(change.id, change.old is None, change.new.state)


def _standing(request: bytes, record: Record | None) -> Standing:
    return Standing(request, State.UNKNOWN) if record is None else record.standing()


def why_not_kept(change: Change, is_kept: bool) -> Refusal | None:
    """Why a request that was applied is not acknowledged; None if it is."""
    if change.is_other:
        return refusals.OTHER_BODY.saying(
            "its key or id belongs to a request with another service, body, owner or schedule"
        )
    if not is_kept:
        text = "the request is on one disk only; submit it again (store.when_alone: refuse)"
        return refusals.STORE_REFUSES.saying(text)
    return None
