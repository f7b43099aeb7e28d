"""The right to lead, and what decides who should have it, without sockets."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from bstar_client import Request, Worker, WorkerHooks
from bstar_client.core.worker_dialects import Job
from bstar_client.sync import handling as handling_module
from bstar_client.sync.handling import Handling
from bstar_client.sync.leader import Lead
from bstar_client.sync.outbox import Outbox
from bstar_client.wakeup import WakeUp

WAIT_S = 30.0
LONG_AGO, NOT_YET = float("-inf"), float("inf")


def no_beat() -> int:
    return 0


@pytest.fixture
def lead() -> Lead:
    """As it is once the keeper has offered and a handlers' thread, here this one, has accepted."""
    lead = Lead()
    lead.begin()
    lead.offer()
    assert lead.accept()
    return lead


def test_a_leader_whose_handler_returns_soon_leads_on(lead: Lead) -> None:
    lead.leave("job", NOT_YET)
    assert lead.resume("job")
    assert lead.is_mine


def test_the_keeper_leads_when_a_handler_lasts(lead: Lead) -> None:
    lead.leave("job", LONG_AGO)
    assert lead.wait(no_beat)
    assert not lead.resume("job")


def test_who_calls_a_handler_does_not_attend_to_the_sockets(lead: Lead) -> None:
    lead.leave("job", NOT_YET)
    assert not lead.is_mine


def test_a_handler_that_returns_late_does_not_take_the_right_of_a_later_leader(lead: Lead) -> None:
    lead.leave("first", LONG_AGO)
    assert lead.wait(no_beat)
    lead.offer()
    assert lead.accept()
    lead.leave("second", NOT_YET)
    assert not lead.resume("first")
    assert lead.resume("second")


def test_the_keeper_does_not_wait_when_it_is_urged(lead: Lead) -> None:
    lead.leave("job", NOT_YET)
    lead.urge()
    assert lead.wait(no_beat)
    assert not lead.resume("job")


def test_an_offer_is_accepted_by_one_thread_or_taken_back(lead: Lead) -> None:
    lead.give_back()
    assert lead.wait(no_beat)
    lead.offer()
    assert [lead.accept(), lead.accept()] == [True, False]
    lead.give_back()
    assert lead.wait(no_beat)
    lead.offer()
    assert lead.wait(no_beat)
    assert not lead.accept()


def test_the_keeper_learns_of_the_end(lead: Lead) -> None:
    lead.end()
    assert not lead.wait(no_beat)
    lead.take_back()


def test_the_keeper_does_not_wait_for_ever_for_a_leader_that_calls_no_handler() -> None:
    lead = Lead()
    lead.begin()
    lead.offer()
    leader = threading.Thread(target=lead.accept)
    leader.start()
    leader.join(WAIT_S)
    assert not lead.take_back(0.0)
    lead.give_back()
    assert lead.take_back(0.0)


def test_a_keeper_that_sleeps_is_woken_when_a_handler_is_called(lead: Lead) -> None:
    leads = threading.Event()

    def keep() -> None:
        assert lead.wait(no_beat)
        leads.set()

    keeper = threading.Thread(target=keep)
    keeper.start()
    until = time.monotonic() + WAIT_S
    while lead.is_watched:
        assert time.monotonic() < until, "it never sleeps"
    assert not leads.is_set()
    lead.leave("job", LONG_AGO)
    assert leads.wait(WAIT_S)
    keeper.join(WAIT_S)


# --- whether handlers are quick -----------------------------------------------------------------------------


class Bench:
    """A handler that takes as long as it is told, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, quick_s: float = 0.002) -> None:
        self.now = 0.0
        self.takes_s = 0.0
        self.outbox = Outbox(WakeUp())
        self.generators = 0
        monkeypatch.setattr(handling_module, "_clock", lambda: self.now)
        self.handling = Handling(
            cast("Worker", SimpleNamespace(service=b"s")),
            hooks=WorkerHooks(),
            dedupe=None,
            reply_bytes_max=10_000,
            outbox=self.outbox,
            quick_s=quick_s,
            on_generator=self.on_generator,
        )
        self.handling.handler = self.handler

    def on_generator(self) -> None:
        self.generators += 1

    def handler(self, request: Request) -> bytes:
        self.now += self.takes_s
        return b""

    def handle(self, count: int, takes_s: float) -> None:
        self.takes_s = takes_s
        for _ in range(count):
            assert self.handling.handle(Job(0, 1, bytes(24), [b"x"])) == self.now


def test_one_handler_that_lasts_does_not_make_a_service_slow_but_several_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    seen = [bench.handling.is_quick]
    for count, takes_s in ((1, 3_600.0), (10, 0.01), (100, 0.00001)):
        bench.handle(count, takes_s)
        seen.append(bench.handling.is_quick)
    assert seen == [True, True, False, True]


def test_while_a_handler_lasts_the_service_is_not_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.handling.lasts()
    assert not bench.handling.is_quick
    bench.handle(1, 0.0)
    assert bench.handling.is_quick


def test_a_handler_that_yields_is_told_of_at_once_and_is_not_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.handling.handler = lambda request: (part for part in [b"a", b"b"])
    bench.handle(1, 0.0)
    assert bench.generators == 1
    assert not bench.handling.is_quick
    assert [(body, kind) for _, body, kind in bench.outbox.results] == [
        ([b"a"], "partial"),
        ([b"b"], "partial"),
        ([b""], "final"),
    ]


def test_handlers_are_short_in_a_row_until_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert bench.handling.short_in_a_row >= handling_module.SHORT_MIN
    bench.handle(1, 0.001)
    bench.handle(7, 0.0009)
    assert bench.handling.short_in_a_row == 7


def test_with_no_time_at_all_no_handler_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, quick_s=0.0)
    assert not bench.handling.is_quick
    bench.handle(3, 0.0)
    assert not bench.handling.is_quick
