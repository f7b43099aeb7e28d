"""Machines whose clocks are wrong: what overlapped is found, what did not is not, and days stay."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from bstar import records
from support.journals import Run

if TYPE_CHECKING:
    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark

S = 1_000_000
DAY_US = 86_400 * S


class _Pair:
    """A pair whose primary serves from 1 s to ``until`` and whose backup serves from ``since`` to 20 s.

    A client asks once a second, of a machine of its own, like each node and the worker.
    """

    def __init__(self, name: str, until: int, since: int, **ahead_us: int) -> None:
        self.runs = {
            node: Run(
                node,
                pair=name,
                boot=f"{name}-{node}".encode().hex()[:32].ljust(32, "0"),
                machine=f"{name}-{node}",
                at_us=Run(node).at_us + ahead_us.get(node, 0),
            )
            for node in ("primary", "backup", "client", "worker")
        }
        primary, backup, client, worker = self.runs.values()
        for node in (primary, backup):
            node.start(0, heartbeat_us=100_000, failover_timeout_us=300_000)
        client.start(0, source="client")
        worker.start(0, source="worker", service="echo")
        primary.state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
        primary.add(records.Activated, 1 * S, epoch=1, text="The backup waits.")
        backup.state(1 * S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
        self._serve(primary, range(2, until // S), 1)
        if until > 20 * S:
            primary.add(records.Stopped, until, reason="SIGTERM")
        else:
            primary.state(until, "ACTIVE", "PASSIVE", "STALL", epoch=1)
            primary.add(records.Stopped, 20 * S, reason="SIGTERM")
        backup.state(since, "PASSIVE", "ACTIVE", "CLIENT_REQUEST", epoch=2)
        backup.add(records.Activated, since, epoch=2, text="A client voted.")
        self._serve(backup, range(since // S + 2, 20), 2)
        for run in (backup, client, worker):
            run.add(records.Stopped, 20 * S, reason="SIGTERM")

    def _serve(self, node: Run, seconds: range, epoch: int) -> None:
        for second in seconds:
            end, name, number = second * S, f"c{epoch}", second - seconds.start + 1
            node.request(end, name, number, total_us=2_000, epoch=epoch)
            self.runs["client"].call(end + 200, name, number, total_us=2_400)
            self.runs["worker"].execution(end - 200, name, number, busy_us=1_600, epoch=epoch)


def _drifting() -> _Pair:
    """The backup's clock gains 30 ms a second on the others."""
    pair = _Pair("drift", until=10 * S, since=10 * S)
    run = pair.runs["backup"]
    for place, record in enumerate(run.records):
        gained = (record.mono - run.mono_us) * 3 // 100
        run.records[place] = structs.replace(record, at=record.at + gained, mono=record.mono + gained)
    return pair


def _nodes_alone() -> list[Run]:
    """No client and no worker keeps a journal, and the backup is three minutes ahead."""
    begin = Run("backup").at_us
    primary, backup = (
        Run(node, pair="alone", boot=name.encode().hex().ljust(32, "0"), machine=name, at_us=begin + ahead_us)
        for node, name, ahead_us in (("primary", "alone-p", 0), ("backup", "alone-b", 180 * S))
    )  # fmt: skip
    for node, peer in ((primary, backup), (backup, primary)):
        node.start(0, heartbeat_us=100_000, failover_timeout_us=300_000)
        node.add(records.PeerSeen, 100_000, peer="READY", peer_boot=peer.boot)
    primary.state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
    primary.add(records.Activated, 1 * S, epoch=1, text="The backup waits.")
    backup.state(1 * S + 50_000, "BACKUP", "PASSIVE", "PEER_ACTIVE")
    primary.request(5 * S, "c1", 1)
    for node in (primary, backup):
        node.add(records.Stopped, 20 * S, reason="SIGTERM")
    return [primary, backup]


PAIRS = ("false", "hidden", "yesterday", "tomorrow", "drift", "alone")


