"""What a node writes into its journal: every end of a request, every output of the pair, exact counts."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar import records, star
from bstar.errors import DualActiveError
from bstar.journal import JournalOptions
from bstar.records import Load, Pulse, Record, Refused, Request, WorkerLost, WorkerRegistered
from bstar.settings import from_mapping, sample_settings
from bstar.star import PeerMessage, Role, StarMachine, StarSettings, Tick
from bstar.wire import front, messages, native, native_broker
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Finals
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Node, Send
from bstar_broker.core.observer import LostBecause, Order, Outcome
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord
from bstar_broker.journal import NodeJournal, config_digest, open_journal, options_of
from bstar_broker.journal.node_journal import PAIR_RECORDS
from support.desk import CLIENT_ID, Desk, ident

NODE_ID = b"N" * 16


class Told:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.ends: list[tuple[bytes, Outcome, int]] = []
        self.workers: list[tuple[str, bytes, str, int]] = []

    def ended(
        self, request: Accepted, outcome: Outcome, epoch: int, reply: Sequence[bytes], now: float
    ) -> None:
        self.ends.append((request.identity, outcome, sum(map(len, reply))))

    def answered(self, bundles: Sequence[Bundle], replies: Finals, epoch: int, now: float) -> None:
        assert [bundle.client_id for bundle in bundles] == [replies.client_id] * len(replies.numbers)
        for number, size in zip(replies.numbers, replies.lengths, strict=True):
            self.ends.append((native.identity(replies.client_id, number), "answered", size))

    def registered(self, worker: WorkerRecord, now: float) -> None:
        self.workers.append(("registered", worker.routing_id, "", 0))

    def lost(self, worker: WorkerRecord, reason: LostBecause, now: float) -> None:
        self.workers.append(("lost", worker.routing_id, reason, len(worker.in_flight)))

    def ordered(self, service: ServiceRecord, order: Order, why: str, now: float, **_: object) -> None:
        pass

    def order_given(self, now: float, **fields: str | int) -> None:
        pass

    def forgotten(self, service: ServiceRecord, now: float) -> None:
        pass


# --- the core tells -----------------------------------------------------------------------------------------


def failure(desk: Desk, worker: bytes, number: int, text: bytes = b"no") -> None:
    desk.send(worker, *native.encode_error(ident(number), 7, ErrorCode.HANDLER_FAILED, text))


def test_an_answer_and_a_failure_are_told() -> None:
    told = Told()
    desk = Desk(b"w", observer=told)
    desk.request(b"c", 1)
    desk.final(b"w", 1, b"done")
    desk.request(b"c", 2)
    failure(desk, b"w", 2)

    assert told.ends == [(ident(1), "answered", 4), (ident(2), "failed", 2)]


def test_a_plain_client_s_request_gets_a_name_of_this_node_s() -> None:
    told = Told()
    desk = Desk(observer=told)
    desk.ready02(b"w")
    desk.request02(b"c")
    desk.final02(b"w", b"c")

    assert told.ends == [(native.identity(NODE_ID, 1), "answered", 4)]


def test_a_request_that_waited_too_long_has_expired() -> None:
    told = Told()
    desk = Desk(observer=told)
    desk.request(b"c", 1, ttl_ms=1_000)
    desk.wait(2)

    assert told.ends == [(ident(1), "expired", 0)]


def test_a_request_that_kills_its_workers_is_poison() -> None:
    told = Told()
    desk = Desk(observer=told, deliveries_max=2)
    desk.request(b"c", 1)
    for worker in (b"v", b"w"):
        desk.ready(worker)
        desk.send(worker, *native.encode_disconnect())

    assert told.ends == [(ident(1), "poison", 0)]
    assert [each[2:] for each in told.workers if each[0] == "lost"] == [("left", 1), ("left", 1)]


def test_a_request_whose_worker_died_after_partials_or_in_its_last_moment_is_lost() -> None:
    told = Told()
    desk = Desk(observer=told)
    desk.ready(b"w", credit=2)
    desk.request(b"c", 1)
    desk.send(b"w", *native.encode_partial(ident(1), 7, 0, [b"part"]))
    desk.request(b"c", 2, ttl_ms=100)
    desk.now = 0.2
    desk.send(b"w", *native.encode_disconnect())

    assert sorted(told.ends) == [(ident(1), "lost", 0), (ident(2), "lost", 0)]


def test_a_reply_that_is_held_for_too_long_a_client_is_lost_and_its_final_late() -> None:
    told = Told()
    desk = Desk(observer=told, partials_buffer_bytes_max=10)
    desk.ready02(b"w")
    desk.request01(b"c")
    desk.partial02(b"w", b"c", b"x" * 11)
    desk.final02(b"w", b"c")

    assert [outcome for _, outcome, _ in told.ends] == ["lost", "late"]


def test_what_a_node_holds_when_it_gives_up_its_role_is_returned_and_may_be_late() -> None:
    told = Told()
    desk = Desk(b"w", observer=told)
    desk.request(b"c", 1)
    desk.request(b"c", 2)
    desk.broker.deactivate(desk.now)
    desk.final(b"w", 1)

    assert told.ends == [(ident(2), "returned", 0), (ident(1), "returned", 0), (ident(1), "late", 0)]


def test_a_worker_s_end_is_told_with_why() -> None:
    told = Told()
    desk = Desk(b"drained", b"expired", b"twice", b"unreachable", b"gone", b"invalid", observer=told)
    desk.send(b"drained", *native.encode_disconnect())
    desk.broker.unreachable(b"unreachable", desk.now)
    desk.ready(b"twice")
    desk.send(b"invalid", b"MDPW02", b"\x05", b"too much")
    desk.request(b"c", 1)  # goes to the one that will be silent
    desk.request(b"c", 2)
    desk.broker.unreachable(b"gone", desk.now)
    desk.wait(60)

    lost = {worker: (reason, held) for what, worker, reason, held in told.workers if what == "lost"}
    assert lost == {
        b"drained": ("drained", 0),
        b"unreachable": ("unreachable", 0),
        b"twice": ("unexpected", 0),
        b"invalid": ("invalid", 0),
        b"gone": ("unreachable", 1),
        b"expired": ("expired", 1),
    }


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_end_that_is_counted_is_told(seed: int) -> None:
    """Requests, replies, deaths, changes of role and time in random order."""
    chance = random.Random(seed)
    told = Told()
    desk = Desk(observer=told, deliveries_max=2, queue_length_max=8, request_ttl_s=20)
    number = 0
    for _ in range(600):
        worker = chance.choice((b"u", b"v", b"w"))
        match chance.randrange(12):
            case 0 | 1 | 2 | 3 if desk.ledger.is_serving:
                number += 1
                desk.request(chance.choice((b"c", b"d")), number, ttl_ms=chance.choice((0, 0, 500)))
            case 4 if worker not in desk.ledger.workers:
                desk.ready(worker, credit=3)
            case 5 | 6 | 7 if held := _held(desk, worker):
                desk.final(worker, chance.choice(held))
            case 8 if held := _held(desk, worker):
                failure(desk, worker, chance.choice(held))
            case 9 if held := _held(desk, worker):
                desk.send(worker, *native.encode_partial(ident(chance.choice(held)), 7, 0, [b"p"]))
            case 10 if chance.random() < 0.3:
                desk.send(worker, *native.encode_disconnect())
            case 11 if chance.random() < 0.1:
                if desk.ledger.is_serving:
                    desk.broker.deactivate(desk.now)
                else:
                    desk.broker.activate(desk.ledger.epoch + 1)
            case _:
                desk.wait(chance.random() * 0.3)
    service = desk.ledger.services[b"echo"]
    counted = {
        "answered": service.tally.answered,
        "failed": service.tally.failed,
        "expired": service.tally.expired,
        "poison": service.tally.poisoned,
        "lost": service.tally.lost,
        "returned": service.tally.returned,
    }
    seen = Counter(outcome for _, outcome, _ in told.ends)

    assert {outcome: seen[outcome] for outcome in counted} == counted  # type: ignore[index]
    finals = [identity for identity, outcome, _ in told.ends if outcome in ("answered", "failed")]
    assert len(finals) == len(set(finals))
    in_hand = sum(
        not request.is_abandoned
        for each in desk.ledger.workers.values()
        for request in each.in_flight.values()
    )
    ended = sum(count for outcome, count in seen.items() if outcome != "late")
    assert ended + in_hand + desk.ledger.waiting.count == service.tally.accepted


def _held(desk: Desk, worker: bytes) -> list[int]:
    record = desk.ledger.workers.get(worker)
    return [int.from_bytes(identity[16:], "big") for identity in record.in_flight] if record else []


# --- the journal writes -------------------------------------------------------------------------------------


class Stand:
    """A node that serves, with a journal that has no thread, and a clock of the test's."""

    def __init__(self, folder: Path, *, sample: float = 1.0, **limits: Any) -> None:
        self.folder = folder
        self.now = 100.0
        settings = sample_settings("primary")
        options = JournalOptions(str(folder), sample=sample, gzip=False)
        self.journal = open_journal(
            options,
            settings,
            node_id=NODE_ID,
            epoch=4,
            has_thread=False,
            mono=lambda: round(self.now * 1e9),
            wall=lambda: 1_780_000_000_000_000_000 + round(self.now * 1e9),
        )
        self.written = NodeJournal(self.journal, node_id=NODE_ID, clock=lambda: self.now)
        machine = StarMachine(
            StarSettings(pair="bstar", role=Role.PRIMARY), node=NODE_ID.hex(), epoch=4, now=self.now
        )
        self.node = Node(
            machine,
            BrokerSettings(**limits),
            node_id=NODE_ID,
            drain_timeout_s=5,
            version="test",
            now=self.now,
            observer=self.written,
        )
        self.written.attach(self.node, lambda: 0.25)

    def hear_peer(self, seq: int, state: int, epoch: int = 0) -> None:
        word = PeerState(
            state=state,
            pair="bstar",
            role="backup",
            node="ab" * 16,
            seq=seq,
            epoch=epoch,
            heartbeat_ms=1000,
            timeout_ms=2000,
        )
        for output in self.node.step(PeerMessage(word), self.now):
            self.written.observe(output)

    def activate(self) -> None:
        self.hear_peer(1, 2)
        self.hear_peer(2, 4)
        assert self.node.is_active

    def send(self, sender: bytes, frames: list[bytes]) -> list[list[bytes]]:
        outputs = self.node.receive_frames([sender, *frames], self.now)
        for output in outputs:
            self.written.observe(output)
        return [output.frames for output in outputs if isinstance(output, Send)]

    def ready(self, worker: bytes, service: bytes = b"echo", credit: int = 1) -> None:
        self.send(worker, native.encode_ready(service, credit=credit))

    def request(self, number: int, service: bytes = b"echo", body: bytes = b"hi") -> None:
        self.send(b"c", native.encode_request(ident(number), service, [body], ttl_ms=0))

    def final(self, worker: bytes, number: int, body: bytes = b"done") -> None:
        self.send(worker, native.encode_final(ident(number), 5, 0, [body]))

    def of(self, *kinds: type[Any]) -> list[Any]:
        self.journal.turn()
        found: list[Record] = []
        for path in sorted(self.folder.iterdir()):
            found += map(records.decode, path.read_bytes().splitlines())
        return [record for record in found if type(record) in kinds]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path, queue_length_max=3)
    stand.activate()
    yield stand
    stand.written.close("asked to")


