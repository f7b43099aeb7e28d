"""A store in memory, behind a scripted broker: it keeps what clients submit; a test ends it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bstar.wire import durable, mmi
from bstar.wire.durable import Cause, Fetch, Filter, Listing, Receipt, Service, Standing, State, Submit
from bstar.wire.messages import Request
from support.scripted import final

Answer = list[list[bytes]]


class FakeStore:
    """Give it to a ScriptedBroker as ``on_request``. A fetch that waits is answered at once when it is over,
    and by ``end`` when it is not: ``waiting`` has those.
    """

    def __init__(self) -> None:
        self.submits: dict[bytes, Submit] = {}
        self.standings: dict[bytes, Standing] = {}
        self.answers: dict[bytes, list[bytes]] = {}
        self.fetches: list[Fetch] = []
        self.waiting: list[tuple[Fetch, Request]] = []
        # If it is False, a fetch is answered at once, whatever it asks for.
        self.waits = True
        self.page_max = 1_000
        # Answers that get lost on the way: the operation is done.
        self.lose: Callable[[Request], bool] = lambda request: False

    def __call__(self, request: Request) -> Answer:
        answer = self._answer(request, bytes(request.body[0]))
        return [] if self.lose(request) else answer

    def end(
        self,
        request_id: str,
        *frames: bytes,
        state: State = State.ANSWERED,
        attempts: int = 0,
        **fields: object,
    ) -> Answer:
        """The request ends; returns the answers to those who wait."""
        key = bytes.fromhex(request_id)
        changed = {"state": state, "attempts": attempts, "ended_ms": 1_700_000_002_500, **fields}
        self.standings[key] = msgspec.structs.replace(self.standings[key], **changed)
        self.answers[key] = list(frames)
        waiting, self.waiting = self.waiting, []
        return [answer for fetch, asker in waiting for answer in self._result(asker, fetch)]

    def _answer(self, request: Request, frame: bytes) -> Answer:
        if request.service == mmi.Service.DESCRIPTIONS.value:
            # No worker has told a schema.
            return [final(request, mmi.OK, b"[]")]
        service = Service(request.service)
        if service is Service.SUBMIT:
            return self._submit(request, durable.decode(frame, Submit))
        if service is Service.RESULT:
            fetch = durable.decode(frame, Fetch)
            self.fetches.append(fetch)
            return self._result(request, fetch)
        if service is Service.LIST:
            return self._list(request, durable.decode(frame, Filter))
        key = durable.decode(frame, Fetch).id if service is Service.STATUS else frame
        standing = self._standing(key)
        if service is Service.CLOSE:
            self.standings.pop(key, None)
        elif service is Service.CANCEL and standing.state == State.PENDING:
            standing = self.standings[key] = msgspec.structs.replace(standing, state=State.CANCELLED)
        elif service is Service.RETRY and standing.state in (State.DEAD, State.CANCELLED):
            standing = self.standings[key] = msgspec.structs.replace(
                standing, state=State.PENDING, attempts=0, cause=Cause.NONE, text=""
            )
        return [final(request, durable.encode(standing))]

    def _submit(self, request: Request, submit: Submit) -> Answer:
        is_new = submit.id not in self.standings
        if is_new:
            self.submits[submit.id] = submit
            self.standings[submit.id] = Standing(
                submit.id,
                State.PENDING,
                submit.service,
                submitted_ms=1_700_000_000_000,
                due_ms=submit.at_ms,
                priority=submit.priority if isinstance(submit.priority, int) else submit.priority.priority,
                group=submit.group,
                body_bytes=sum(map(len, submit.body)),
            )
        state = self.standings[submit.id].state
        return [final(request, durable.encode(Receipt(submit.id, is_new, state)))]

    def _result(self, request: Request, fetch: Fetch) -> Answer:
        standing = self._standing(fetch.id)
        if standing.state == State.PENDING and fetch.wait_ms and self.waits:
            self.waiting.append((fetch, request))
            return []
        return [final(request, durable.encode(standing), *self.answers.get(fetch.id, ()))]

    def _list(self, request: Request, wanted: Filter) -> Answer:
        numbered = enumerate(self.standings.values(), 1)
        found = [
            (number, standing)
            for number, standing in numbered
            if number > wanted.after
            and wanted.service in (b"", standing.service)
            and wanted.state in (0, standing.state)
        ][: min(wanted.limit, self.page_max)]
        page = [standing for _, standing in found]
        is_cut = len(found) == min(wanted.limit, self.page_max)
        bodies = [self.submits[standing.id].body for standing in page] if wanted.with_bodies else []
        return [final(request, durable.encode(Listing(page, found[-1][0] if is_cut else 0, bodies)))]

    def _standing(self, key: bytes) -> Standing:
        return self.standings.get(key) or Standing(key, State.UNKNOWN)
