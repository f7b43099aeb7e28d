"""The broker under random conversations: whatever happens, its books balance and nobody is answered twice."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bstar.wire import native
from bstar.wire.batches import final_rows, request_rows
from bstar_broker.core.records import Accepted, Bundle
from support.desk import Desk, heard, ident, sent

CLIENTS = st.sampled_from([b"c1", b"c2", b"c3"])
SERVICES = st.sampled_from([b"a", b"b"])
WORKERS = st.sampled_from([b"w1", b"w2", b"w3", b"w4"])


class BrokerModel(RuleBasedStateMachine):
    """Native clients, native and plain workers, and everything that can happen to them, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(
            deliveries_max=3,
            queue_length_max=5,
            requests_per_client_max=6,
            request_ttl_s=8,
            service_ttl_s=10,
            worker_heartbeat_interval_s=1,
            worker_liveness=3,
            mdp_heartbeat_interval_s=1,
        )
        self.numbers = 0
        self.ends: Counter[bytes] = Counter()
        # What each worker was given last and still owes: the way to address its reply.
        self.owed: dict[bytes, list[tuple[bool, bytes]]] = {}
        # Since when a request waits beside a worker that could have it.
        self.stuck_since: dict[bytes, float] = {}

    def note(self, told: list[list[bytes]]) -> None:
        """Watch what the broker sends: to clients the ends of requests, to workers their work."""
        for frames in told:
            to = frames[0]
            if frames[1][:2] == native.MAGIC:
                message = heard(frames)
                if message.command == native.REQUEST:
                    self.owed.setdefault(to, []).append((True, message.identity))
                elif message.command == native.REQUESTS:
                    numbers, _, _, _ = request_rows(frames, 2)
                    self.owed.setdefault(to, []).extend((True, ident(number)) for number in numbers)
                elif message.command == native.FINALS:
                    self.ends.update(ident(number) for number in final_rows(frames, 2)[0])
                elif message.command in (native.FINAL, native.ERROR, native.BUSY, native.NOT_ACTIVE):
                    self.ends[message.identity] += 1
                elif message.command == native.DISCONNECT:
                    self.owed.pop(to, None)
            elif frames[1:3] == [b"MDPW02", b"\x02"]:
                self.owed.setdefault(to, []).append((False, frames[3]))
            elif frames[1:3] == [b"MDPW02", b"\x06"]:
                self.owed.pop(to, None)

    @rule(client=CLIENTS, service=SERVICES, ttl_ms=st.sampled_from([0, 500, 5_000]), is_urgent=st.booleans())
    def request(self, client: bytes, service: bytes, ttl_ms: int, is_urgent: bool) -> None:
        self.numbers += 1
        told = self.desk.request(client, self.numbers, service=service, ttl_ms=ttl_ms, is_urgent=is_urgent)
        self.note(told)

    @rule(
        client=CLIENTS,
        service=SERVICES,
        ttls_ms=st.lists(st.sampled_from([500, 5_000]), min_size=1, max_size=4),
        has_deadlines=st.booleans(),
    )
    def requests(self, client: bytes, service: bytes, ttls_ms: list[int], has_deadlines: bool) -> None:
        first = self.numbers + 1
        self.numbers += len(ttls_ms)
        numbers = range(first, self.numbers + 1)
        given = ttls_ms if has_deadlines else [0] * len(ttls_ms)
        self.note(self.desk.requests(client, numbers, service=service, ttls_ms=given))

    @rule(client=CLIENTS, service=SERVICES, back=st.integers(0, 4), count=st.integers(1, 3))
    def requests_again(self, client: bytes, service: bytes, back: int, count: int) -> None:
        """What has ended is a new request, what has not is answered once."""
        numbers = range(max(1, self.numbers - back), max(1, self.numbers - back) + count)
        self.numbers = max(self.numbers, numbers[-1])
        known = self.desk.ledger.by_identity
        if any(ident(number) in known and known[ident(number)].is_abandoned for number in numbers):
            return  # its client comes back for it: it ends a second time, and rightly so
        for number in numbers:
            is_open = ident(number) in known or any(
                number in bundled for bundled in self.desk.broker.bundles.by_number.values()
            )
            if not is_open:
                del self.ends[ident(number)]
        told = self.desk.requests(client, numbers, service=service)
        # A repetition for another service is refused as such, and is no end of the first.
        for frames in [frames for frames in told if frames[1][2] == native.ERROR]:
            told.remove(frames)
        self.note(told)

    @rule(worker=WORKERS, service=SERVICES, credit=st.integers(1, 5), takes_batches=st.booleans())
    def ready_native(self, worker: bytes, service: bytes, credit: int, takes_batches: bool) -> None:
        self.note(self.desk.ready(worker, service, credit, takes_batches))

    @rule(worker=WORKERS, count=st.integers(1, 5), is_last_first=st.booleans())
    def answer_several(self, worker: bytes, count: int, is_last_first: bool) -> None:
        owed = self.owed.get(worker, [])
        told = [entry for entry in owed if entry[0]][:count]
        if told:
            self.owed[worker] = [entry for entry in owed if entry not in told]
            numbers = [int.from_bytes(identity[16:], "big") for _, identity in told]
            self.note(self.desk.finals(worker, numbers[::-1] if is_last_first else numbers))

    @rule(worker=WORKERS, at=st.integers(0, 4))
    def stale(self, worker: bytes, at: int) -> None:
        owed = [entry for entry in self.owed.get(worker, []) if entry[0]]
        if owed:
            entry = owed[at % len(owed)]
            self.owed[worker].remove(entry)
            self.note(self.desk.send(worker, *native.encode_stale_epoch(entry[1], 7)))

    @rule(worker=WORKERS, service=SERVICES)
    def ready_plain(self, worker: bytes, service: bytes) -> None:
        self.note(self.desk.ready02(worker, service))

    @rule(worker=WORKERS, what=st.sampled_from(["partial", "final", "error"]), at=st.integers(0, 2))
    def answer(self, worker: bytes, what: str, at: int) -> None:
        owed = self.owed.get(worker)
        if not owed:
            return
        is_native, address = owed[at % len(owed)]
        if what != "partial":
            owed.remove((is_native, address))
        if not is_native:
            say = self.desk.partial02 if what == "partial" else self.desk.final02
            self.note(say(worker, address))
        elif what == "partial":
            self.note(self.desk.send(worker, *native.encode_partial(address, 7, 0, [b"p"])))
        elif what == "final":
            self.note(self.desk.send(worker, *native.encode_final(address, 7, 0, [b"f"])))
        else:
            self.note(self.desk.send(worker, *native.encode_error(address, 7, 1, b"boom")))

    @rule(worker=WORKERS)
    def answer_what_was_not_asked(self, worker: bytes) -> None:
        self.note(self.desk.send(worker, *native.encode_final(ident(10**9), 7, 0, [b"f"])))

    @rule(worker=WORKERS, is_native=st.booleans())
    def leave(self, worker: bytes, is_native: bool) -> None:
        self.owed.pop(worker, None)
        bye = native.encode_disconnect() if is_native else [b"MDPW02", b"\x06"]
        self.note(self.desk.send(worker, *bye))

    @rule(worker=WORKERS, is_native=st.booleans())
    def heartbeat(self, worker: bytes, is_native: bool) -> None:
        beat = native.encode_heartbeat(0) if is_native else [b"MDPW02", b"\x05"]
        self.note(self.desk.send(worker, *beat))

    @rule(worker=WORKERS)
    def vanish(self, worker: bytes) -> None:
        self.note(sent(self.desk.broker.unreachable(worker, self.desk.now)))

    @rule(seconds=st.sampled_from([0.2, 1.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.note(self.desk.wait(seconds))

    @rule()
    def lose_the_role_for_a_moment(self) -> None:
        self.note(sent(self.desk.broker.deactivate(self.desk.now)))
        self.desk.broker.activate(9)

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert max(self.ends.values(), default=0) <= 1

    @invariant()
    def the_books_balance(self) -> None:
        broker = self.desk.broker
        held = [r for w in broker.ledger.workers.values() for r in w.in_flight.values()]
        bundled = [b for w in broker.ledger.workers.values() for b in w.bundles]
        waiting = [item for s in broker.ledger.services.values() for item in s.queue]
        queued = [item for item in waiting if isinstance(item, Accepted)]
        bundles = [item for item in waiting if isinstance(item, Bundle)]
        in_bundles = sum(b.left for b in bundled)
        in_queues = len(queued) + sum(b.left for b in bundles)
        assert sum(broker.ledger.requests_of.values()) == len(held) + in_bundles + in_queues
        assert broker.ledger.waiting.count == in_queues
        assert broker.ledger.waiting.size_bytes == sum(r.size for r in queued) + sum(
            len(b.blob) - b.given_bytes for b in bundles
        )
        assert all(item.is_queued and item.expires_at > self.desk.now for item in waiting)
        assert in_queues == sum(s.queue.length for s in broker.ledger.services.values())
        assert {r.identity for r in [*held, *queued]} >= set(broker.ledger.by_identity)
        assert len(broker.bundles) == in_bundles + sum(b.left for b in bundles)
        assert all(b.left for b in (*bundled, *bundles))
        for worker in broker.ledger.workers.values():
            assert worker.bundled == sum(b.left for b in worker.bundles)
            assert all(b.worker == worker.routing_id and not b.is_queued for b in worker.bundles)

    @invariant()
    def every_request_is_somewhere(self) -> None:
        for service in self.desk.ledger.services.values():
            ended = (
                service.tally.answered
                + service.tally.failed
                + service.tally.expired
                + service.tally.poisoned
                + service.tally.lost
                + service.tally.returned
            )
            held = [
                r
                for w in self.desk.ledger.workers.values()
                for r in w.in_flight.values()
                if r.service is service and not r.is_abandoned
            ]
            bundled = sum(w.bundled for w in self.desk.ledger.workers.values() if w.service is service)
            assert service.tally.accepted == ended + service.queue.length + len(held) + bundled

    @invariant()
    def idle_workers_have_credit_and_the_rest_have_not(self) -> None:
        for worker in self.desk.ledger.workers.values():
            has_credit = worker.held < worker.credit
            assert worker.held <= worker.credit
            may_have_more = worker.gone_at is None and not worker.crowd_max
            assert (worker in worker.service.idle) == (has_credit and may_have_more)

    @invariant()
    def only_a_suspect_waits_beside_an_idle_worker_and_for_an_empty_one(self) -> None:
        for service in self.desk.ledger.services.values():
            suspect = service.queue.head() if service.queue.length and service.idle else None
            if isinstance(suspect, Accepted) and suspect.crowd_max and self.desk.now < suspect.apart_until:
                assert all(worker.held >= suspect.crowd_max for worker in service.idle)
                suspect = None
            if suspect is None:
                self.stuck_since.pop(service.name, None)
            # A suspect that is late or has gone is noticed a few times in a heartbeat's interval.
            else:
                assert self.desk.now < self.stuck_since.setdefault(service.name, self.desk.now) + 1.0

    @invariant()
    def a_worker_with_a_suspect_has_nothing_else(self) -> None:
        """No worker here holds eight requests, so a suspect is alone from the start."""
        for worker in self.desk.ledger.workers.values():
            assert not worker.crowd_max or (worker.held, len(worker.in_flight)) == (1, 1)


pytestmark = pytest.mark.storm

TestBrokerModel = BrokerModel.TestCase
TestBrokerModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