def test_a_node_begins_with_what_it_is(stand: Stand) -> None:
    [started] = stand.of(records.Started)

    assert (started.node, started.boot, started.source) == ("primary", NODE_ID.hex(), "broker")
    assert (started.epoch, started.heartbeat_us, started.failover_timeout_us) == (4, 100_000, 2_000_000)
    assert started.endpoints == "tcp://127.0.0.1:5001"
    assert started.config == config_digest(sample_settings("primary"))


def test_two_configurations_have_two_digests() -> None:
    one = sample_settings("primary")

    assert config_digest(one) == config_digest(sample_settings("primary"))
    assert config_digest(one) != config_digest(sample_settings("backup"))
    assert len(config_digest(one)) == 16


def test_a_request_s_times_add_up(stand: Stand) -> None:
    stand.request(1, body=b"12345")
    stand.now += 0.5
    stand.ready(b"w")
    stand.now += 0.25
    stand.send(b"w", native.encode_partial(ident(1), 5, 0, [b"123"]))
    stand.final(b"w", 1, b"1234")

    [request] = stand.of(Request)
    assert (request.client, request.number) == (CLIENT_ID.hex(), 1)
    assert (request.total_us, request.queued_us, request.busy_us) == (750_000, 500_000, 250_000)
    assert (request.worker, request.sender, request.deliveries) == (b"w".hex(), b"c".hex(), 1)
    assert (request.bytes_in, request.bytes_out, request.partials) == (5, 7, 1)
    assert (request.outcome, request.epoch, request.weight) == ("answered", 5, 1.0)
    assert request.mono == 100_750_000


