"""Incidents and audit against journals of simulated pairs: all that happened is found, and nothing else.

Three pairs: one with journals of everybody and broken promises, one of which only the brokers keep journals
(on machines whose clocks differ, one of them set meanwhile), and one whose nodes only serve. The local engine
makes the tables of these and of all that other tests plant (support.planted_root). So does Spark of all but
some scenes: under Spark Connect, with Spark's settings as users have them for so little, so nothing reaches
for a driver in its own process. Both come to the same tables.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from bstar_pipeline.tables import TABLES
from sim.faults import Fault, Kind
from sim.journals import INCIDENT_KINDS, START_US, Incident, Scenario
from support import committed, scenes
from support.plants import RULES, Planted, break_promises
from support.spark_fixtures import need_java

if TYPE_CHECKING:
    from collections.abc import Collection

    from support.planted_root import PlantedRoot

_CONNECT_JOB = Path(__file__).with_name("support") / "connect_job.py"
# It ends a hang; a busy machine takes its time.
LIMIT_S = 1_800.0
pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(LIMIT_S + 60)]

CLOCK_SKEW_US = 2_000
# Whether a client that asked then has an outcome is certain: its call would have ended meanwhile.
TAIL_S = 70.0
_INCIDENTS_S = 15.0 * 2 * len(INCIDENT_KINDS)
EVERYBODY = Scenario(
    pair="everybody",
    seed=11,
    seconds=10.0 + _INCIDENTS_S + 60.0 + TAIL_S,
    calls_per_s=4.0,
    incidents=tuple(
        Incident(
            kind,
            10.0 + 15.0 * turn,
            0.1 + turn / 10 if kind == "both-active" else 4.0 + turn / 10,
            "passive" if turn in (6, 8) else "active",
        )
        for turn, kind in enumerate((*INCIDENT_KINDS, *INCIDENT_KINDS))
    ),
)
BROKERS = Scenario(
    pair="brokers",
    seed=12,
    seconds=250.0,
    calls_per_s=4.0,
    keepers=frozenset(),
    skew_us=CLOCK_SKEW_US,
    step_us=-3_600_000_000,
    is_sealed=False,
    is_probing=False,
    incidents=(
        Incident("crash", 10.0, 6.0),
        Incident("crash", 30.0, 6.0, "passive"),
        Incident("pause", 50.0, 0.2),  # too short for the peer: no incident
        Incident("pause", 60.0, 2.0, "passive"),
        Incident("pause", 75.0, 4.0),
        Incident("stop", 95.0, 6.0, "passive"),
        Incident("stop", 115.0, 6.0),
        Incident("handover", 140.0, 0.0),
        Incident("partition", 150.0, 3.0),
        Incident("both-active", 160.0, 0.04),
        Incident("crash", 220.0, inf),
    ),
)
# All workers of a service are slow for a while, so that calls end at their deadlines.
CALM = Scenario(
    pair="calm",
    seed=13,
    seconds=60.0 + TAIL_S,
    calls_per_s=5.0,
    deadline_s=2.0,
    faults=tuple(Fault(20.0, Kind.WORKER_SLOW, f"worker-{number}", 5.0, 300.0) for number in (0, 2)),
)


SCENARIOS = (EVERYBODY, BROKERS, CALM)
PAIRS = tuple(scenario.pair for scenario in SCENARIOS)
# The scenes that Spark reads: those of broken promises, and each way to wait for an answer, by journals of
# clients and of nodes. The others differ in events. What follows from these the driver's Python makes of few
# rows, with either engine.
ON_SPARK = frozenset(
    (
        *("lost-calls", "unseen-calls", "executed-calls", "answered-calls", "deadlines-calls"),
        *("in-turn-calls", "both-nodes", "slow-nodes"),
    )
)


def break_everybodys_promises(journal: Path) -> list[Planted]:
    """Each of them once, in 40 s without an incident."""
    since_us = START_US + round((EVERYBODY.seconds - TAIL_S - 50.0) * 1e6)
    return break_promises(journal, [range(since_us, since_us + 40_000_000)])


def incidents_of(root: PlantedRoot, pair: str) -> list[Any]:
    return sorted(root.rows("gold.incidents", pair), key=lambda one: one.began_at_us)


def calls_of(folder: Path) -> list[records.Call]:
    """What clients recorded."""
    lines = [
        line
        for path in folder.glob("*.client-*.gz")
        for line in gzip.decompress(path.read_bytes()).split(b"\n")
    ]
    decoded = [records.decode(line) for line in lines if line]
    return [record for record in decoded if isinstance(record, records.Call)]


def test_spark_connect_comes_to_the_same_tables(
    planted_root: PlantedRoot, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need_java()
    root = tmp_path_factory.mktemp("connect") / "tables"
    chosen = (f"{planted_root.scenes}/{pair}.*" for pair in sorted(ON_SPARK))
    done = subprocess.run(
        [sys.executable, str(_CONNECT_JOB), str(root), *planted_root.journals, *chosen],
        cwd=root.parent,
        env={**os.environ, "SPARK_TESTING": "1"},  # a free port; otherwise it is always 15002
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to set" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"].startswith("pyspark.sql.connect.")
    left_out = {*scenes.PAIRS} - ON_SPARK
    assert told["requests"] == len(sorted_rows(planted_root.root, "silver.requests", left_out))
    for name in TABLES:
        on_spark = sorted_rows(root, name)
        assert on_spark, name
        assert on_spark == sorted_rows(planted_root.root, name, left_out), name


def sorted_rows(root: Path, name: str, left_out: Collection[str] = ()) -> list[str]:
    """The rows of a table as text, in order, without those of some pairs."""

    def text(value: Any) -> str:
        # The last digits of a fraction are each engine's own, and so is how a file spells that times are UTC.
        if isinstance(value, float):
            return f"{value:.9g}"
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}" if isinstance(value, dt.datetime) else repr(value)

    return sorted(
        " ".join(f"{key}={text(value)}" for key, value in sorted(vars(row).items()))
        for row in committed.rows(root, name)
        if row.pair not in left_out
    )


def test_each_request_is_there_once(planted_root: PlantedRoot) -> None:
    requests = Counter((row.pair, row.service) for row in planted_root.rows("silver.requests"))
    assert planted_root.summary.requests == requests.total()
    for pair in PAIRS:
        calls: Counter[str] = Counter()
        for (service, _), count in planted_root.truths[pair].calls.items():
            calls[service] += count
        in_tables = {service: count for (of, service), count in requests.items() if of == pair}
        if pair == "brokers":
            # What a killed node had not written yet, and what never reached a node, no journal has.
            assert all(count * 0.98 <= in_tables[service] <= count for service, count in calls.items())
        else:
            assert in_tables == calls
        assert sum(in_tables.values()) > 500
        assert {row.service for row in planted_root.rows("gold.objectives", pair)} == set(in_tables)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_incident_is_found_within_100_ms_and_no_other(planted_root: PlantedRoot, pair: str) -> None:
    truth = planted_root.truths[pair].incidents
    overlaps = [
        one
        for at, _ in planted_root.truths[pair].overlaps
        for one in truth
        if one.kind == "partition" and one.began_at_us < at < (one.ended_at_us or 0)
    ]
    told = Counter((one.kind, one.node, one.boot) for one in incidents_of(planted_root, pair))
    assert told == Counter(
        [(one.kind, one.node, one.boot) for one in truth]
        + [("both-active", one.node, one.boot) for one in overlaps]
    )
    for one in truth:
        (match,) = [
            this
            for this in incidents_of(planted_root, pair)
            if (this.kind, this.boot) == (one.kind, one.boot)
            and abs(this.began_at_us - one.began_at_us) < 100_000
        ]
        assert abs(match.began_at_us - one.began_at_us) <= match.began_error_us + CLOCK_SKEW_US
        assert match.successor == (one.successor or None)
        if one.taken_over_at_us is not None:
            assert match.taken_over_at_us == pytest.approx(one.taken_over_at_us, abs=CLOCK_SKEW_US)
            assert match.epoch == one.epoch
        if one.ended_at_us is not None:
            # The link is whole when it is connected again.
            error_us = 500_000 if one.kind == "partition" else 100_000
            assert match.recovered_at_us == pytest.approx(one.ended_at_us, abs=error_us)
        else:
            assert match.recovered_at_us is None
        assert one.node in match.cause or one.kind == "partition"
        assert match.detection_us is None or match.detection_us >= 0


def test_an_incident_tells_what_its_clients_saw(planted_root: PlantedRoot) -> None:
    calls = calls_of(planted_root.simulated["everybody"])
    moved = [
        one
        for one in incidents_of(planted_root, "everybody")
        if one.taken_over_at_us is not None and one.kind != "start"
    ]
    assert {one.kind for one in moved} == {"crash", "stop", "pause", "handover", "partition", "both-active"}
    for one in moved:
        until_us = one.recovered_at_us + 1_000_000
        near = [
            call
            for call in calls
            if call.at >= one.began_at_us and call.at - call.total_us <= until_us and call.attempts > 1
        ]
        caught = [
            call
            for call in near
            if call.at - call.total_us <= one.began_at_us and call.at >= one.taken_over_at_us
        ]
        assert len(caught) <= one.retried <= len(near)
        assert one.affected >= one.retried + one.unknown
    assert sum(one.retried for one in moved) > 5


def test_each_broken_promise_is_named_and_nothing_else(planted_root: PlantedRoot) -> None:
    assert {one.kind for one in planted_root.broken} == set(RULES)
    for pair, truth in planted_root.truths.items():
        planted = planted_root.broken if pair == "everybody" else []
        requests = {(one.rule, one.client, one.number) for one in planted}
        told = [one for one in planted_root.rows("gold.audit", pair) if one.verdict == "violated"]
        assert {(one.rule, one.client, one.number) for one in told if one.client} == requests
        seen = sorted((one.at_us, one.duration_us) for one in told if one.client is None)
        assert len(told) == len(requests) + len(truth.overlaps)
        for (at, took), (at_seen, took_seen) in zip(sorted(truth.overlaps), seen, strict=True):
            assert at_seen == pytest.approx(at, abs=CLOCK_SKEW_US)
            assert took_seen == pytest.approx(took, abs=2 * CLOCK_SKEW_US)


def test_what_the_guarantees_allow_is_counted_and_what_nobody_can_tell_is_said(
    planted_root: PlantedRoot,
) -> None:
    def count(pair: str, rule: str, verdict: str) -> int:
        return sum(
            one.count
            for one in planted_root.rows("gold.audit", pair)
            if (one.rule, one.verdict) == (rule, verdict)
        )

    def ended(pair: str, *outcomes: str) -> int:
        return sum(
            count for (_, outcome), count in planted_root.truths[pair].calls.items() if outcome in outcomes
        )

    assert count("everybody", "executed-twice", "excused") > 0
    assert count("calm", "lost", "excused") == ended("calm", "timeout") > 0
    assert {one.verdict for one in planted_root.rows("gold.audit", "calm")} == {"excused"}
    of_brokers = planted_root.rows("gold.audit", "brokers")
    unseen = [one for one in of_brokers if "not in a client's journal" in one.text]
    in_tables = planted_root.rows("silver.requests", "brokers")
    assert sum(one.count for one in unseen) == len(in_tables) > 0
    assert count("brokers", "answered-twice", "violated") == 0
    killed = [one.text for one in of_brokers if "ended without a word" in one.text]
    assert len(killed) == 3
