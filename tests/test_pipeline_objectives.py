"""Objectives: what counts as a request, an error and slow; percentiles; budgets, burn rates and alerts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline import sketch, slo
from support.journal_lines import Scribe, stored_of

if TYPE_CHECKING:
    from bstar_pipeline.partitions import Made

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MINUTE_US = 60_000_000


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def minutes_of(made: "Made") -> dict[tuple[str, int], Any]:
    """By service, and minutes since noon."""
    return {(row["service"], (us(row["minute"]) - us(NOON)) // MINUTE_US): row for row in made.collected()}


@pytest.mark.spark
def test_objectives_of_a_service_say_what_its_requests_met(tmp_path: Path) -> None:
    from bstar_pipeline.gold.objectives import budgets, objectives, sketches

    primary, backup = Scribe(), Scribe("backup")
    noon = us(NOON)
    times = [(n + 1) * 1_000 for n in range(100)]  # 1 ms to 100 ms
    of: list[records.Base] = [
        primary.request(noon + n, total_us=total, queued_us=0, busy_us=total, number=n)
        for n, total in enumerate(times)
    ]
    # The next minute: sampled answers, and what did not go well.
    later = noon + MINUTE_US
    of += [
        backup.request(later + 59_999_999, total_us=50_000, queued_us=20_000, busy_us=30_000, weight=8.0),
        backup.request(later, outcome="failed", total_us=200_000),
        backup.request(later, service="strict", outcome="declined", total_us=200_000),
        backup.request(later, outcome="expired", total_us=5_000_000, deliveries=0),
        backup.request(later, outcome="returned", total_us=1),
        backup.request(later, outcome="late", total_us=1),
        backup(records.Refused, later, reason="queue-full", count=5, service="echo"),
        backup(records.Refused, later, reason="queue-full", count=50),
        backup(records.Refused, later, reason="late-reply", count=500, service="echo"),
        backup.request(later, service="lenient", outcome="failed", total_us=200_000),
        backup(records.Refused, later, reason="queue-full", count=3, service="lenient"),
        # Hours later nothing burns but the six hours' window.
        backup.request(noon + 120 * MINUTE_US, total_us=10),
        backup.request(noon + 480 * MINUTE_US, total_us=10),
    ]
    told = slo.Objectives(
        default=slo.Objective(availability=0.99, latency_us=90_000, latency_share=0.9),
        services={"lenient": slo.Objective(availability=0.5, errors=("lost",))},
    )
    rows = stored_of(of, tmp_path / "records")
    # In two parts and back: what two runs made is added up.
    names = rows.choices[0].columns
    parts = [sketches(rows.take(*names, where=f'"at" % 2 = {half}')) for half in range(2)]
    found = minutes_of(objectives(parts, told))
    assert found == minutes_of(objectives([sketches(rows)], told))
    assert set(found) == {
        ("echo", 0),
        ("echo", 1),
        ("lenient", 1),
        ("strict", 1),
        ("echo", 120),
        ("echo", 480),
    }

    calm = found["echo", 0]
    assert (calm["requests"], calm["rate"], calm["errors"], calm["error_share"]) == (100, 100 / 60, 0, 0)
    for measure in ("busy", "total"):
        for share in (50, 95, 99):
            exact = times[share - 1]
            assert calm[f"{measure}_p{share}_us"] == pytest.approx(exact, rel=sketch.ERROR * 1.0001)
    assert calm["queued_p99_us"] == 0
    slow = sum(sketch.bucket_of(total) > sketch.bucket_of(90_000) for total in times)
    assert calm["slow_share"] == slow / 100
    assert calm["slow_burn_rate"] == pytest.approx(slow / 100 / 0.1)
    assert (calm["burn_rate"], calm["alert"]) == (0, None)

    bad = found["echo", 1]
    assert (bad["requests"], bad["errors"]) == (8 + 1 + 1 + 5, 1 + 1 + 5)
    assert bad["error_share"] == 7 / 15
    assert bad["burn_rate"] == pytest.approx(7 / 15 / 0.01)
    assert bad["slow_share"] == 1 / 9  # of those that a worker finished
    assert bad["total_p50_us"] == pytest.approx(50_000, rel=0.01)
    assert bad["queued_p50_us"] == pytest.approx(20_000, rel=0.01)
    for window in ("burn_5m", "burn_1h", "burn_6h"):
        assert bad[window] == pytest.approx(7 / 115 / 0.01)
    assert bad["alert"] == "slow"  # 6.1 is above 6, and below 14.4

    # What a handler declined is finished, and no error.
    strict = found["strict", 1]
    assert (strict["requests"], strict["errors"], strict["slow_share"]) == (1, 0, 1)

    # A failure that the objective does not count, and refusals that are then no requests.
    assert (found["lenient", 1]["requests"], found["lenient", 1]["errors"]) == (1, 0)
    later_on = found["echo", 120]
    assert (later_on["burn_rate"], later_on["burn_5m"], later_on["burn_1h"]) == (0, 0, 0)
    assert later_on["burn_6h"] == pytest.approx(7 / 116 / 0.01)
    assert later_on["alert"] is None
    assert found["echo", 480]["burn_6h"] == 0

    day = {row["service"]: row for row in budgets(parts, told).collected()}
    assert day["echo"]["requests"] == day["echo"]["period_requests"] == 117
    assert day["echo"]["budget_used"] == pytest.approx(7 / 117 / 0.01)
    assert not day["echo"]["is_kept"]
    assert day["lenient"]["is_kept"] is False  # its one request was slow: 200 ms, and 100 ms were promised
    assert (day["lenient"]["errors"], day["lenient"]["slow"], day["lenient"]["latency_us"]) == (0, 1, 100_000)


@pytest.mark.spark
def test_a_few_requests_raise_no_alert(tmp_path: Path) -> None:
    """Of two failures among so many requests there is an alert only from the stated number on."""
    from bstar_pipeline.gold.objectives import objectives, sketches

    scribe = Scribe()
    outcomes = ["lost", "lost", *["answered"] * 8]
    of = [scribe.request(us(NOON), outcome=outcome) for outcome in outcomes]
    summed = sketches(stored_of(of, tmp_path / "records"))
    raised = {}
    for least in (0, 10, 11):
        for service_level, kind in ((0.99, "fast"), (0.975, "slow")):
            told = slo.Objectives(
                default=slo.Objective(availability=service_level), alert_requests=least, slow_share=0.03
            )
            (row,) = objectives([summed], told).collected()
            assert row["burn_1h"] == row["burn_6h"] == pytest.approx(0.2 / (1 - service_level))
            raised[least, kind] = row["alert"]
    assert raised == {
        (0, "fast"): "fast",
        (0, "slow"): "slow",
        (10, "fast"): "fast",
        (10, "slow"): "slow",
        (11, "fast"): None,
        (11, "slow"): None,
    }


@pytest.mark.spark
def test_the_period_of_a_budget_ends(tmp_path: Path) -> None:
    from bstar_pipeline.gold.objectives import budgets, sketches

    scribe = Scribe()
    of = [
        scribe.request(us(NOON + timedelta(days=day)), outcome="lost" if day == 0 else "answered")
        for day in (0, 6, 7)
    ]
    told = slo.Objectives(default=slo.Objective(availability=0.5), period_days=7)
    made = budgets([sketches(stored_of(of, tmp_path / "records"))], told)
    days = sorted(made.collected(), key=lambda row: row["day"])
    assert [row["period_requests"] for row in days] == [1, 2, 2]
    assert [row["budget_used"] for row in days] == [2, 1, 0]
    assert [row["is_kept"] for row in days] == [False, True, True]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "slo.yml"


def test_objectives_come_from_a_file_and_services_take_over_what_they_do_not_say(file: Path) -> None:
    file.write_text(
        "default: {availability: 0.99, errors: [lost]}\n"
        "services: {slow: {latency_us: 2000000}, strict: {availability: 0.9999}}\nperiod_days: 7\n"
    )
    told = slo.load(file)
    assert told.default == slo.Objective(availability=0.99, errors=("lost",))
    assert told.services["slow"] == slo.Objective(availability=0.99, errors=("lost",), latency_us=2_000_000)
    assert told.services["strict"].availability == 0.9999
    assert told.fast_burn == pytest.approx(0.02 * 7 * 24)
    file.write_text('{"services": {"json": {"latency_share": 0.5}}}')
    assert slo.load(file).services["json"] == slo.Objective(latency_share=0.5)
    file.write_text("")
    assert slo.load(file) == slo.Objectives()
    assert slo.Objectives().fast_burn == pytest.approx(14.4)
    assert slo.Objectives().slow_burn == pytest.approx(6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default: {availability: 1}", r"< 1.*\$\.default\.availability"),
        ("services: {a: {latency: 1}}", r"unknown field `latency`.*\$\.services\[\.\.\.\]"),
        ("services: {a: {errors: [busy]}}", "errors: there is no outcome busy; there are failed, "),
        ("services: [a]", r"Expected `object`, got `array`"),
        ("period_days: soon", r"Expected `int`.*\$\.period_days"),
        ("- 1", "must hold keys with values"),
        ("a: [", r"slo.yml:1: is no YAML"),
        ("a: &a {b: 1}\nc: &c {<<: [" + "*a," * 9_000 + "]}\nd: {<<: [*c, *c]}", "merge keys"),
    ],
)
def test_a_wrong_objective_is_refused_with_its_place(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        slo.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_of_objectives_is_told(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        slo.load(file)