@settings(deadline=None)
@given(
    identity=st.binary(min_size=24, max_size=24),
    service=st.binary(min_size=1, max_size=20),
    outcome=st.sampled_from(["answered", "failed", "lost", "late"]),
    sizes=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    times=st.tuples(st.floats(0, 1e5), st.floats(0, 1e3), st.floats(0, 1e3)),
    sample=st.sampled_from([1.0, 0.3, 1 / 3]),
    rest=st.tuples(st.booleans(), st.integers(0, 3), st.booleans(), st.integers(0, 2)),
)
def test_the_line_that_is_written_in_haste_is_the_record_s(
    identity: bytes,
    service: bytes,
    outcome: Outcome,
    sizes: tuple[int, int],
    times: tuple[float, float, float],
    sample: float,
    rest: tuple[bool, int, bool, int],
) -> None:
    is_plain, deliveries, is_repeated, partials = rest
    if is_plain:
        identity = NODE_ID + identity[16:]
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(Path(folder), sample=sample)
        accepted_at, queued_s, busy_s = times
        request = Accepted(
            b"\x00client",
            (),
            native_broker.CODEC,
            b"",
            ServiceRecord(service, 0.0),
            [],
            sizes[0],
            identity,
            b"",
            accepted_at,
            0.0,
            False,
            deliveries=deliveries,
            is_repeated=is_repeated,
            partials=partials,
            dispatched_at=accepted_at + queued_s,
            worker=b"\x00worker",
        )
        stamp = {**stand.journal.who, "seq": 7, "at": 1 << 50, "mono": 1 << 40}
        now = accepted_at + queued_s + busy_s
        line = stand.written.lines._line(stamp, request, outcome, 3, sizes[1], now)
        weight = stand.journal.weight
        stand.written.close(None)

    total_us = int((now - accepted_at) * 1e6)
    queued_us = int((accepted_at + queued_s - accepted_at) * 1e6) if deliveries else total_us
    assert records.decode(line) == records.Request(
        **stamp,
        client="mdp-" + request.sender.hex() if is_plain else identity[:16].hex(),
        number=int.from_bytes(identity[16:], "big") & ((1 << 63) - 1),
        service=service.decode("utf-8", "backslashreplace"),
        sender=request.sender.hex(),
        outcome=outcome,
        epoch=3,
        total_us=total_us,
        queued_us=queued_us,
        busy_us=total_us - queued_us,
        worker=request.worker.hex() if deliveries else "",
        deliveries=deliveries,
        is_repeated=is_repeated,
        partials=partials,
        bytes_in=sizes[0],
        bytes_out=sizes[1],
        weight=weight,
    )


