"""Limits of single services: which entry counts, what they share, and how the other node's work counts.

The scripts of the broker have what each limit holds back.
"""

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


def limited(**limits: Any) -> Desk:
    """A broker with these limits for the service echo, whose workers have had time to register."""
    services: Any = {"echo": ServiceLimits(**limits)}
    desk = Desk(services=services)
    desk.wait(SETTLED_S)
    return desk


def join(desk: Desk, workers: Iterable[bytes], credit: int = 1) -> None:
    """Native workers register, and tell in the epoch of this node that they execute nothing for others."""
    nothing = elsewhere_extension(0)
    for worker in workers:
        desk.send(worker, *native.encode_ready(b"echo", credit=credit, epoch=EPOCH, extensions=nothing))


def given(sent: Iterable[list[bytes]]) -> list[tuple[bytes, bytes]]:
    """Worker and identity of each request that was given out."""
    told = [(frames[0], heard(frames)) for frames in sent]
    return [(worker, message.identity) for worker, message in told if message.command == native.REQUEST]


def state(desk: Desk, service: str = "echo") -> ServiceState:
    [found] = [each for each in broker_state(desk.ledger, desk.now).services if each.service == service]
    return found


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


# --- after a failover ---------------------------------------------------------------------------------------


def taken_over(workers: int, **limits: Any) -> Desk:
    """A passive node that knows the workers, and becomes active in epoch 9."""
    services: Any = {"echo": ServiceLimits(**limits)}
    desk = Desk(is_serving=False, services=services)
    join(desk, [b"w%d" % number for number in range(workers)])
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


# --- requests_per_s -----------------------------------------------------------------------------------------


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


# --- requests for one worker alone --------------------------------------------------------------------------


def ask(desk: Desk, number: int, worker: bytes) -> list[list[bytes]]:
    """One of the requests of ``ask_all``."""
    body = [desk.ledger.workers[worker].label.encode(), b"clear"]
    return desk.send(b"c", *native.encode_request(ident(number), b"echo", body, is_directed=True))


def one_after_another(desk: Desk, first: tuple[bytes, bytes]) -> list[int]:
    """The requests by number, in the order in which they are given out; each is answered before the next."""
    worker, identity = first
    order = [int.from_bytes(identity[16:])]
    while found := given(desk.send(worker, *native.encode_final(identity, EPOCH, 0, [b"done"]))):
        [(worker, identity)] = found
        order.append(int.from_bytes(identity[16:]))
    return order


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
