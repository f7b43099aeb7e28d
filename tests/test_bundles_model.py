"""Rows of batches, however they are split: each worker gets the bodies, times and flags that belong together.

A model keeps what each request is and where it must be. Batches are dealt to several workers, expire, are
given back, redelivered, asked for again and answered in any order; whatever the broker sends is checked
against the model, byte by byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bstar.wire import decode, native
from bstar.wire.batches import bodies_of, final_rows, request_rows, take_extensions
from bstar.wire.extensions import age_extension
from bstar.wire.messages import ErrorCode, Reason
from bstar_broker.core.outputs import Dispatch, Output, Send
from support.desk import Desk, heard

CLIENTS = st.sampled_from([b"1", b"2"])
WORKERS = st.sampled_from([b"w1", b"w2", b"w3"])
# Bytes of a body and seconds to live; 0 for no limit.
ROWS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([200, 1_000, 5_000])), min_size=1, max_size=40)
DELIVERIES_MAX = 3
# Workers hold 40 requests at most: all of them, all of them again, five, and then one.
CROWDED_LOSSES_MAX = 3


class Row(msgspec.Struct):
    """One request as it must be. ``worker`` has it; ``given`` counts deliveries that may have begun."""

    client: bytes
    body: bytes
    ttl_ms: int
    accepted_at: float
    is_once: bool
    is_repeated: bool
    worker: bytes = b""
    given: int = 0
    reply: bytes = b""
    is_ended: bool = False
    extensions: bytes = b""

    @property
    def octets(self) -> int:
        """What it takes in a batch."""
        return len(self.body) + (2 + len(self.extensions) if self.extensions else 0)

    @property
    def deadline(self) -> float:
        return self.accepted_at + self.ttl_ms / 1000 if self.ttl_ms else 1e9


def reply_to(identity: bytes) -> bytes:
    return b"reply to %d" % int.from_bytes(identity[16:], "big")


class BundlesModel(RuleBasedStateMachine):
    """One service, native clients that send batches, native workers with and without them."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(
            deliveries_max=DELIVERIES_MAX,
            request_ttl_s=100_000,
            service_ttl_s=100_000,
            worker_heartbeat_interval_s=1,
            worker_liveness=100_000,
            client_check_interval_s=0,
        )
        self.rows: dict[bytes, Row] = {}
        self.numbers = 0
        # Whom the last thing that was sent went to, and what it was, if it was work.
        self.last: tuple[Dispatch, list[bytes]] | None = None

    # --- what the broker sends ------------------------------------------------------------------------------

    def note(self, outputs: Sequence[Output]) -> None:
        """Check all of it against the model, which must know already what caused it."""
        for row in self.rows.values():
            if row.worker and row.worker not in self.desk.ledger.workers:
                row.worker = b""
        self.last = None
        for output in outputs:
            if isinstance(output, Dispatch):
                self.last = (output, self._given(output.frames))
            elif isinstance(output, Send):
                self._told(output.frames)
                self.last = None

    def _given(self, frames: list[bytes]) -> list[bytes]:
        """Work for a worker; the identities of it."""
        message = heard(frames)
        now, worker = self.desk.now, frames[0]
        if message.command == native.REQUEST:
            row = self.rows[message.identity]
            left_ms = max(1, int((row.deadline - now) * 1000)) if row.ttl_ms else 0
            assert (message.body, message.value) == ([row.body], left_ms)
            aged = row.extensions and age_extension(row.extensions, int((now - row.accepted_at) * 1000))
            assert message.extensions == row.extensions + aged
            identities = [message.identity]
        else:
            assert message.command == native.REQUESTS
            numbers, ttls_ms, lengths, is_extended = request_rows(frames, 2)
            assert self.desk.ledger.workers[worker].takes_extended or not is_extended
            identities = [native.identity(message.identity[:16], number) for number in numbers]
            bodies = bodies_of(frames[3], lengths)
            extensions = take_extensions(bodies, frames[2], 0, is_extended=is_extended)
            for identity, ttl_ms, body, octets in zip(identities, ttls_ms, bodies, extensions, strict=True):
                row = self.rows[identity]
                assert (body, ttl_ms, octets) == (row.body, row.ttl_ms, row.extensions)
                assert message.value == int((now - row.accepted_at) * 1000)
        for identity in identities:
            row = self.rows[identity]
            assert not row.is_ended, "given although it has ended"
            assert not row.worker, "given to two workers at once"
            assert now < row.deadline, "given although its time is over"
            assert not (row.is_once and row.given), "given again although it must not be executed twice"
            assert message.flags == native.FLAG_REDELIVERED * (row.is_repeated or row.given > 0)
            row.worker = worker
            row.given += 1
        return identities

    def _told(self, frames: list[bytes]) -> None:
        """The end of requests, for a client; or a worker learns that no client waits for one (BSN-B-34)."""
        message = heard(frames)
        if message.command == native.FINALS:
            numbers, lengths = final_rows(frames, 2)
            for number, body in zip(numbers, bodies_of(frames[3], lengths), strict=True):
                self._ends(native.identity(message.identity[:16], number), frames[0], body)
        elif message.command == native.FINAL:
            self._ends(message.identity, frames[0], message.body[0])
        elif message.command == native.ERROR:
            row = self._ends(message.identity, frames[0], b"")
            if message.value == ErrorCode.EXPIRED:
                assert row.given == 0
                assert self.desk.now >= row.deadline
            elif message.value == ErrorCode.POISON:
                assert DELIVERIES_MAX <= row.given <= DELIVERIES_MAX + CROWDED_LOSSES_MAX
            else:
                assert message.value == ErrorCode.WORKER_LOST
                assert row.given
                assert row.is_once or self.desk.now >= row.deadline
        elif message.command == native.NOT_ACTIVE:
            row = self._ends(message.identity, frames[0], b"")
            assert message.flags == native.FLAG_DISPATCHED * (row.given > 0)
        elif message.command == native.CANCEL:
            row = self.rows[message.identity]
            assert (row.worker, row.is_ended) == (frames[0], False)
            assert self.desk.now >= row.deadline + 5.0
            row.is_ended = True  # its worker has it still, and what it answers is dropped
        else:
            assert message.command in (native.HEARTBEAT, native.WELCOME, native.DISCONNECT)

    def _ends(self, identity: bytes, client: bytes, reply: bytes) -> Row:
        row = self.rows[identity]
        assert not row.is_ended, "it ended twice"
        assert (client, reply) == (row.client, row.reply)
        row.is_ended = True
        return row

    # --- what happens ---------------------------------------------------------------------------------------

    def send(self, sender: bytes, frames: list[bytes]) -> None:
        self.note(self.desk.broker.receive(decode([sender, *frames]), self.desk.now))

    def held(self, worker: bytes) -> list[bytes]:
        return [identity for identity, row in self.rows.items() if row.worker == worker]

    @rule(
        client=CLIENTS,
        rows=ROWS,
        has_deadlines=st.booleans(),
        is_once=st.booleans(),
        is_repeated=st.booleans(),
        extended=st.lists(st.binary(max_size=9), min_size=1, max_size=3),
    )
    def requests(
        self,
        client: bytes,
        rows: list[tuple[int, int]],
        has_deadlines: bool,
        is_once: bool,
        is_repeated: bool,
        extended: list[bytes],
    ) -> None:
        client_id = client * 16
        is_repeated = is_repeated and not is_once
        numbers = range(self.numbers + 1, self.numbers + 1 + len(rows))
        self.numbers += len(rows)
        bodies = [
            bytes([number % 251 + 1]) * octets for number, (octets, _) in zip(numbers, rows, strict=True)
        ]
        ttls_ms = [ttl_ms if has_deadlines else 0 for _, ttl_ms in rows]
        extensions = list(islice(cycle(extended), len(rows)))
        for number, body, ttl_ms, octets in zip(numbers, bodies, ttls_ms, extensions, strict=True):
            identity = native.identity(client_id, number)
            row = Row(client, body, ttl_ms, self.desk.now, is_once, is_repeated, extensions=octets)
            self.rows[identity] = row
        self.send(
            client,
            native.encode_requests(
                client_id,
                b"echo",
                numbers,
                ttls_ms,
                bodies,
                is_once=is_once,
                is_repeated=is_repeated,
                extensions=extensions,
            ),
        )

    @rule(at=st.integers(0, 1_000), address=st.sampled_from([b"1", b"2", b"3"]))
    def ask_again(self, at: int, address: bytes) -> None:
        """Its client comes back for one that is here, from another address."""
        here = [identity for identity, row in self.rows.items() if not row.is_ended]
        if here:
            identity = here[at % len(here)]
            row = self.rows[identity]
            row.client = address
            again = native.encode_request(
                identity, b"echo", [row.body], is_once=row.is_once, is_repeated=True
            )
            self.send(address, again)

    @rule(worker=WORKERS, credit=st.integers(1, 20), takes=st.sampled_from(["", "batches", "extended"]))
    def ready(self, worker: bytes, credit: int, takes: str) -> None:
        if worker not in self.desk.ledger.workers:
            ready = native.encode_ready(
                b"echo", credit=credit, takes_batches=takes != "", takes_extended=takes == "extended"
            )
            self.send(worker, ready)

    @rule(worker=WORKERS, first=st.integers(0, 9), count=st.integers(1, 20), is_together=st.booleans())
    def answer(self, worker: bytes, first: int, count: int, is_together: bool) -> None:
        held = self.held(worker)
        if not held:
            return
        chosen = (held[first % len(held) :] + held[: first % len(held)])[:count]
        client_id = chosen[0][:16]
        if is_together:
            chosen = [identity for identity in chosen if identity[:16] == client_id]
        for identity in chosen:
            self.rows[identity].worker = b""
            self.rows[identity].reply = reply_to(identity)
        if is_together:
            numbers = [int.from_bytes(identity[16:], "big") for identity in chosen]
            self.send(worker, native.encode_finals(client_id, 7, numbers, list(map(reply_to, chosen))))
            return
        for identity in chosen:
            self.send(worker, native.encode_final(identity, 7, 0, [reply_to(identity)]))

    @rule(worker=WORKERS, at=st.integers(0, 19))
    def refuse(self, worker: bytes, at: int) -> None:
        """A worker returns one as not begun."""
        held = self.held(worker)
        if held:
            row = self.rows[held[at % len(held)]]
            row.worker = b""
            row.given -= 1
            self.send(worker, native.encode_stale_epoch(held[at % len(held)], 7))

    @rule(worker=WORKERS, is_unbegun=st.booleans())
    def leave(self, worker: bytes, is_unbegun: bool) -> None:
        for identity in self.held(worker):
            self.rows[identity].given -= is_unbegun
        self.send(worker, native.encode_disconnect(Reason.GOODBYE, 7, is_unbegun=is_unbegun))

    @rule()
    def cannot_be_sent(self) -> None:
        """The worker of what was given out last is gone, and never got it."""
        if self.last is not None:
            output, identities = self.last
            for identity in identities:
                self.rows[identity].worker = b""
                self.rows[identity].given -= 1
            self.note(self.desk.broker.undelivered(output.frames[0], output.item, self.desk.now))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        end = self.desk.now + seconds
        while (due := self.desk.broker.next_deadline()) <= end:
            self.desk.now = max(self.desk.now, due)
            self.note(self.desk.broker.handle_timer(self.desk.now))
        self.desk.now = end

    @rule(seconds=st.sampled_from([0.25, 2.0]))
    def be_late(self, seconds: float) -> None:
        """The loop is busy: what is due is seen to after the next message."""
        self.desk.now += seconds

    @rule()
    def step_down(self) -> None:
        """What workers held is not theirs any more, as far as clients are concerned."""
        self.note(self.desk.broker.deactivate(self.desk.now))
        for worker in list(self.desk.ledger.workers):
            self.note(self.desk.broker.unreachable(worker, self.desk.now))
        self.desk.broker.activate(7)
        self.wait(1.0)

    # --- what holds -----------------------------------------------------------------------------------------

    @invariant()
    def every_request_is_where_the_model_has_it(self) -> None:
        broker = self.desk.broker
        rows = self.rows.values()
        here = [row for row in rows if not row.is_ended]
        assert broker.ledger.waiting.count == sum(not row.worker for row in here)
        assert broker.ledger.waiting.size_bytes == sum(row.octets for row in here if not row.worker)
        for worker in broker.ledger.workers.values():
            if worker.gone_at is None:
                assert worker.held == sum(row.worker == worker.routing_id for row in rows)
        assert sum(broker.ledger.requests_of.values()) >= len(here)

    def teardown(self) -> None:
        """All that are left end in their time, or with their worker."""
        self.wait(10.0)
        for row in self.rows.values():
            assert row.is_ended or row.worker or not row.ttl_ms


pytestmark = pytest.mark.storm

TestBundlesModel = BundlesModel.TestCase
TestBundlesModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