def test_a_redelivered_request_tells_its_last_worker(stand: Stand) -> None:
    stand.ready(b"v")
    stand.request(1)
    stand.now += 1
    stand.send(b"v", native.encode_disconnect())
    stand.now += 1
    stand.ready(b"w")
    stand.now += 1
    stand.final(b"w", 1)

    [request] = stand.of(Request)
    assert (request.worker, request.deliveries) == (b"w".hex(), 2)
    assert (request.total_us, request.queued_us, request.busy_us) == (3_000_000, 2_000_000, 1_000_000)


def test_a_returned_request_is_as_it_was_when_it_was_returned(stand: Stand) -> None:
    stand.ready(b"w")
    stand.request(1)
    stand.request(2)
    stand.now += 1
    stand.hear_peer(3, 3, epoch=9)  # the peer serves under a higher epoch
    stand.now += 1
    stand.send(b"w", native.encode_partial(ident(1), 5, 0, [b"more"]))
    stand.final(b"w", 1)

    one, two, late = sorted(stand.of(Request), key=lambda request: (request.mono, request.number))
    assert (one.outcome, one.worker, one.partials, one.total_us) == ("returned", b"w".hex(), 0, 1_000_000)
    assert (two.outcome, two.worker, two.deliveries, two.queued_us) == ("returned", "", 0, 1_000_000)
    assert (late.outcome, late.number, late.total_us) == ("late", 1, 2_000_000)
    [active] = stand.of(records.Activated)
    [inactive] = stand.of(records.Deactivated)
    assert active.epoch == inactive.epoch == one.epoch == 5


