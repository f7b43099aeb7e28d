"""The times of schedules: intervals, cron expressions over summer time, and what was missed."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from bstar.errors import RemoteProtocolError
from bstar.wire.durable import Cause, Missed, Repeat, State
from bstar_broker.store.core import times
from bstar_broker.store.core.records import Record

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


def berlin(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp() * 1000)


def scheduled(repeat: Repeat, due_ms: int) -> Record:
    return Record(
        1, b"i" * 16, b"work", "", [b"x"], 0, due_ms, 0, 5, 1_000, 1_000, 0,
        state=State.SCHEDULED, cause=Cause.NONE, repeat=repeat,
    )  # fmt: skip


def test_a_cron_time_stays_at_its_hour_when_summer_ends() -> None:
    repeat = Repeat(cron="30 6 * * *", zone="Europe/Berlin")
    saturday = berlin("2026-10-24T06:30")
    fired = times.fire(scheduled(repeat, saturday), saturday)
    assert fired.runs_ms == [saturday]
    assert fired.next_ms == berlin("2026-10-25T06:30")
    assert fired.next_ms - saturday == 25 * 60 * MINUTE_MS


def test_an_hour_that_summer_time_leaves_out_has_its_run_that_day() -> None:
    repeat = Repeat(cron="30 2 * * *", zone="Europe/Berlin")
    saturday = berlin("2026-03-28T02:30")
    fired = times.fire(scheduled(repeat, saturday), saturday)
    sunday = datetime.fromtimestamp(fired.next_ms / 1000, BERLIN)
    assert (sunday.month, sunday.day) == (3, 29)


@pytest.mark.parametrize(
    ("missed", "runs"), [(Missed.SKIP, []), (Missed.ONCE, [9]), (Missed.EACH, list(range(10)))], ids=str
)
def test_missed_cron_times(missed: Missed, runs: list[int]) -> None:
    begin = berlin("2026-06-01T00:00")
    repeat = Repeat(cron="0 * * * *", zone="Europe/Berlin", missed=missed)
    hour = 60 * MINUTE_MS
    fired = times.fire(scheduled(repeat, begin), begin + 9 * hour + 2 * MINUTE_MS)
    assert fired.runs_ms == [begin + number * hour for number in runs]
    assert fired.next_ms == begin + 10 * hour


@pytest.mark.parametrize("repeat", [Repeat(cron="* * * * *"), Repeat(every_ms=1_000)], ids=["cron", "every"])
def test_years_of_missed_times_make_a_thousand_requests(repeat: Repeat) -> None:
    each = Repeat(repeat.every_ms, repeat.cron, missed=Missed.EACH)
    begin, now_ms = berlin("2020-01-01T00:00"), berlin("2026-01-01T00:00")
    fired = times.fire(scheduled(each, begin), now_ms)
    assert len(fired.runs_ms) == times.RUNS_MAX
    assert fired.next_ms > now_ms


@pytest.mark.parametrize("repeat", [Repeat(cron="* * * * *"), Repeat(every_ms=60_000)], ids=["cron", "every"])
def test_what_is_beyond_the_bound_of_one_command_is_due_next(repeat: Repeat) -> None:
    each = Repeat(repeat.every_ms, repeat.cron, missed=Missed.EACH, runs=8)
    begin = berlin("2026-01-01T00:00")
    fired = times.fire(scheduled(each, begin), begin + 20 * MINUTE_MS, 3)
    assert fired.runs_ms == [begin + number * MINUTE_MS for number in range(3)]
    assert fired.next_ms == begin + 3 * MINUTE_MS


def test_an_interval_keeps_to_its_grid() -> None:
    repeat = Repeat(every_ms=10_000)
    fired = times.fire(scheduled(repeat, 100_000), 103_000)
    assert (fired.runs_ms, fired.next_ms) == ([100_000], 110_000)


def test_a_cron_expression_without_a_time_is_none() -> None:
    with pytest.raises(RemoteProtocolError):
        times.check(Repeat(cron="0 0 31 4 *"))
