"""The report's way from the tables to the page: what is added up, what is cut off, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from bstar.errors import ConfigurationError
from bstar_cli import exits
from bstar_cli.main import main
from bstar_pipeline.report import asking
from bstar_pipeline.report.content import Hit
from bstar_pipeline.report.page import render
from bstar_pipeline.report.reading import STEPS_MAX, open_tables, step_us
from support.planted_tables import save

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOON = 1_795_262_400_000_000
MINUTE = 60_000_000
HOUR = 60 * MINUTE


def _time(at_us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC)


def _request(number: int, ended: int, **rest: Any) -> dict[str, Any]:
    usual = {
        "client": "c1",
        "number": number,
        "service": "echo",
        "outcome": "answered",
        "ended_at_us": ended,
        "total_us": 2_000,
        "weight": 1.0,
        "deliveries": 1,
        "is_repeated": False,
    }
    return usual | rest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bstar_pipeline import sketch

    root = tmp_path_factory.mktemp("tables")
    run = {
        "node": "primary",
        "boot": "b1",
        "source": "broker",
        "host": "h",
        "version": "0.1.0",
        "started_at_us": NOON,
        "last_at_us": NOON + 2 * MINUTE,
        "is_clean": True,
        "records": 10,
        "missing": 2,
        "dropped": 1,
        "is_sampled": False,
    }
    # Since the last incident, whose outage is the longest.
    held = {"asked_at_us": NOON + 21_000}
    save(root, "silver.runs", [run, run | {"node": "backup", "boot": "b2"}, run | {"pair": "another"}])
    save(
        root,
        "silver.requests",
        [
            *(_request(n, NOON + n * 100_000, total_us=1_000 + n) for n in range(600)),
            _request(601, NOON + 30_000_000, service="slow", outcome="expired", total_us=5_000_000, **held),
            _request(602, NOON + 30_000_000, service="slow", attempts=2, total_us=800_000),
            _request(603, NOON + 30_000_000, weight=4.0, deliveries=2, **held),
            _request(604, NOON + 9 * HOUR),
            _request(605, NOON, pair="another"),
        ],
    )
    interval = {"node": "primary", "boot": "b1", "is_serving": True, "epoch": 1, "ended_by": "state"}
    save(
        root,
        "silver.states",
        [
            interval | {"state": "ACTIVE", "since_at_us": NOON, "until_at_us": NOON + 2 * MINUTE},
            interval | {"state": "PASSIVE", "since_at_us": NOON - HOUR, "until_at_us": NOON - MINUTE},
            # Its journal goes on elsewhere: the next record is not due yet.
            interval
            | {"node": "backup", "state": "PASSIVE", "ended_by": "end"}
            | {"since_at_us": NOON + 1, "until_at_us": NOON + 2 * MINUTE - 7_000_000},
        ],
    )
    save(
        root,
        "gold.incidents",
        [
            {
                "kind": "crash",
                "node": "primary",
                "began_at_us": NOON + n * 100,
                "outage_us": 1_000 + n,
                "retried": 3,
            }
            for n in range(210)
        ],
    )
    save(
        root,
        "gold.audit",
        [
            *({"rule": "lost", "verdict": "violated", "count": 1, "at_us": NOON + n} for n in range(3)),
            {"rule": "executed-twice", "verdict": "excused", "count": 40, "at_us": None},
            {"rule": "lost", "verdict": "violated", "count": 1, "at_us": NOON - HOUR},
            {"rule": "crossed", "verdict": "violated", "count": 1, "at_us": NOON, "pair": "another"},
        ],
    )
    save(
        root,
        "gold.sketches",
        [
            {
                "service": service,
                "minute": _time(NOON + minute * MINUTE),
                "outcome": outcome,
                "measure": "total",
                "bucket": sketch.bucket_of(value),
                "weight": weight,
            }
            for service, minute, outcome, value, weight in (
                ("echo", 0, "answered", 1_000, 98.0),
                ("echo", 1, "failed", 50_000, 2.0),
                ("slow", 0, "answered", 700_000, 1.0),
                ("slow", 0, "expired", 5_000_000, 50.0),
            )
        ],
    )
    save(
        root,
        "gold.objectives",
        [
            {
                "service": "echo",
                "minute": _time(NOON + minute * MINUTE),
                "counted": "calls" if minute else "requests",
                "requests": 100.0 * (minute + 1),
                "rate": 5.0 + minute,
                "errors": float(minute),
                "burn_rate": 3.0 * minute,
                "alert": "fast" if minute else None,
            }
            for minute in range(2)
        ],
    )
    promise = {
        "period_requests": 300.0,
        "availability": 0.999,
        "latency_us": 250_000,
        "latency_share": 0.99,
        "is_kept": True,
    }
    save(root, "gold.budgets", [{"service": "echo", "budget_used": 0.25, "slow_budget_used": 0.5} | promise])
    save(
        root,
        "gold.capacity",
        [
            {
                "service": "echo",
                "hour": _time(NOON - HOUR * ago),
                "workers": 2.0,
                "utilisation": 0.5 - 0.1 * ago,
                "peak_utilisation": 0.9,
                "queued_max": 7,
            }
            for ago in range(2)
        ],
    )
    save(
        root,
        "gold.clients",
        [
            {"client": f"c{n}", "requests": float(n), "is_flooding": n == 1, "retries": 1, "busy": 0}
            for n in range(40)
        ],
    )
    save(
        root,
        "bronze.rejected",
        [
            {"file": "a", "reason": "unreadable", "line": "x" * 1_000},
            {"file": "b", "reason": "unreadable", "pair": "unknown", "day": dt.date(1970, 1, 1)},
        ],
    )
    save(
        root,
        "bronze.files",
        [{"file": "a", "state": "whole", "lines": 700, "duplicates": 5}, {"file": "b", "state": "truncated"}],
    )
    return root


def test_the_page_shows_what_the_tables_say_and_no_more_than_fits(root: Path) -> None:
    parts: list[str] = []
    with open_tables(None, str(root), pair="orders", is_of_one_pair=True) as tables:
        content = asking.collect(tables, parts.append)

    assert len(parts) > 4
    assert (content.from_us, content.until_us) == (NOON, NOON + 2 * MINUTE + 1)
    assert len(content.rates) <= STEPS_MAX + 1
    # Beyond the last sign of life, and of another pair: neither counts.
    assert content.requests == 600 + 1 + 1 + 4
    assert content.errors == 1
    assert [(each.node, each.state, each.until_at_us) for each in content.intervals] == [
        ("primary", "ACTIVE", NOON + 2 * MINUTE),
        ("backup", "PASSIVE", content.until_us),
    ]

    assert (len(content.incidents), content.incidents.total) == (200, 210)
    assert min(each.outage_us or 0 for each in content.incidents) == 1_010
    assert [each.began_at_us for each in content.incidents] == sorted(
        each.began_at_us for each in content.incidents
    )
    # One waited beyond the 250 ms of its objective, one expired, and its service has none.
    assert content.hits == [Hit("echo", 1, 1, 0, 1), Hit("slow", 1, 1, 1, 0)]
    assert {each.rule: (each.violated, each.excused) for each in content.verdicts or []} == {
        "lost": (3, 0),
        "executed-twice": (0, 40),
    }
    assert [each.rule for each in content.findings] == ["lost"] * 3

    (echo,) = content.objectives
    assert (echo.requests, echo.errors, echo.peak_per_s) == (300.0, 1.0, 6.0)
    assert echo.burn_rate == pytest.approx(2.0)
    assert (echo.worst_burn_rate, echo.worst_at_us, echo.fast_alerts) == (3.0, NOON + MINUTE, 1)
    assert echo.p50_us == pytest.approx(1_000, rel=0.01)
    assert echo.p99_us == pytest.approx(50_000, rel=0.01)
    assert content.p99_us == pytest.approx(50_000, rel=0.01)
    assert echo.promise is not None
    assert echo.promise.slow_budget_used == 0.5

    everything, of_echo = content.heats
    assert (everything.service, of_echo.service) == ("", "echo")
    # Only what a worker finished has a time; 800 ms are in the sum of all services, not in echo's.
    assert sum(weight for _, _, weight in everything.cells) == 605
    assert sum(weight for _, _, weight in of_echo.cells) == 604
    assert len(content.edges_us) == max(row for _, row, _ in everything.cells) + 2
    step, p50, _ = of_echo.lines[0]
    assert step == 0
    assert p50 == pytest.approx(1_000, rel=0.02)

    (capacity,) = content.capacity
    assert (capacity.utilisation, capacity.queued_max) == (0.5, 7)
    assert [mean for _, mean in capacity.hours] == [0.5]
    assert (len(content.clients), content.clients.total) == (25, 40)
    assert content.clients[0].client == "c1"
    assert [each.client for each in content.clients[1:3]] == ["c39", "c38"]

    assert dict(content.quality.files) == {"whole": 1, "truncated": 1}
    assert content.quality.rejected == [("unreadable", 2)]
    assert len(content.quality.samples[0][2]) == 200
    assert (content.quality.missing, content.quality.dropped, content.quality.duplicates) == (4, 2, 5)
    assert {each.node for each in content.runs} == {"primary", "backup"}
    assert "Violated: 3 requests were lost." in render(content, made_at_us=NOON)


def test_a_part_of_the_time_is_a_part_of_the_numbers(root: Path) -> None:
    period = {"from_us": NOON + 10_000_000, "until_us": NOON + 20_000_000}
    with open_tables(None, str(root), pair="orders", **period, is_of_one_pair=True) as tables:
        content = asking.collect(tables)
    assert content.requests == 100
    assert content.step_us == 100_000
    assert content.verdicts
    assert content.verdicts[0].rule == "executed-twice"
    assert content.incidents == []
    assert content.intervals[0].since_at_us == NOON + 10_000_000


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({}, "choose one of another, orders with --pair"),
        ({"pair": "nobody"}, "knows no pair nobody: it has another, orders"),
        ({"pair": "orders", "until_us": NOON - HOUR}, "nothing of pair orders in that period"),
    ],
)
def test_what_cannot_be_reported_is_said(root: Path, choice: dict[str, Any], told: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=told),
        open_tables(None, str(root), **choice, is_of_one_pair=True),
    ):
        pass


def test_a_folder_without_tables_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="bstar pipeline run"), open_tables(None, str(tmp_path)):
        pass


@pytest.mark.parametrize("days", [0.0001, 0.01, 0.1, 1, 7, 365, 3_650])
def test_a_plot_never_has_more_steps_than_a_screen(days: float) -> None:
    period = int(days * 24 * HOUR)
    assert period / step_us(period) <= STEPS_MAX


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_commands_print_what_the_tables_say_and_judge_by_their_exit_code(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ["pipeline", "audit", str(root)]
    assert main([*tables, "--pair", "orders", "--json", "--limit", "2"]) == exits.FAILED
    *findings, last = _lines(capsys)
    assert [(each["rule"], each["verdict"]) for each in findings] == [("lost", "violated")] * 2
    assert last["verdict"] == "violated"
    assert last["requests"] == 606
    # Without --pair it is about all pairs; a gate must not overlook one.
    assert main(tables) == exits.FAILED
    shown = capsys.readouterr()
    assert "another" in shown.out
    assert "1 reply was crossed; 3 requests were lost" in shown.err
    # What is left of the day has a request and nothing but an excused repetition.
    late = ["--pair", "orders", "--from", "2026-11-21T12:00:10"]
    assert main([*tables, *late, "--strict"]) == exits.OK
    assert "Passed: each of 506 requests" in capsys.readouterr().err
    nothing = ["--pair", "orders", "--from", "2026-11-21T12:01:30"]
    assert main([*tables, *nothing]) == exits.NOT_PROVEN
    assert "Nothing to judge" in capsys.readouterr().err

    assert main(["pipeline", "incidents", str(root), "--limit", "1", "--json"]) == exits.OK
    (incident,) = _lines(capsys)
    assert (incident["kind"], incident["outage_us"]) == ("crash", 1_209)
    assert main(["pipeline", "objectives", str(root), "--pair", "orders"]) == exits.OK
    assert "99.9 % answered, 99 % within 250 ms" in capsys.readouterr().out

    out = tmp_path / "page.html"
    assert main(["pipeline", "report", str(root), "--pair", "orders", "--out", str(out)]) == exits.OK
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert "Violated: 3 requests were lost." in shown.err
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"pair": "orders"},
        {"pair": "another"},
        {"from_us": NOON + 5, "until_us": NOON + 10_000_000},
        {"pair": "orders", "from_us": NOON + MINUTE},
    ],
)
@pytest.mark.parametrize("most", [2, 100, 1_000])
def test_spark_and_duckdb_give_the_same_answers(
    spark: SparkSession, root: Path, choice: dict[str, Any], most: int
) -> None:
    with open_tables(spark, str(root), **choice) as on_spark, open_tables(None, str(root), **choice) as here:
        assert (here.pair, here.from_us, here.until_us) == (
            on_spark.pair,
            on_spark.from_us,
            on_spark.until_us,
        )
        assert asking.requests(here) == asking.requests(on_spark)
        for question in (asking.findings, asking.incidents):
            by_duckdb, by_spark = question(here, most), question(on_spark, most)
            assert list(by_duckdb) == list(by_spark)
            assert by_duckdb.total == by_spark.total


@pytest.mark.parametrize("period", [{}, {"from_us": NOON + 5, "until_us": NOON + 10_000_000}])
def test_spark_and_duckdb_make_the_same_report(
    spark: SparkSession, root: Path, period: dict[str, Any]
) -> None:
    pages = []
    for session in (spark, None):
        with open_tables(session, str(root), pair="orders", **period, is_of_one_pair=True) as tables:
            pages.append(render(asking.collect(tables), made_at_us=NOON))
    assert pages[0] == pages[1]


def test_a_folder_below_one_that_is_named_as_a_partition_is_read(root: Path, tmp_path: Path) -> None:
    moved = tmp_path / "day=7" / "pair=nobody" / "day=2026-01-01"
    shutil.copytree(root, moved)
    with (
        open_tables(None, str(root), pair="orders") as there,
        open_tables(None, str(moved), pair="orders") as here,
    ):
        assert asking.requests(here) == asking.requests(there) > 0
        for question in (asking.findings, asking.incidents):
            assert list(question(here)) == list(question(there)) != []


def test_spark_and_duckdb_print_the_same(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # the command finds it
    for question in ("audit", "incidents"):
        told = []
        for engine in ([], ["--conf", "spark.sql.session.timeZone=UTC"]):
            code = main(["pipeline", question, str(root), "--json", *engine])
            told.append((code, capsys.readouterr().out))
        assert told[0] == told[1]
        assert told[0][1]