def test_a_plain_client_is_named_by_its_connection(stand: Stand) -> None:
    stand.send(b"w", [b"MDPW02", b"\x01", b"echo"])
    stand.send(b"\x00plain", [b"MDPC02", b"\x01", b"echo", b"hi"])
    stand.send(b"w", [b"MDPW02", b"\x04", b"\x00plain", b"", b"ho"])

    [request] = stand.of(Request)
    assert (request.client, request.number) == ("mdp-" + b"\x00plain".hex(), 1)


def test_a_client_behind_a_front_is_named_with_the_front(stand: Stand) -> None:
    peer = front.peer_id("ppp", "clients", b"\x00c")
    stand.send(b"w", [b"MDPW02", b"\x01", b"echo"])
    asked = messages.Request(peer, Dialect.FRONT, (b"",), b"echo", [b"hi"])
    stand.node.receive_message(asked, stand.now, "")
    stand.send(b"w", [b"MDPW02", b"\x04", peer, b"", b"ho"])

    [request] = stand.of(Request)
    assert request.client == "mdp-ppp-" + b"\x00c".hex()


def test_both_nodes_and_everybody_else_choose_the_same_requests(tmp_path: Path) -> None:
    chosen = []
    for name in ("one", "other"):
        stand = Stand(tmp_path / name, sample=0.25)
        stand.activate()
        stand.ready(b"w")
        for number in range(1, 257):
            stand.request(number)
            stand.final(b"w", number)
        requests = stand.of(Request)
        assert {request.weight for request in requests} == {4.0}
        assert stand.journal.is_sampled(ident(requests[0].number))
        chosen.append({request.number for request in requests})
        stand.written.close(None)

    assert chosen[0] == chosen[1]
    assert 50 < len(chosen[0]) < 80


def test_workers_come_and_go(stand: Stand) -> None:
    stand.ready(b"w", credit=3)
    stand.send(b"w", native.encode_disconnect())

    [registered] = stand.of(WorkerRegistered)
    [lost] = stand.of(WorkerLost)
    assert (registered.worker, registered.service, registered.dialect, registered.credit) == (
        b"w".hex(),
        "echo",
        "native",
        3,
    )
    assert (lost.worker, lost.reason, lost.held) == (b"w".hex(), "drained", 0)


def test_the_load_of_an_interval_is_exact(stand: Stand) -> None:
    stand.ready(b"w", credit=2)
    stand.now += 1
    stand.request(1)
    stand.now += 2
    stand.request(2)
    stand.now += 1
    stand.final(b"w", 1)  # held for 3 s
    stand.now += 1
    stand.written.tick(stand.now)  # the other one for 2 s, so far
    stand.now += 5
    stand.final(b"w", 2)
    stand.now += 5
    stand.written.tick(stand.now)
    stand.now += 10
    stand.written.tick(stand.now)
    stand.now += 10
    stand.written.tick(stand.now)

    one, two = stand.of(Load)
    assert (one.interval_us, one.accepted, one.answered, one.busy_us) == (5_000_000, 2, 1, 5_000_000)
    assert (one.workers, one.credit, one.queued, one.in_flight) == (1, 2, 0, 1)
    assert (two.interval_us, two.accepted, two.answered, two.busy_us) == (10_000_000, 0, 1, 5_000_000)
    assert two.in_flight == 0


def test_a_service_at_rest_says_nothing_until_it_moves(stand: Stand) -> None:
    stand.ready(b"w")
    for _ in range(5):
        stand.now += 10
        stand.written.tick(stand.now)
    stand.ready(b"v")
    stand.now += 10
    stand.written.tick(stand.now)

    assert [load.workers for load in stand.of(Load)] == [1, 2]
    assert len(stand.of(Pulse)) == 7


@pytest.mark.parametrize("remembered", [0, 1_000])
def test_a_service_that_is_forgotten_between_two_intervals_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr("bstar_broker.core.services.PAST_MAX", remembered)
    stand = Stand(tmp_path, service_ttl_s=1.0, request_ttl_s=1.0)
    stand.activate()
    for number in (1, 2):
        stand.request(number, service=b"nobody")
        for _ in range(40):
            stand.now += 0.25
            stand.node.machine.serve_until = float("inf")
            stand.node.step(Tick(), stand.now)
        assert not stand.node.broker.ledger.services
        assert len(stand.node.broker.ledger.services.past) == min(1, remembered)
        stand.written.tick(stand.now)

        assert sum(load.expired for load in stand.of(Load)) == number
        assert sum(load.accepted for load in stand.of(Load)) == number
    stand.written.close(None)


