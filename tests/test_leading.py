"""The right to lead, and what decides who should have it, without sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bstar_client import Request
from bstar_client.core.worker.dialects import Job
from bstar_client.links.wakeup import WakeUp
from bstar_client.sync.executor import Executor
from bstar_client.sync.leader import Leadership
from bstar_client.sync.mailboxes import Outbox
from bstar_client.sync.policy import Policy
from bstar_client.sync.worker import Worker

WAIT_S = 30.0
LONG_AGO, NOT_YET = float("-inf"), float("inf")


LOOK_S = 0.005


def led_by_standby() -> Leadership:
    lead = Leadership(lambda: None)
    assert lead.acquire()
    return lead


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """The standby, a thread of its own: the tests' own thread is a follower."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def lead(pool: ThreadPoolExecutor) -> Leadership:
    """As it is once the standby has offered and a follower, here this thread, has accepted."""
    lead = pool.submit(led_by_standby).result(WAIT_S)
    pool.submit(lead.offer).result(WAIT_S)
    assert lead.accept()
    return lead


def taken(pool: ThreadPoolExecutor, lead: Leadership) -> bool:
    return pool.submit(lead.take, LOOK_S).result(WAIT_S)


def test_a_leader_whose_handler_returns_soon_leads_on(lead: Leadership) -> None:
    lead.leave(NOT_YET)
    assert lead.resume()


def test_the_standby_leads_when_a_handler_lasts(lead: Leadership, pool: ThreadPoolExecutor) -> None:
    lead.leave(LONG_AGO)
    assert taken(pool, lead)
    assert not lead.resume()


def test_a_handler_that_returns_late_does_not_lead_beside_a_later_leader(
    lead: Leadership, pool: ThreadPoolExecutor
) -> None:
    lead.leave(LONG_AGO)
    assert taken(pool, lead)
    pool.submit(lead.offer).result(WAIT_S)
    with ThreadPoolExecutor(1) as second:
        assert second.submit(lead.accept).result(WAIT_S)
        assert not lead.resume()
        # While the later leader's handler runs, the lead is free, and one of the two resumes it.
        second.submit(lead.leave, NOT_YET).result(WAIT_S)
        assert lead.resume()
        assert not second.submit(lead.resume).result(WAIT_S)


def test_a_handler_that_returns_to_an_offer_leaves_it_to_who_accepts(
    lead: Leadership, pool: ThreadPoolExecutor
) -> None:
    """Who accepts takes the requests that wait; a leader that only resumed would leave them waiting."""
    lead.leave(LONG_AGO)
    assert taken(pool, lead)
    pool.submit(lead.offer).result(WAIT_S)
    assert not lead.resume()
    assert lead.accept()


def test_an_offer_stands_until_somebody_leads(lead: Leadership, pool: ThreadPoolExecutor) -> None:
    """A thread that tries in vain must not withdraw it, or who resumes leaves requests waiting."""
    lead.leave(LONG_AGO)
    assert taken(pool, lead)
    pool.submit(lead.offer).result(WAIT_S)
    with ThreadPoolExecutor(1) as second:
        assert second.submit(lead.acquire).result(WAIT_S)
        assert not lead.accept()
        second.submit(lead.release).result(WAIT_S)
    assert not lead.resume()
    assert lead.accept()


def test_the_standby_does_not_wait_when_it_is_urged(lead: Leadership, pool: ThreadPoolExecutor) -> None:
    lead.leave(NOT_YET)
    lead.urge()
    assert taken(pool, lead)
    assert not lead.resume()


def test_an_offer_is_accepted_by_one_thread_or_taken_back(lead: Leadership, pool: ThreadPoolExecutor) -> None:
    lead.give_back()
    assert taken(pool, lead)
    pool.submit(lead.offer).result(WAIT_S)
    with ThreadPoolExecutor(1) as second:
        accepted = [lead.accept(), second.submit(lead.accept).result(WAIT_S)]
    assert accepted == [True, False]
    lead.give_back()
    assert taken(pool, lead)
    pool.submit(lead.offer).result(WAIT_S)
    assert taken(pool, lead)
    assert not lead.accept()


