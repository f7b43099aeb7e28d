"""Incidents and audit against synthetic journals whose truth is known: all of it is found, and nothing else.

One batch job reads the journals of three pairs: one with journals of everybody and broken promises, one of
which only the brokers keep journals (on machines whose clocks differ, one of them set meanwhile), and one to
which nothing happens. The local engine does it, and so does Spark: under Spark Connect, with Spark's settings
as users have them, so nothing reaches for a driver in its own process. Both come to the same tables, of the
planted scenarios, of durable requests and of a directory with all that can be wrong with one, too.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from bstar_pipeline.synth import INCIDENT_KINDS, VIOLATION_KINDS, Incident, SynthSettings, Truth, generate
from bstar_pipeline.tables import TABLES
from support import connect_job, odd_journals
from support.journals import write
from support.spark_fixtures import need_java
from test_pipeline_durables import begun, changed, doubtful, good, lost
from test_pipeline_planted import PLANTED, Cast
from test_pipeline_truth import plant

# It ends a hang; a busy machine takes its time.
LIMIT_S = 1_800.0
pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(LIMIT_S + 60)]

CLOCK_SKEW_US = 2_000
EVERYBODY = SynthSettings(
    seed=11,
    pair_name="everybody",
    days=0.02,
    requests_per_s=1,
    incidents=len(INCIDENT_KINDS) * 2,
    violations=len(VIOLATION_KINDS),
    has_client_journals=True,
    has_worker_journals=True,
)
BROKERS = SynthSettings(
    seed=12,
    pair_name="brokers",
    days=0.02,
    requests_per_s=1,
    clock_skew_us=CLOCK_SKEW_US,
    clock_step_us=-3_600_000_000,
    finish="open",
    incidents=(
        Incident("crash", 60.0, target="active"),
        Incident("crash", 120.0, target="passive", is_refused=True),
        Incident("pause", 180.0, duration_s=0.2),  # nobody notices: no incident
        Incident("pause", 240.0, target="passive", duration_s=2.0),
        Incident("pause", 300.0, duration_s=4.0),
        Incident("stop", 360.0, target="passive"),
        Incident("stop", 420.0),
        Incident("handover", 480.0),
        Incident("partition", 540.0, duration_s=3.0),
        Incident("both-active", 600.0, duration_s=0.04),
        Incident("crash", 1_600.0, duration_s=None),  # not started again
    ),
)
CALM = SynthSettings(
    seed=13,
    pair_name="calm",
    days=0.005,
    requests_per_s=2,
    has_client_journals=True,
    has_worker_journals=True,
    failed_share=0.05,
    expired_share=0.02,
)


@dataclass(frozen=True, slots=True)
class Found:
    """What the local engine says, and the truth by pair."""

    root: Path
    journals: list[str]
    requests: int
    incidents: list[Any]
    audit: list[Any]
    truths: dict[str, Truth]

    def of(self, pair: str) -> list[Any]:
        return sorted((one for one in self.incidents if one.pair == pair), key=lambda one: one.began_at_us)

    def violated(self, pair: str) -> list[Any]:
        return [one for one in self.audit if one.pair == pair and one.verdict == "violated"]


def rows(root: Path, name: str) -> list[Any]:
    """The rows of a table, with a field for each column."""
    files = f"{root}/{TABLES[name].path}/**/*.parquet"
    found = duckdb.execute(f"FROM read_parquet('{files}', hive_partitioning = true, union_by_name = true)")
    columns = [column[0] for column in found.description or ()]
    return [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in found.fetchall()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    from bstar_pipeline import job
    from bstar_pipeline.engine import local_session

    truths, journals = {}, []
    for settings in (EVERYBODY, BROKERS, CALM):
        folder = tmp_path_factory.mktemp(settings.pair_name)
        truths[settings.pair_name] = generate(settings, folder)
        journals.append(str(folder / "journal"))
    others = tmp_path_factory.mktemp("others")
    odd_journals.plant(others / "odd")
    planted = [run for pair, planted in PLANTED.items() for run in planted.plant(Cast(pair))]
    for number, run in enumerate([*planted, *good(), *lost(), *doubtful(), *begun(), *changed()]):
        # Two runs may have one name: a snapshot that was restored.
        write(others / str(number) / run.name(), run.lines())
    journals += [str(others), str(plant(tmp_path_factory.mktemp("scenes")))]
    root = tmp_path_factory.mktemp("local") / "tables"
    with local_session("incidents") as session:
        summary = job.run(session, journals, str(root))
    return Found(
        root, journals, summary.requests, rows(root, "gold.incidents"), rows(root, "gold.audit"), truths
    )


def test_spark_connect_comes_to_the_same_tables(
    found: Found, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need_java()
    root = tmp_path_factory.mktemp("connect") / "tables"
    done = subprocess.run(
        [sys.executable, connect_job.__file__, str(root), *found.journals],
        cwd=root.parent,
        env={**os.environ, "SPARK_TESTING": "1"},  # a free port; otherwise it is always 15002
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"].startswith("pyspark.sql.connect.")
    assert told["requests"] == found.requests
    for name, table in TABLES.items():
        if table.layer != "stream":
            assert sorted_rows(root, name) == sorted_rows(found.root, name), name


def sorted_rows(root: Path, name: str) -> list[str]:
    """The rows of a table as text, in order."""

    def text(value: Any) -> str:
        # The last digits of a fraction are each engine's own, and so is how a file spells that times are UTC.
        if isinstance(value, float):
            return f"{value:.9g}"
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}" if isinstance(value, dt.datetime) else repr(value)

    return sorted(
        " ".join(f"{key}={text(value)}" for key, value in sorted(vars(row).items()))
        for row in rows(root, name)
    )


def test_each_request_is_there_once(found: Found) -> None:
    requests = Counter(row.pair for row in rows(found.root, "silver.requests"))
    assert found.requests == requests.total()
    for pair in ("brokers", "calm"):
        services = found.truths[pair].requests[pair]
        assert requests[pair] == sum(sum(counts.values()) for counts in services.values()) > 500
        objectives = (row for row in rows(found.root, "gold.objectives") if row.pair == pair)
        assert {row.service for row in objectives} == set(services)


@pytest.mark.parametrize("pair", ["everybody", "brokers", "calm"])
def test_every_incident_is_found_within_100_ms_and_no_other(found: Found, pair: str) -> None:
    truth = sorted(found.truths[pair].incidents, key=lambda one: (one.began_at_us, one.kind))
    told = sorted(found.of(pair), key=lambda one: (one.began_at_us, one.kind))
    assert Counter((one.kind, one.node, one.boot) for one in told) == Counter(
        (one.kind, one.node, one.boot) for one in truth
    )
    for one in truth:
        (match,) = [
            this
            for this in told
            if (this.kind, this.boot) == (one.kind, one.boot)
            and abs(this.began_at_us - one.began_at_us) < 100_000
        ]
        assert abs(match.began_at_us - one.began_at_us) <= match.began_error_us + CLOCK_SKEW_US
        assert match.successor == (one.successor or None)
        if one.taken_over_at_us is not None:
            assert match.taken_over_at_us == pytest.approx(one.taken_over_at_us, abs=CLOCK_SKEW_US)
            assert match.epoch == one.epoch
        if one.ended_at_us is not None:
            assert match.recovered_at_us == pytest.approx(one.ended_at_us, abs=100_000)
        else:
            assert match.recovered_at_us is None
        assert one.node in match.cause or one.kind == "partition"
        assert match.detection_us is None or match.detection_us >= 0


def test_an_incident_tells_what_its_clients_saw(found: Found) -> None:
    kinds = {one.kind: one for one in found.of("everybody") if one.taken_over_at_us is not None}
    crash, handover, pause = kinds["crash"], kinds["handover"], kinds["pause"]
    # Of eight requests that were caught, four were sent again, one was not allowed to be.
    assert (crash.retried, crash.unknown) == (4, 1)
    assert crash.affected >= 5
    assert crash.outage_us >= crash.takeover_us
    assert (pause.retried, pause.unknown) == (6, 1)
    assert (handover.retried, handover.unknown) == (8, 0)


def test_each_broken_promise_is_named_and_nothing_else(found: Found) -> None:
    for pair, truth in found.truths.items():
        requests = {(one.rule, one.client, one.number) for one in truth.violations if one.client}
        overlaps = sorted((one.at_us, one.duration_us) for one in truth.violations if not one.client)
        told = found.violated(pair)
        assert {(one.rule, one.client, one.number) for one in told if one.client} == requests
        seen = sorted((one.at_us, one.duration_us) for one in told if one.client is None)
        assert len(told) == len(requests) + len(overlaps)
        for (at, took), (at_seen, took_seen) in zip(overlaps, seen, strict=True):
            assert at_seen == pytest.approx(at, abs=CLOCK_SKEW_US)
            assert took_seen == pytest.approx(took, abs=2 * CLOCK_SKEW_US)


def test_what_the_guarantees_allow_is_counted_and_what_nobody_can_tell_is_said(found: Found) -> None:
    def count(pair: str, rule: str, verdict: str) -> int:
        return sum(
            one.count for one in found.audit if (one.pair, one.rule, one.verdict) == (pair, rule, verdict)
        )

    everybody, calm = found.truths["everybody"], found.truths["calm"]
    # Two of the planted violations are timeouts, too; the others were announced.
    announced = everybody.calls["unknown"] + everybody.calls["timeout"] - 2
    assert count("everybody", "lost", "excused") == announced > 0
    assert count("everybody", "executed-twice", "excused") > 0
    assert count("calm", "lost", "excused") == calm.calls["timeout"] > 0
    assert not [one for one in found.audit if one.pair == "calm" and one.verdict != "excused"]
    brokers = sum(sum(counts.values()) for counts in found.truths["brokers"].requests["brokers"].values())
    unseen = [one for one in found.audit if one.pair == "brokers" and "not in a client's journal" in one.text]
    assert sum(one.count for one in unseen) == brokers
    assert count("brokers", "answered-twice", "violated") == 0
    killed = [one.text for one in found.audit if one.pair == "brokers" and "ended without a word" in one.text]
    assert len(killed) == 3