def test_refusals_are_counted_by_reason_and_by_service_once(stand: Stand) -> None:
    for number in range(1, 7):
        stand.request(number)
    stand.final(b"stranger", 1)
    stand.now += 10
    stand.written.tick(stand.now)
    stand.request(7)
    stand.now += 10
    stand.written.tick(stand.now)

    refused = [(each.reason, each.service, each.count) for each in stand.of(Refused)]
    assert refused == [("queue-full", "echo", 3), ("unknown-worker", "", 1), ("queue-full", "echo", 1)]
    assert [load.refused for load in stand.of(Load)] == [3, 1]


def test_what_happened_since_the_last_interval_is_recorded_when_the_node_ends(stand: Stand) -> None:
    stand.request(1)
    stand.now += 3
    stand.written.close("asked to")

    assert [(load.accepted, load.queued) for load in stand.of(Load)] == [(1, 1)]
    [stopped] = stand.of(records.Stopped)
    assert stopped.reason == "asked to"
    assert type(stand.of(*records.KINDS.values())[-1]) is records.SegmentClosed


def test_a_node_that_breaks_down_does_not_say_that_it_stopped(stand: Stand) -> None:
    stand.written.close(None)

    assert stand.of(records.Stopped) == []
    assert stand.of(records.SegmentClosed)


def test_a_pulse_tells_the_node_s_state_from_the_first_moment_on(tmp_path: Path) -> None:
    stand = Stand(tmp_path)

    [pulse] = stand.of(Pulse)
    assert (pulse.state, pulse.epoch, pulse.lag_us) == ("PRIMARY", 4, 250_000)
    stand.written.close(None)


def test_a_change_of_state_is_recorded_with_its_cause(stand: Stand) -> None:
    [change] = stand.of(records.StateChanged)

    assert (change.old, change.new) == ("PRIMARY", "ACTIVE")
    assert change.event.startswith("PEER_")
    assert change.text
    assert change.epoch == 5
    [seen] = stand.of(records.PeerSeen)
    assert (seen.peer, seen.peer_boot) == ("BACKUP", "ab" * 16)


_OUTPUTS = [
    (star.PeerLost(0.3), records.PeerLost, {"reason": "silent", "silent_us": 300_000}),
    (star.PeerLost(0.0, has_left=True), records.PeerLost, {"reason": "left", "silent_us": 0}),
    (star.PeerLost(0.01, is_gone=True), records.PeerLost, {"reason": "gone", "silent_us": 10_000}),
    (star.PeerAsked("why"), records.PeerAsked, {"text": "why"}),
    (star.PeerRejected("pair", "text"), records.PeerRejected, {"reason": "pair", "text": "text"}),
    (star.HandoverRefused("text"), records.HandoverRefused, {"text": "text"}),
    (
        star.TakeoversPaused(2.0, "who: why"),
        records.TakeoversPaused,
        {"for_us": 2_000_000, "text": "who: why"},
    ),
    (star.TakeoversResumed("who: why"), records.TakeoversResumed, {"text": "who: why"}),
    (
        star.TimeoutAdapted(0.3, 0.7),
        records.TimeoutAdapted,
        {"timeout_us": 700_000, "text": star.TimeoutAdapted(0.3, 0.7).text},
    ),
    (star.Drained("who: why"), records.Drained, {"text": "who: why"}),
    (star.Rejoined("who: why"), records.Rejoined, {"text": "who: why"}),
    (star.Claimed("why"), records.Claimed, {"text": "why"}),
    (star.ArbiterSeen(), records.ArbiterSeen, {}),
    (star.ArbiterLost(0.5), records.ArbiterLost, {"silent_us": 500_000}),
    (star.Fatal(DualActiveError("both")), records.Fatal, {"exit_code": 70, "text": "both"}),
]


@pytest.mark.parametrize(("output", "kind", "fields"), _OUTPUTS)
def test_every_other_output_of_the_pair_is_recorded(
    stand: Stand, output: object, kind: type[Any], fields: dict[str, Any]
) -> None:
    before = len(stand.of(kind))
    stand.written.observe(output)

    record = stand.of(kind)[before]
    assert {name: getattr(record, name) for name in fields} == fields


