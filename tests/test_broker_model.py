"""The broker under random conversations: whatever happens, its books balance and nobody is answered twice."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bstar.wire import native
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

    def note(self, told: list[list[bytes]]) -> None:
        """Watch what the broker sends: to clients the ends of requests, to workers their work."""
        for frames in told:
            to = frames[0]
            if frames[1][:2] == native.MAGIC:
                message = heard(frames)
                if message.command == native.REQUEST:
                    self.owed.setdefault(to, []).append((True, message.identity))
                elif message.command in (native.FINAL, native.ERROR, native.BUSY, native.NOT_ACTIVE):
                    self.ends[message.identity] += 1
                elif message.command == native.DISCONNECT:
                    self.owed.pop(to, None)
            elif frames[1:3] == [b"MDPW02", b"\x02"]:
                self.owed.setdefault(to, []).append((False, frames[3]))
            elif frames[1:3] == [b"MDPW02", b"\x06"]:
                self.owed.pop(to, None)

    @rule(client=CLIENTS, service=SERVICES, ttl_ms=st.sampled_from([0, 500, 5_000]))
    def request(self, client: bytes, service: bytes, ttl_ms: int) -> None:
        self.numbers += 1
        self.note(self.desk.request(client, self.numbers, service=service, ttl_ms=ttl_ms))

    @rule(worker=WORKERS, service=SERVICES, credit=st.integers(1, 3))
    def ready_native(self, worker: bytes, service: bytes, credit: int) -> None:
        self.note(self.desk.ready(worker, service, credit))

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
        held = [r for w in broker.workers.values() for r in w.in_flight.values()]
        queued = [r for s in broker.services.values() for r in s.queue]
        assert sum(broker.requests_of.values()) == len(held) + len(queued)
        assert (broker.queued, broker.queued_bytes) == (len(queued), sum(r.size for r in queued))
        assert all(r.is_queued and r.expires_at > self.desk.now for r in queued)
        assert all(s.queue.length == len(list(s.queue)) for s in broker.services.values())
        assert {r.identity for r in [*held, *queued]} >= set(broker._by_identity)

    @invariant()
    def every_request_is_somewhere(self) -> None:
        for service in self.desk.broker.services.values():
            ended = (
                service.answered
                + service.failed
                + service.expired
                + service.poisoned
                + service.lost
                + service.returned
            )
            held = [
                r
                for w in self.desk.broker.workers.values()
                for r in w.in_flight.values()
                if r.service is service and not r.is_abandoned
            ]
            assert service.accepted == ended + service.queue.length + len(held)

    @invariant()
    def idle_workers_have_credit_and_the_rest_have_not(self) -> None:
        for worker in self.desk.broker.workers.values():
            has_credit = len(worker.in_flight) < worker.credit
            assert (worker in worker.service.idle) == (has_credit and worker.gone_at is None)

    @invariant()
    def no_request_waits_beside_an_idle_worker(self) -> None:
        for service in self.desk.broker.services.values():
            assert not (service.queue.length and service.idle)


TestBrokerModel = BrokerModel.TestCase
TestBrokerModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