def planted() -> list[Run]:
    """The journals of all pairs."""
    pairs = [
        # The backup took over 0.2 s after the primary had stopped to serve.
        _Pair("false", until=10 * S, since=10 * S + 200_000, backup=-2 * S),
        # Both served for a second.
        _Pair("hidden", until=11 * S, since=10 * S, backup=2 * S),
        _Pair("yesterday", until=10 * S, since=10 * S + 200_000, client=-DAY_US),
        _Pair("tomorrow", until=10 * S, since=10 * S + 200_000, worker=DAY_US),
        _drifting(),
    ]
    return [*(run for pair in pairs for run in pair.runs.values()), *_nodes_alone()]


def test_what_is_put_right_is_said(planted_root: PlantedRoot) -> None:
    lines = [line for line in planted_root.progress if line.startswith("putting right")]
    machines = [line.split()[6].rstrip(",") for line in lines]
    assert sorted(machine for machine in machines if machine.partition("-")[0] in PAIRS) == [
        "drift-backup",
        "false-backup",
        "hidden-backup",
        "tomorrow-worker",
        "yesterday-client",
    ]


def test_a_clock_that_is_wrong_is_put_right_by_what_requests_tell(planted_root: PlantedRoot) -> None:
    off = {
        (run.pair, run.node): run.clock_off_us
        for run in planted_root.rows("silver.runs", *PAIRS)
        if abs(run.clock_off_us) > 10_000
    }
    assert off.pop(("drift", "backup")) == pytest.approx(470_000, abs=30_000)
    planted = {
        ("false", "backup"): -2 * S,
        ("hidden", "backup"): 2 * S,
        ("yesterday", "client"): -DAY_US,
        ("tomorrow", "worker"): DAY_US,
    }
    assert off == pytest.approx(planted, abs=300)


def test_what_overlapped_is_found_and_what_did_not_is_not(planted_root: PlantedRoot) -> None:
    found = [row for row in planted_root.rows("gold.audit", *PAIRS) if row.rule == "both-active"]
    (violation,) = (row for row in found if row.verdict == "violated")
    assert violation.pair == "hidden"
    assert violation.duration_us == pytest.approx(S, abs=300)
    incidents = planted_root.rows("gold.incidents", *PAIRS)
    assert {row.pair for row in incidents if row.kind == "both-active"} == {"hidden"}


def test_of_a_clock_that_drifted_nothing_is_proven(planted_root: PlantedRoot) -> None:
    (row,) = (row for row in planted_root.rows("gold.audit", "drift") if row.rule == "both-active")
    assert row.verdict == "unproven"
    assert row.node == "backup"
    assert row.text.startswith("the clock of backup is unsure by 0.2")


def test_of_two_nodes_that_disagree_and_nothing_else_neither_is_put_right(planted_root: PlantedRoot) -> None:
    runs = planted_root.rows("silver.runs", "alone")
    assert {run.clock_off_us for run in runs} == {0}
    assert all(run.clock_unsure_us == pytest.approx(180 * S, abs=S) for run in runs)
    found = [row for row in planted_root.rows("gold.audit", "alone") if row.rule == "both-active"]
    assert {(row.node, row.verdict) for row in found} == {("primary", "unproven"), ("backup", "unproven")}


def test_a_request_is_of_its_nodes_day_whatever_others_clocks_say(planted_root: PlantedRoot) -> None:
    requests = planted_root.rows("silver.requests", *PAIRS)
    assert {row.pair for row in requests} >= {"yesterday", "tomorrow"}
    assert {row.day for row in requests} == {dt.date(2026, 11, 2)}
    assert {row.evidence for row in requests if row.pair != "alone"} == {7}


def test_no_order_of_things_is_lost_with_a_clock(planted_root: PlantedRoot) -> None:
    """A worker's clock of tomorrow would let it begin a request of an old epoch after one of a new."""
    others = [pair for pair in PAIRS if pair != "hidden"]
    assert not [row for row in planted_root.rows("gold.audit", *others) if row.verdict == "violated"]