def test_no_output_of_the_pair_is_forgotten(stand: Stand) -> None:
    """Those without a record are what is sent and stored, not what happened."""
    carried_out = {star.Publish, star.PersistEpoch, star.PersistPause, star.AskArbiter}

    assert set(PAIR_RECORDS) == set(star.Output.__args__) - carried_out


def test_a_pause_of_the_process_is_recorded(stand: Stand) -> None:
    stand.written.stalled(0.4, stand.now)

    [stalled] = stand.of(records.Stalled)
    assert stalled.gap_us == 400_000


def test_no_directory_means_no_journal() -> None:
    assert options_of(sample_settings("primary")) is None


def test_the_keys_of_the_section_reach_the_writer() -> None:
    keys = {
        "directory": "d",
        "sample": 0.5,
        "rotate_bytes": 1 << 20,
        "rotate_s": 7.0,
        "gzip": False,
        "flush_interval_s": 0.2,
        "buffer_records": 2_000,
        "keep_bytes": 1 << 21,
        "keep_days": 3.0,
    }
    endpoints = {
        "clients": "tcp://127.0.0.1:5001",
        "state": "tcp://127.0.0.1:5003",
        "peer_state": "tcp://127.0.0.1:5004",
    }
    settings = from_mapping({"role": "primary", "endpoints": endpoints, "journal": keys})

    assert options_of(settings) == JournalOptions(**keys)  # type: ignore[arg-type]


# --- batches ------------------------------------------------------------------------------------------------


def test_the_answers_to_a_batch_are_told_together() -> None:
    told = Told()
    desk = Desk(observer=told)
    desk.ready(b"w", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2, 3])
    desk.finals(b"w", [3, 1], [b"xyz", b""])
    desk.send(b"w", *native.encode_final(ident(2), 7, 0, [b"x"]))

    assert told.ends == [(ident(3), "answered", 3), (ident(1), "answered", 0), (ident(2), "answered", 1)]


@pytest.mark.parametrize(
    ("bodies", "replies"),
    [([b"", b"%s", b"ccc"], [b"%d", b"", b"b" * 9]), ([b"%s"] * 3, [b"%d\0"] * 3)],
    ids=["sizes differ", "one size"],
)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_batch_leaves_the_records_that_its_requests_would_leave_one_by_one(
    tmp_path: Path, is_repeated: bool, bodies: list[bytes], replies: list[bytes]
) -> None:
    left = []
    for folder in ("single", "batch"):
        here = Stand(tmp_path / folder)
        here.activate()
        service = b'50%% "of" \xff%d\0'
        worker = native.encode_ready(service, credit=5, takes_batches=folder == "batch")
        here.send(b"w", worker)
        numbers = [1, 2, 3]
        if folder == "batch":
            given = native.encode_requests(
                CLIENT_ID, service, numbers, [0] * 3, bodies, is_repeated=is_repeated
            )
            here.send(b"c", given)
        else:
            for number, body in zip(numbers, bodies, strict=True):
                here.send(
                    b"c", native.encode_request(ident(number), service, [body], is_repeated=is_repeated)
                )
        here.now += 0.125
        if folder == "batch":
            here.send(b"w", native.encode_finals(CLIENT_ID, 5, numbers, replies))
        else:
            for number, reply in zip(numbers, replies, strict=True):
                here.final(b"w", number, reply)
        left.append(here.of(Request))
        here.written.close("asked to")
    assert len(left[0]) == 3
    assert left[0] == left[1]


def test_of_a_batch_the_same_requests_are_in_the_sample_as_one_by_one(tmp_path: Path) -> None:
    here = Stand(tmp_path, sample=0.3)
    here.activate()
    here.send(b"w", native.encode_ready(b"echo", credit=500, takes_batches=True))
    numbers = range(1, 401)
    here.send(b"c", native.encode_requests(CLIENT_ID, b"echo", numbers, [0] * 400, [b"x"] * 400))
    here.send(b"w", native.encode_finals(CLIENT_ID, 5, numbers, [b"x"] * 400))
    found = here.of(Request)
    assert {record.number for record in found} == {
        number for number in numbers if here.journal.is_sampled(ident(number))
    }
    assert all(record.weight == pytest.approx(1 / 0.3) for record in found)
    here.written.close("asked to")
