"""Outages: times in which requests waited and none was answered. A pair for each case, told by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from support.journals import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark

S = 1_000_000
END = 300 * S


def _run(node: str, pair: str, start: int = 1) -> Run:
    return Run(node, pair=pair, boot=f"{start}-{pair}-{node}".encode().hex()[:32].ljust(32, "0"))


def _nodes(pair: str) -> tuple[Run, Run]:
    """A primary that serves from 1 s on, and its backup."""
    nodes = [_run(node, pair) for node in ("primary", "backup")]
    for node in nodes:
        node.start(0, heartbeat_us=100_000, failover_timeout_us=300_000)
    nodes[0].state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
    nodes[0].add(records.Activated, 1 * S, epoch=1, text="The backup waits.")
    nodes[1].state(1 * S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
    return nodes[0], nodes[1]


def _serve(node: Run, seconds: Iterable[int], first: int = 1, **fields: Any) -> None:
    """One request a second; each takes 2 ms."""
    for number, second in enumerate(seconds, start=first):
        node.request(second * S, "c1", number, total_us=2_000, **fields)


def _end(*nodes: Run) -> list[Run]:
    for node in nodes:
        node.add(records.Stopped, END, reason="SIGTERM")
    return list(nodes)


def _quiet() -> list[Run]:
    """Nobody asks for two minutes."""
    primary, backup = _nodes("quiet")
    _serve(primary, range(2, 60))
    _serve(primary, range(180, 240), 100)
    return _end(primary, backup)


def _slow() -> list[Run]:
    """One handler is at work for 20 s, and another request waits behind it."""
    primary, backup = _nodes("slow")
    _serve(primary, range(2, 60))
    primary.request(80 * S, "c1", 100, total_us=20 * S, queued_us=1_000, busy_us=20 * S - 1_000)
    primary.request(80 * S + 1_000, "c1", 101, total_us=15 * S, queued_us=15 * S - 1_000, busy_us=1_000)
    return _end(primary, backup)


def _away() -> list[Run]:
    """All workers stop at 60 s. Requests of 70 and 75 s wait, one of them until a worker is there at 90 s."""
    primary, backup = _nodes("away")
    _serve(primary, range(2, 60))
    primary.request(85 * S, "c1", 100, outcome="expired", total_us=15 * S, deliveries=0, worker=None)
    primary.request(90 * S, "c1", 101, total_us=15 * S, queued_us=15 * S - 2_000, busy_us=2_000)
    _serve(primary, range(91, 240), 102)
    return _end(primary, backup)


def _never_back() -> list[Run]:
    """They stop at 60 s and nobody starts them again."""
    primary, backup = _nodes("forever")
    _serve(primary, range(2, 60))
    for number in (100, 101):
        primary.request(
            number * S, "c1", number, outcome="expired", total_us=30 * S, deliveries=0, worker=None
        )
    return _end(primary, backup)


def _sampled() -> list[Run]:
    primary, backup = _nodes("sampled")
    _serve(primary, range(2, 60), weight=10.0)
    primary.request(90 * S, "c1", 101, total_us=15 * S, queued_us=15 * S - 2_000, busy_us=2_000, weight=10.0)
    return _end(primary, backup)


def _both_killed() -> list[Run]:
    """The backup dies 2 s after the primary; the primary is started again at 100 s, the backup at 110 s.

    Between 60 and 100 s nobody was there; the client's request of 70 s waited for the new primary.
    """
    primary, backup = _nodes("killed")
    _serve(primary, range(2, 60))
    backup.add(records.PeerLost, 60 * S, silent_us=300_000, reason="gone")
    backup.state(61 * S, "PASSIVE", "ACTIVE", "CLIENT_REQUEST", epoch=2)
    backup.add(records.Activated, 61 * S, epoch=2, text="The primary is gone.")
    _serve(backup, [61], 60)
    again = [_run(node, "killed", 2) for node in ("primary", "backup")]
    again[0].start(100 * S, heartbeat_us=100_000, failover_timeout_us=300_000)
    again[0].state(101 * S, "PRIMARY", "ACTIVE", "CLIENT_REQUEST", epoch=3)
    again[0].add(records.Activated, 101 * S, epoch=3, text="The peer is not there.")
    again[0].request(102 * S, "c1", 100, total_us=1_000)
    again[1].start(110 * S, heartbeat_us=100_000, failover_timeout_us=300_000)
    _serve(again[0], range(103, 200), 101)
    return [primary, backup, *_end(*again)]


CASES = (_quiet, _slow, _away, _never_back, _sampled, _both_killed)


def planted() -> list[Run]:
    """The journals of all cases."""
    return [run for case in CASES for run in case()]


def _of(root: PlantedRoot, pair: str) -> list[Any]:
    """What is beyond the pair's beginning and its end in good order."""
    of_pair = sorted(root.rows("gold.incidents", pair), key=lambda row: row.began_at_us)
    return [row for row in of_pair if S < row.began_at_us - of_pair[0].began_at_us < END - S]


@pytest.mark.parametrize("pair", ["quiet", "slow", "sampled"])
def test_without_traffic_with_slow_handlers_and_in_samples_is_no_outage(
    planted_root: PlantedRoot, pair: str
) -> None:
    assert _of(planted_root, pair) == []


def test_workers_that_are_away_are_an_outage_although_no_role_moves(planted_root: PlantedRoot) -> None:
    (found,) = _of(planted_root, "away")
    start = min(row.began_at_us for row in planted_root.rows("gold.incidents", "away"))
    assert (found.kind, found.node, found.successor) == ("outage", "primary", None)
    # From the first request that waits to the first answer; whoever tells how long says this.
    assert found.began_at_us - start == 70 * S
    assert found.recovered_at_us - found.began_at_us == 20 * S
    assert (found.outage_at_us, found.outage_us) == (found.began_at_us, 20 * S)
    assert found.cause == (
        "2 requests waited (echo) and none was answered for 20.000 s: no worker was at work on any."
    )


def test_an_outage_that_does_not_end_lasts_to_the_last_request(planted_root: PlantedRoot) -> None:
    (found,) = _of(planted_root, "forever")
    assert found.kind == "outage"
    assert (found.recovered_at_us, found.outage_us) == (None, 31 * S)
    assert found.cause.endswith("None was answered later in these journals.")


def test_both_nodes_killed_is_one_incident(planted_root: PlantedRoot) -> None:
    (found,) = _of(planted_root, "killed")
    assert (found.kind, found.node) == ("both-crash", "primary")
    assert "primary ended without a word" in found.cause
    assert "backup ended without a word" in found.cause
    assert "So no node was there." in found.cause