def test_the_standby_learns_of_the_end(lead: Leadership, pool: ThreadPoolExecutor) -> None:
    lead.end()
    assert not taken(pool, lead)
    assert pool.submit(lead.take_back, 0.0).result(WAIT_S)


def test_the_standby_does_not_wait_for_ever_for_a_leader_that_calls_no_handler(
    lead: Leadership, pool: ThreadPoolExecutor
) -> None:
    assert not pool.submit(lead.take_back, 0.0).result(WAIT_S)
    lead.give_back()
    assert pool.submit(lead.take_back, 0.0).result(WAIT_S)


def test_a_standby_that_sleeps_is_woken_when_the_lead_is_left(
    lead: Leadership, pool: ThreadPoolExecutor
) -> None:
    taking = pool.submit(lead.take, 0.0)
    until = time.monotonic() + WAIT_S
    while not lead.is_unwatched:
        assert time.monotonic() < until, "it never sleeps"
    assert not taking.done()
    lead.leave(LONG_AGO)
    assert taking.result(WAIT_S)


def test_a_follower_is_promoted_when_the_lead_is_handed_off() -> None:
    promoted: list[str] = []
    led = Leadership(lambda: promoted.append("follower"))
    assert led.acquire()
    led.release()
    led.hand_off()
    assert promoted == ["follower"]


# --- whether handlers are quick -----------------------------------------------------------------------------


class Bench:
    """A handler that takes as long as it is told, by a clock of its own."""

    def __init__(self, threads: int = 1, timeout_s: float | None = None) -> None:
        self.now = 0.0
        self.takes_s = 0.0
        self.outbox = Outbox(WakeUp())
        self.generators = 0
        self.policy = Policy(threads, timeout_s)
        worker = Worker("tcp://127.0.0.1:1", "s", self.handler, threads=threads, handler_timeout_s=timeout_s)
        self.loop = worker._loop
        self.executor = Executor(self.loop, self.outbox, self.policy, self.on_generator)
        self.executor._clock = lambda: self.now

    def on_generator(self) -> None:
        self.generators += 1

    def handler(self, request: Request) -> bytes:
        self.now += self.takes_s
        return b""

    def handle(self, count: int, takes_s: float) -> None:
        self.takes_s = takes_s
        for _ in range(count):
            assert self.executor.execute(Job(0, 1, bytes(24), [b"x"])) == self.now


def test_one_handler_that_lasts_does_not_make_a_service_slow_but_several_do() -> None:
    bench = Bench()
    seen = [bench.policy.is_quick]
    for count, takes_s in ((1, 3_600.0), (10, 0.01), (100, 0.00001)):
        bench.handle(count, takes_s)
        seen.append(bench.policy.is_quick)
    assert seen == [True, True, False, True]


def test_while_a_handler_lasts_the_service_is_not_quick() -> None:
    bench = Bench()
    bench.policy.note_lasting()
    assert not bench.policy.is_quick
    bench.handle(1, 0.0)
    assert bench.policy.is_quick


def test_a_handler_that_yields_is_told_of_at_once_and_is_not_quick() -> None:
    bench = Bench()
    bench.loop.handler = lambda request: (part for part in [b"a", b"b"])
    bench.handle(1, 0.0)
    assert bench.generators == 1
    assert not bench.policy.is_quick
    assert [(body, kind) for _, body, kind in bench.outbox.results] == [
        ([b"a"], "partial"),
        ([b"b"], "partial"),
        ([b""], "final"),
    ]


def test_several_threads_share_requests_that_come_together_until_many_came_alone() -> None:
    policy = Policy(2, None)
    seen = [policy.may_call(count) for count in (1, 2, *[1] * 16)]
    assert seen == [True, False, *[False] * 15, True]


def test_one_thread_calls_all_handlers_however_many_come_together() -> None:
    assert Policy(1, None).may_call(100)


def test_with_no_time_at_all_no_handler_is_quick() -> None:
    bench = Bench(threads=2, timeout_s=0.5)
    assert not bench.policy.is_quick
    bench.handle(3, 0.0)
    assert not bench.policy.is_quick
