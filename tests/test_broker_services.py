"""For how long a broker counts what it did for a service.

The scripts of the broker have what it counts, and how old the oldest requests are.
"""

from __future__ import annotations

from bstar_broker.core.records import STEP_S, STEPS, ServiceRecord
from bstar_broker.core.services import PAST_MAX, ServiceTable, recent
from support.desk import Desk


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


def test_recent_outcomes_span_at_least_four_minutes() -> None:
    table = ServiceTable(ttl_s=1e9, now=0.0)
    record = table.add(b"echo", 0.0)
    record.tally.answered = 1
    at = 0.0
    for _ in range(int((STEPS - 1) * STEP_S)):
        at += 1.0
        table.tidy(at)
    assert recent(record) == {"answered": 1}
