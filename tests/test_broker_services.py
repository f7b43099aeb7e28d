"""What a broker counts of each service, for how long, and how old the oldest of its requests are."""

from __future__ import annotations

import pytest

from bstar.wire import native
from bstar_broker.core.management import broker_state
from bstar_broker.core.records import STEP_S, STEPS, ServiceRecord
from bstar_broker.core.services import PAST_MAX, ServiceTable, recent
from bstar_broker.core.snapshot import ServiceState
from support.desk import Desk, ident


def look(desk: Desk, service: str = "echo") -> ServiceState:
    """The service, known or forgotten."""
    state = broker_state(desk.ledger, desk.now)
    [found] = [each for each in (*state.services, *state.past) if each.service == service]
    return found


# --- counters that outlive their service --------------------------------------------------------------------


def test_a_forgotten_service_keeps_its_counters_and_goes_on_with_them() -> None:
    desk = Desk(request_ttl_s=5, service_ttl_s=10)
    desk.request(b"c", 1)
    desk.wait(30)
    state = broker_state(desk.ledger, desk.now)
    assert (state.services, [each.service for each in state.past]) == ([], ["echo"])
    assert (look(desk).accepted, look(desk).expired) == (1, 1)
    desk.request(b"c", 2)
    state = broker_state(desk.ledger, desk.now)
    assert (state.past, [each.service for each in state.services]) == ([], ["echo"])
    assert (look(desk).accepted, look(desk).expired, look(desk).queued) == (2, 1, 1)


def test_a_forgotten_service_that_a_worker_offers_again_goes_on_with_its_counters() -> None:
    desk = Desk(request_ttl_s=5, service_ttl_s=10)
    desk.request(b"c", 1)
    desk.wait(30)
    desk.ready(b"w")
    assert (look(desk).accepted, look(desk).workers) == (1, 1)
    desk.wait(3)
    assert look(desk).workers == 1


def test_a_service_that_comes_again_has_all_its_time_to_live_before_it() -> None:
    table = ServiceTable(ttl_s=10.0, now=0.0)
    first = table.add(b"echo", 0.0)
    table.tidy(10.0)
    assert table == {}
    assert table.add(b"echo", 50.0) is first
    table.tidy(59.0)
    assert table == {b"echo": first}
    table.tidy(60.0)
    assert table == {}


def test_so_many_forgotten_services_are_remembered_and_no_more() -> None:
    table = ServiceTable(ttl_s=10.0, now=0.0)
    for number in range(PAST_MAX + 2):
        table.add(b"%d" % number, float(number) / 1e6)
    gone = table.tidy(20.0)
    assert [record.name for record in gone] == [b"0", b"1"]
    assert (len(table), len(table.past)) == (0, PAST_MAX)


def test_the_observer_hears_of_a_service_when_its_counters_go() -> None:
    heard: list[bytes] = []

    class Keeper:
        def forgotten(self, service: ServiceRecord, now: float) -> None:
            heard.append(service.name)

    desk = Desk(request_ttl_s=1, service_ttl_s=2, services_max=PAST_MAX + 1)
    for number in range(PAST_MAX + 1):
        desk.ledger.services.add(b"%d" % number, desk.now)
    desk.ledger.observer = Keeper()  # type: ignore[assignment] # hears of nothing else here
    desk.wait(10)
    assert heard == [b"0"]


# --- the last minutes ---------------------------------------------------------------------------------------


def test_recent_outcomes_are_those_of_the_last_minutes() -> None:
    desk = Desk(request_ttl_s=5, service_ttl_s=1_000)
    desk.request(b"c", 1)
    desk.wait(10)
    assert look(desk).recent == {"expired": 1}
    desk.wait(STEPS * STEP_S)
    desk.request(b"c", 2)
    desk.wait(10)
    assert (look(desk).recent, look(desk).expired) == ({"expired": 1}, 2)
    desk.wait((STEPS + 1) * STEP_S)
    assert (look(desk).recent, look(desk).expired) == ({}, 2)


def test_recent_outcomes_of_a_forgotten_service_are_told_and_pass() -> None:
    desk = Desk(request_ttl_s=5, service_ttl_s=10)
    desk.request(b"c", 1)
    desk.wait(30)
    assert desk.ledger.services == {}
    assert look(desk).recent == {"expired": 1}
    desk.wait((STEPS + 1) * STEP_S)
    assert look(desk).recent == {}


def test_recent_outcomes_span_at_least_four_minutes() -> None:
    table = ServiceTable(ttl_s=1e9, now=0.0)
    record = table.add(b"echo", 0.0)
    record.tally.answered = 1
    at = 0.0
    for _ in range(int((STEPS - 1) * STEP_S)):
        at += 1.0
        table.tidy(at)
    assert recent(record) == {"answered": 1}


# --- the oldest requests ------------------------------------------------------------------------------------


def test_the_oldest_waiting_request_is_the_one_accepted_first_of_whichever_client() -> None:
    desk = Desk()
    desk.request(b"a", 1)
    desk.wait(2)
    desk.request(b"b", 2)
    desk.request(b"a", 3, is_urgent=True)
    desk.request(b"a", 4)
    desk.wait(3)
    assert (look(desk).oldest_waiting_s, look(desk).oldest_running_s) == (5, 0)


def test_a_batch_that_waits_is_as_old_as_its_arrival() -> None:
    desk = Desk()
    desk.requests(b"a", range(1, 10))
    desk.wait(4)
    assert look(desk).oldest_waiting_s == 4


def test_a_request_that_lost_its_worker_waits_since_it_was_accepted() -> None:
    desk = Desk(b"w", worker_heartbeat_interval_s=1, worker_liveness=3)
    desk.request(b"c", 1)
    desk.wait(10)
    assert look(desk).oldest_waiting_s == 10


@pytest.mark.parametrize("bundled", [False, True])
def test_the_oldest_running_request_is_the_one_that_a_worker_has_held_longest(bundled: bool) -> None:
    desk = Desk(worker_heartbeat_interval_s=1_000)
    desk.ready(b"w1", credit=10, takes_batches=bundled)
    desk.requests(b"c", [1, 2])
    desk.wait(7)
    desk.ready(b"w2")
    desk.request(b"c", 3)
    desk.wait(2)
    assert (look(desk).oldest_running_s, look(desk).in_flight) == (9, 3)
    desk.finals(b"w1", [1, 2])
    assert (look(desk).oldest_running_s, look(desk).in_flight) == (2, 1)


def test_a_request_whose_client_was_sent_away_still_runs() -> None:
    desk = Desk(b"w", worker_heartbeat_interval_s=1_000)
    desk.request(b"c", 1)
    desk.broker.deactivate(desk.now)
    desk.wait(8)
    assert look(desk).oldest_running_s == 8


# --- workers that go away -----------------------------------------------------------------------------------


def test_only_a_worker_that_held_requests_counts_as_lost() -> None:
    desk = Desk(b"idle", worker_heartbeat_interval_s=1, worker_liveness=3)
    desk.wait(10)
    assert look(desk).workers_lost == 0
    desk.ready(b"busy", credit=3)
    for number in (1, 2, 3):
        desk.request(b"c", number)
    desk.wait(10)
    assert (look(desk).workers_lost, look(desk).workers) == (1, 0)


def test_a_worker_that_answered_all_and_left_is_not_lost() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.final(b"w", 1)
    desk.send(b"w", *native.encode_disconnect())
    assert (look(desk).workers_lost, look(desk).workers, look(desk).answered) == (0, 0, 1)
    assert ident(1) not in desk.ledger.by_identity
