"""Limits of single services: which entry counts, what it holds back, and how the other node's work counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from bstar.base.patterns import closest
from bstar.wire import durable, native
from bstar.wire.description import LimitsInUse, ServiceLimits, ServiceSummary
from bstar.wire.durable import State
from bstar.wire.extensions import elsewhere_extension
from bstar.wire.messages import ErrorCode
from bstar_broker.core.limits import Throttle, limits_of
from bstar_broker.core.management import Management, Pictures, broker_state
from bstar_broker.core.settings import NO_LIMITS, BrokerSettings
from bstar_broker.core.snapshot import ServiceState
from support.desk import Desk, heard, ident, sent
from support.solo_store import SoloStore
from test_broker_core import no_state

EPOCH = 7
# The time in which the workers of a node that has just started register.
SETTLED_S = BrokerSettings().worker_heartbeat_interval_s * BrokerSettings().worker_liveness


def limited(*, settled: bool = True, **limits: Any) -> Desk:
    """A broker with these limits for the service echo."""
    services: Any = {"echo": ServiceLimits(**limits)}
    desk = Desk(services=services)
    if settled:
        desk.wait(SETTLED_S)
    return desk


def join(
    desk: Desk, workers: Iterable[bytes], credit: int = 1, elsewhere: int | None = 0
) -> list[list[bytes]]:
    """Native workers register, and tell in the epoch of this node what they execute for others."""
    sent = []
    for worker in workers:
        told = b"" if elsewhere is None else elsewhere_extension(elsewhere)
        sent += desk.send(worker, *native.encode_ready(b"echo", credit=credit, epoch=EPOCH, extensions=told))
    return sent


def given(sent: Iterable[list[bytes]]) -> list[tuple[bytes, bytes]]:
    """Worker and identity of each request that was given out; a batch counts with each of its requests."""
    found = []
    for frames in sent:
        if frames[1][:2] != native.MAGIC:
            continue
        message = heard(frames)
        if message.command == native.REQUEST:
            found.append((frames[0], message.identity))
        elif message.command == native.REQUESTS:
            found += [(frames[0], b"row")] * (len(message.body[0]) // 16)
    return found


def state(desk: Desk, service: str = "echo") -> ServiceState:
    [found] = [each for each in broker_state(desk.ledger, desk.now).services if each.service == service]
    return found


def test_a_worker_that_is_lost_with_its_last_reply_counts_no_more() -> None:
    """Its connection was found gone, and its reply was unread."""
    desk = limited(running_max=2)
    join(desk, [b"w"], credit=2, elsewhere=1)
    assert len(given(desk.request(b"c", 1))) == 1
    desk.broker.unreachable(b"w", desk.now)
    desk.final(b"w", 1)
    assert state(desk).workers == 0
    join(desk, [b"new"], credit=2)
    assert len(given([*desk.request(b"c", 2), *desk.request(b"c", 3)])) == 2


# --- which entry counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (b"mail.eu", "mail.eu"),
        (b"mail.eu.fast", "mail.eu.*"),
        (b"mail.us", "mail.*"),
        (b"mail", "*"),
        (b"\xff", "*"),
    ],
)
def test_a_name_counts_before_patterns_and_a_longer_pattern_before_a_shorter_one(
    name: bytes, pattern: str
) -> None:
    patterns = ["*", "mail.*", "mail.eu", "mail.eu.*"]
    assert closest(name, patterns) == closest(name, reversed(patterns)) == pattern


def test_an_entry_counts_as_a_whole() -> None:
    entries = {"*": ServiceLimits(running_max=1), "mail.*": ServiceLimits(expires_s=5.0)}
    assert limits_of(b"mail.eu", entries) == ServiceLimits(expires_s=5.0)
    assert limits_of(b"mail.eu", {}) is NO_LIMITS


# --- running_max --------------------------------------------------------------------------------------------


def test_workers_never_have_more_than_running_max_of_a_service() -> None:
    desk = limited(running_max=10)
    join(desk, [b"w%d" % number for number in range(50)])
    out: dict[bytes, bytes] = {}
    for number in range(100):
        out.update({identity: worker for worker, identity in given(desk.request(b"c", number))})
    assert len(out) == 10
    assert (state(desk).in_flight, state(desk).bound) == (10, "running_max 10: 10 running, 90 wait")
    for _ in range(90):
        identity, worker = next(iter(out.items()))
        del out[identity]
        [(worker, identity)] = given(desk.send(worker, *native.encode_final(identity, EPOCH, 0, [b"done"])))
        out[identity] = worker
        assert state(desk).in_flight == len(out) == 10
    assert (state(desk).queued, state(desk).bound) == (0, "")


def test_another_service_waits_for_nothing() -> None:
    desk = limited(running_max=1)
    desk.ready(b"w", b"other")
    assert len(given(desk.request(b"c", 1, service=b"other"))) == 1


def test_what_a_worker_fetches_ahead_counts() -> None:
    desk = limited(running_max=3)
    join(desk, [b"w"], credit=8)
    assert len([pair for number in range(6) for pair in given(desk.request(b"c", number))]) == 3


def test_a_batch_is_given_out_as_far_as_there_is_room() -> None:
    desk = limited(running_max=5)
    for worker in (b"w1", b"w2"):
        ready = native.encode_ready(
            b"echo", credit=64, epoch=EPOCH, takes_batches=True, extensions=elsewhere_extension(0)
        )
        desk.send(worker, *ready)
    assert len(given(desk.requests(b"c", range(100, 120)))) == 5
    assert state(desk).bound == "running_max 5: 5 running, 15 wait"
    holder = next(each for each in desk.ledger.workers.values() if each.bundled)
    numbers = [number for bundle in holder.bundles for number in bundle.numbers]
    assert len(given(desk.finals(holder.routing_id, numbers))) == len(numbers)
    assert state(desk).in_flight == 5


def test_requests_of_a_lost_worker_make_room() -> None:
    desk = limited(running_max=1)
    join(desk, [b"w1", b"w2"])
    [(worker, _)] = given(desk.request(b"c", 1))
    desk.request(b"c", 2)
    [(other, identity)] = given(desk.send(worker, *native.encode_disconnect(epoch=EPOCH)))
    assert (worker != other, identity) == (True, ident(1))
    assert state(desk).in_flight == 1


def test_a_request_that_was_given_up_counts_until_its_worker_has_answered() -> None:
    desk = limited(running_max=1)
    join(desk, [b"w1", b"w2"])
    [(worker, _)] = given(desk.request(b"c", 1))
    desk.request(b"c", 2)
    assert given(desk.send(b"c", *native.encode_cancel(ident(1), 0))) == []
    assert state(desk).in_flight == 1
    assert [identity for _, identity in given(desk.final(worker, 1))] == [ident(2)]


def test_a_node_that_has_just_started_waits_until_its_workers_have_registered() -> None:
    desk = limited(settled=False, running_max=2)
    join(desk, [b"w1", b"w2"])
    assert given(desk.request(b"c", 1)) == []
    assert state(desk).bound.startswith("running_max: its workers have 4.0 s more to tell")
    join(desk, [b"w3"], elsewhere=1)
    assert given(desk.wait(SETTLED_S / 2)) == []
    for worker, elsewhere in ((b"w1", 0), (b"w2", 0), (b"w3", 1)):
        assert given(desk.send(worker, *native.encode_heartbeat(EPOCH, elsewhere))) == []
    assert len(given(desk.wait(SETTLED_S / 2))) == 1
    desk.request(b"c", 2)
    assert state(desk).bound == "running_max 2: 2 running, 1 wait"


# --- after a failover ---------------------------------------------------------------------------------------


def taken_over(workers: int, credit: int = 1, **limits: Any) -> Desk:
    """A passive node that knows the workers, and becomes active in epoch 9."""
    services: Any = {"echo": ServiceLimits(**limits)}
    desk = Desk(is_serving=False, services=services)
    join(desk, [b"w%d" % number for number in range(workers)], credit=credit)
    desk.wait(2 * SETTLED_S / 3)
    for number in range(workers):
        desk.send(b"w%d" % number, *native.encode_heartbeat(EPOCH))
    desk.wait(SETTLED_S / 2)
    desk.broker.activate(9)
    return desk


@pytest.mark.requirement("BSN-W-24")
def test_a_node_that_takes_over_asks_and_counts_what_workers_execute_for_the_other_node() -> None:
    desk = taken_over(50, running_max=10)
    beats = [heard(frames) for frames in sent(desk.broker.resume(desk.now))]
    assert {(beat.command, beat.epoch, beat.value) for beat in beats} == {(native.HEARTBEAT, 9, 3)}
    assert len(beats) == 50
    told = [frame for number in range(100) for frame in desk.request(b"c", number)]
    for number in range(50):
        told += desk.send(b"w%d" % number, *native.encode_heartbeat(9, elsewhere=int(number < 8)))
        assert len(given(told)) <= max(0, 10 - 8 - (49 - number))
    assert len(given(told)) == 2
    assert state(desk).bound == "running_max 10: 10 running, 98 wait"
    # Each end at a worker makes room for one.
    for number in range(8):
        assert len(given(desk.send(b"w%d" % number, *native.encode_heartbeat(9)))) == 1


def test_a_worker_that_does_not_tell_in_time_holds_the_others_back_until_it_is_lost() -> None:
    desk = taken_over(2, credit=5, running_max=5)
    desk.broker.resume(desk.now)
    desk.request(b"c", 1)
    assert given(desk.send(b"w0", *native.encode_heartbeat(9))) == []
    sent = desk.wait(SETTLED_S)
    desk.send(b"w0", *native.encode_heartbeat(9))
    sent += desk.wait(SETTLED_S / 2)
    assert state(desk).workers == 1
    assert [worker for worker, _ in given(sent)] == [b"w0"]


def test_a_worker_of_another_dialect_counts_with_what_this_node_gave_it() -> None:
    desk = limited(running_max=2)
    join(desk, [b"old"], elsewhere=None)
    desk.ready02(b"plain")
    assert len(given(desk.request(b"c", 1))) + len(desk.request(b"c", 2)) == 2
    assert state(desk).in_flight == 2


def test_a_worker_cannot_claim_more_than_its_credit() -> None:
    desk = limited(running_max=2)
    join(desk, [b"w1"], elsewhere=2**32 - 1)
    join(desk, [b"w2"])
    assert len(given(desk.request(b"c", 1))) == 1


# --- requests_per_s -----------------------------------------------------------------------------------------


def test_requests_beyond_the_rate_wait_for_a_token_and_are_not_refused() -> None:
    desk = limited(requests_per_s=5)
    join(desk, [b"w"], credit=100)
    at = [desk.now for number in range(20) for _ in given(desk.request(b"c", number))]
    assert len(at) == 5, "one second's tokens at once"
    assert state(desk).bound == "requests_per_s 5: 15 wait"
    assert state(desk).held_back == 15
    begin = desk.now
    while len(at) < 20:
        deadline = desk.broker.next_deadline()
        at += [desk.now for _ in given(desk.wait(deadline - desk.now))]
    assert [round(each - begin, 2) for each in at[5:]] == [round((n + 1) / 5, 2) for n in range(15)]
    assert (state(desk).queued, state(desk).bound, desk.ledger.drops) == (0, "", {})


def test_a_node_knows_when_the_next_token_comes() -> None:
    desk = limited(requests_per_s=0.01)
    join(desk, [b"w"], credit=100)
    desk.request(b"c", 1)
    before = desk.now
    desk.request(b"c", 2)
    assert [round(each - before, 3) for each in desk.ledger.opens_at.values()] == [100.0]


def test_tokens_do_not_gather_beyond_one_second() -> None:
    throttle = Throttle(ServiceLimits(requests_per_s=3), 0.0, 0.0)
    throttle.spend(3, 1.0)
    assert throttle.room(100.0) == 3
    slow = Throttle(ServiceLimits(requests_per_s=0.5), 0.0, 0.0)
    assert (slow.room(0.0), slow.room(100.0)) == (1, 1)


def test_a_pause_and_a_rate_hold_back_together() -> None:
    desk = limited(requests_per_s=1)
    join(desk, [b"w"], credit=100)
    service = desk.ledger.services[b"echo"]
    desk.broker.orders.pause(service, 0.0, "ann", desk.now)
    for number in range(3):
        assert given(desk.request(b"c", number)) == []
    assert given(desk.wait(2)) == []
    outputs = desk.broker.orders.resume(service, "ann", desk.now)
    assert len(given(sent(outputs))) == 1
    assert len(given(desk.wait(1))) == 1


# --- queue_length_max, expires_s ----------------------------------------------------------------------------


def test_a_full_queue_of_the_service_refuses_as_busy_and_others_do_not() -> None:
    desk = limited(queue_length_max=2)
    assert [desk.request(b"c%d" % number, number) for number in range(2)] == [[], []]
    [refused] = desk.request(b"c3", 3)
    assert heard(refused).command == native.BUSY
    assert state(desk).bound == "queue_length_max 2: the queue is full"
    for number in range(10, 20):
        assert desk.request(b"c", number, service=b"other") == []


def test_a_queue_may_be_longer_than_the_global_bound() -> None:
    services: Any = {"echo": ServiceLimits(queue_length_max=50)}
    desk = Desk(queue_length_max=1, services=services)
    assert desk.requests(b"c", range(40)) == []


@pytest.mark.parametrize("ttl_ms", [0, 20_000, 60_000])
@pytest.mark.parametrize("count", [1, 3], ids=["a request", "a batch"])
def test_what_waited_too_long_is_expired(count: int, ttl_ms: int) -> None:
    desk = limited(expires_s=5)
    if count == 1:
        desk.request(b"c", 1, ttl_ms=ttl_ms)
    else:
        desk.requests(b"c", range(count), ttls_ms=[ttl_ms] * count)
    assert desk.wait(4.9) == []
    errors = [heard(answer) for answer in desk.wait(0.2)]
    assert [(error.command, error.value) for error in errors] == [(native.ERROR, ErrorCode.EXPIRED)] * count
    assert all(b"waited for 5 s in the queue (expires_s" in error.body[0] for error in errors)
    assert (state(desk).expired, state(desk).returned) == (count, 0)


def test_its_own_shorter_deadline_counts() -> None:
    desk = limited(expires_s=5)
    desk.request(b"c", 1, ttl_ms=1_000)
    assert len(desk.wait(1.1)) == 1


def test_a_plain_request_that_waited_too_long_leaves_the_queue() -> None:
    desk = limited(expires_s=5)
    desk.request02(b"c")
    assert desk.wait(5.1) == []
    assert (state(desk).queued, state(desk).expired) == (0, 1)


def test_what_a_worker_has_does_not_expire() -> None:
    desk = limited(expires_s=5)
    join(desk, [b"w"])
    desk.request(b"c", 1)
    for _ in range(10):
        desk.wait(1)
        desk.send(b"w", *native.encode_heartbeat(EPOCH))
    [answer] = desk.final(b"w", 1)
    assert heard(answer).command == native.FINAL


# --- requests for one worker alone --------------------------------------------------------------------------


def ask(desk: Desk, number: int, worker: bytes, ttl_ms: int = 0) -> list[list[bytes]]:
    """One of the requests of ``ask_all``."""
    body = [desk.ledger.workers[worker].label.encode(), b"clear"]
    return desk.send(
        b"c", *native.encode_request(ident(number), b"echo", body, ttl_ms=ttl_ms, is_directed=True)
    )


def one_after_another(desk: Desk, first: tuple[bytes, bytes]) -> list[int]:
    """The requests by number, in the order in which they are given out; each is answered before the next."""
    worker, identity = first
    order = [int.from_bytes(identity[16:])]
    while found := given(desk.send(worker, *native.encode_final(identity, EPOCH, 0, [b"done"]))):
        [(worker, identity)] = found
        order.append(int.from_bytes(identity[16:]))
    return order


def test_a_question_to_each_worker_keeps_to_running_max() -> None:
    desk = limited(running_max=2)
    workers = [b"w%d" % number for number in range(5)]
    join(desk, workers)
    out = [pair for number, worker in enumerate(workers) for pair in given(ask(desk, number, worker))]
    assert (state(desk).in_flight, state(desk).bound) == (2, "running_max 2: 2 running, 3 wait")
    for worker, identity in out:
        out += given(desk.send(worker, *native.encode_final(identity, EPOCH, 0, [b"done"])))
        assert state(desk).in_flight <= 2
    assert out == [(worker, ident(number)) for number, worker in enumerate(workers)]


def test_a_question_to_each_worker_takes_tokens() -> None:
    desk = limited(requests_per_s=2)
    workers = [b"w%d" % number for number in range(6)]
    join(desk, workers)
    begin = desk.now
    at = [desk.now for number, worker in enumerate(workers) for _ in given(ask(desk, number, worker))]
    while len(at) < 6:
        at += [desk.now for _ in given(desk.wait(desk.broker.next_deadline() - desk.now))]
    assert [round(each - begin, 2) for each in at] == [0, 0, 0.5, 1, 1.5, 2]


@pytest.mark.requirement("BSN-B-31")
def test_under_a_limit_the_service_gives_out_one_for_one_worker_and_one_for_any_in_turns() -> None:
    """Each worker owed a turn of its own, so with many of them the queue of the service never had one."""
    desk = limited(running_max=1)
    workers = [b"w1", b"w2", b"w3"]
    join(desk, workers)
    [first] = [pair for number in range(6) for pair in given(ask(desk, number, workers[number % 3]))]
    for number in range(10, 14):
        assert given(desk.request(b"d", number)) == []
    assert one_after_another(desk, first) == [0, 10, 1, 11, 2, 12, 3, 13, 4, 5]


def test_under_a_limit_no_worker_is_asked_twice_before_another_is_asked_once() -> None:
    desk = limited(running_max=1)
    join(desk, [b"w1", b"w2"])
    [first] = given(ask(desk, 1, b"w1"))
    for number, worker in ((2, b"w1"), (3, b"w1"), (4, b"w2")):
        assert given(ask(desk, number, worker)) == []
    assert one_after_another(desk, first) == [1, 2, 4, 3]


def test_a_limit_gives_a_worker_as_many_of_its_own_as_it_has_credit() -> None:
    desk = limited(running_max=5)
    join(desk, [b"w1"], credit=4)
    join(desk, [b"w2"], credit=4)
    assert len([pair for number in range(6) for pair in given(ask(desk, number, b"w1"))]) == 4
    assert len([pair for number in range(6, 9) for pair in given(ask(desk, number, b"w2"))]) == 1


def test_one_for_one_worker_that_expires_says_what_it_waited_for() -> None:
    desk = limited(running_max=1)
    join(desk, [b"w1", b"w2"])
    ask(desk, 1, b"w1")
    ask(desk, 2, b"w2", ttl_ms=1_000)
    ask(desk, 3, b"w1", ttl_ms=1_500)
    texts = [heard(frames).body for frames in desk.wait(2) if frames[0] == b"c"]
    busy = b'worker %s of service "echo" was busy' % desk.ledger.workers[b"w1"].label.encode()
    assert texts == [[b"running_max 1: 1 running, 2 wait"], [busy]]


# --- the listing of services --------------------------------------------------------------------------------


def listed(desk: Desk, service: str = "echo") -> ServiceSummary:
    """The service in the answer to ``mmi.descriptions``."""
    management = Management(desk.ledger, no_state)
    status, rows = management.answer(b"mmi.descriptions", [b""], Pictures(), desk.now)
    assert status == b"200"
    return next(
        each for each in msgspec.json.decode(rows, type=list[ServiceSummary]) if each.service == service
    )


def test_the_listing_has_the_limits_and_what_is_used_of_them() -> None:
    desk = limited(running_max=2, requests_per_s=50, queue_length_max=100, expires_s=30)
    desk.request(b"c", 0, service=b"other")
    join(desk, [b"w1", b"w2", b"w3"])
    desk.requests(b"c", range(1, 6))
    bound = "running_max 2: 2 running, 3 wait"
    assert listed(desk).limits == LimitsInUse(2, 50.0, 100, 30.0, running=2, queued=3, bound=bound)
    assert listed(desk, "other").limits is None


def test_a_node_that_does_not_serve_lists_no_limits() -> None:
    desk = taken_over(2, running_max=1)
    assert listed(desk).limits is not None
    desk.broker.deactivate(desk.now)
    assert listed(desk).limits is None


# --- a reload -----------------------------------------------------------------------------------------------


def test_other_limits_hold_at_once_for_what_waits_and_for_what_workers_have() -> None:
    desk = limited(running_max=1)
    join(desk, [b"w"], credit=10)
    for number in range(10):
        desk.request(b"c", number)
    settings = desk.ledger.settings
    settings.services = {"ec*": ServiceLimits(running_max=4)}
    outputs = desk.broker.orders.follow_limits(desk.now)
    assert len(given(sent(outputs))) == 3
    settings.services = {"echo": ServiceLimits(running_max=2)}
    assert desk.broker.orders.follow_limits(desk.now) == []
    assert state(desk).bound == "running_max 2: 4 running, 6 wait"
    settings.services = {}
    outputs = desk.broker.orders.follow_limits(desk.now)
    assert len(given(sent(outputs))) == 6
    assert state(desk).bound == ""


def test_a_service_that_comes_after_a_reload_has_the_new_limits() -> None:
    desk = limited(running_max=1)
    desk.ledger.settings.services = {"*": ServiceLimits(queue_length_max=1)}
    desk.broker.orders.follow_limits(desk.now)
    desk.request(b"c", 1, service=b"other")
    assert desk.ledger.services[b"other"].limits == ServiceLimits(queue_length_max=1)


# --- durable requests ---------------------------------------------------------------------------------------


def durable_ids(count: int) -> list[bytes]:
    return [durable.new_id(number + 1, b"0123456789") for number in range(count)]


def test_limits_cost_durable_requests_no_attempt_and_no_life() -> None:
    solo = SoloStore()
    settings = solo.node.broker.ledger.settings
    settings.services = {
        "work": ServiceLimits(requests_per_s=1, queue_length_max=4, expires_s=2, running_max=1)
    }
    solo.node.limits_changed(solo.now)
    solo.wait(SETTLED_S)
    ids = durable_ids(12)
    for each in ids:
        solo.submit(each)
    worker = b"worker"
    said = solo.say(
        *native.encode_ready(b"work", epoch=solo.node.machine.epoch, extensions=elsewhere_extension(0)),
        sender=worker,
    )
    done: list[bytes] = []
    for _ in range(400):
        told = [native.decode(frames[1:]) for frames in said if frames[0] == worker]
        jobs = [message for message in told if message.command == native.REQUEST]
        said = []
        for job in jobs:
            assert job.extensions[3:5] == b"\0\1", "each has its first attempt"
            done.append(job.identity)
            said += solo.say(
                native.header(native.FINAL, identity=job.identity, epoch=job.epoch), b"done", sender=worker
            )
        before = len(solo.sent)
        solo.wait(0.25)
        said += solo.sent[before:]
        said += solo.say(*native.encode_heartbeat(solo.node.machine.epoch), sender=worker)
        if len(done) == len(ids):
            break
    assert len(set(done)) == len(ids)
    assert {solo.status(each).state for each in ids} == {State.ANSWERED}
    assert solo.table.totals.dead == 0
