"""Silver: runs with their clocks, intervals of states, and requests joined over whoever recorded them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from msgspec.structs import fields

from bstar import records
from support.journals import AT_US, Run

if TYPE_CHECKING:
    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark

S = 1_000_000
HOUR_US = 3_600 * S
PAIR = "silver"


def _nodes() -> list[Run]:
    """The primary serves, is away for two seconds, serves in a higher epoch, is killed and comes back."""
    first = Run("primary", pair=PAIR, boot="a1" * 16)
    first.start(0, epoch=0)
    first.state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP")
    first.add(records.Activated, 1 * S + 3, epoch=1, text="The backup waits.")
    # The wall clock is an hour wrong for a while.
    for number in range(3):
        first.request(2 * S + number, "c-step", number, step_us=HOUR_US)
    for number in range(5):
        first.request(3 * S + number, "c-plain", number)
    first.request(4 * S, "c-full", 1, total_us=900, queued_us=300, busy_us=600, bytes_in=10, bytes_out=20)
    first.request(5 * S, "c-moved", 1, "returned", deliveries=1, total_us=2_000)
    first.request(5 * S, "c-given-up", 1, "returned", deliveries=0, total_us=2_000, worker="")
    first.request(6 * S, "c-twice", 1, epoch=1)
    first.request(6 * S, "mdp-0a", 1)
    first.request(7 * S, "c-moved", 1, "late", deliveries=1, total_us=2 * S)  # of the same delivery
    first.add(records.Stalled, 12 * S, gap_us=2 * S)
    first.add(records.Activated, 14 * S, epoch=3, text="The peer knew a higher one.")
    first.add(records.Pulse, 20 * S, state="ACTIVE", epoch=3, workers=1, queued=0, in_flight=0)
    # One of its records was lost on the way.
    del first.records[4]
    second = Run("primary", pair=PAIR, boot="a2" * 16)
    second.start(30 * S, epoch=3)
    second.add(records.Stopped, 40 * S, reason="SIGTERM")
    other = Run(
        "backup", pair=PAIR, boot="b1" * 16, machine="silver-2", at_us=AT_US + 7, mono_us=99 * HOUR_US
    )
    other.start(0)
    other.state(1 * S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
    other.add(records.PeerLost, 23 * S, reason="silent", silent_us=3 * S)
    other.state(24 * S, "PASSIVE", "ACTIVE", "CLIENT_REQUEST", epoch=3)
    other.add(records.Activated, 24 * S, epoch=4, text="The peer is silent.")
    other.request(25 * S, "c-moved", 1, deliveries=2, is_repeated=True, worker="0c")
    other.request(25 * S, "c-given-up", 1, "cancelled", deliveries=0, worker="")
    other.request(26 * S, "c-twice", 1)
    other.request(26 * S, "mdp-0a", 1)
    other.add(records.PeerSeen, 30 * S, peer="PRIMARY")
    other.add(records.Dropped, 40 * S, count=5, requests=4, since_us=1)
    return [first, second, other]


def _others() -> list[Run]:
    """A client that began before the input does, and a worker of its machine, whose clock was right."""
    client = Run("client-1", pair=PAIR, boot="c1" * 16, machine="silver-3", mono_us=50)
    client.start(0, source="client", sample=0.5)
    client.call(
        4 * S + 100, "c-full", 1, total_us=1_100, bytes_in=10, bytes_out=20, reply_crc=7, endpoint="e"
    )
    client.call(25 * S + 100, "c-moved", 1, attempts=2, reply_crc=8, step_us=-HOUR_US)
    client.call(27 * S, "c-alone", 1, "no-active", total_us=2 * S, busy=3, step_us=-HOUR_US)
    worker = Run("worker-1", pair=PAIR, boot="d1" * 16, machine="silver-3", mono_us=50)
    worker.start(0, source="worker", service="echo")
    worker.execution(4 * S - 100, "c-full", 1, reply_crc=7)
    worker.execution(5 * S - 100, "c-moved", 1, reply_crc=8)
    worker.execution(25 * S - 100, "c-moved", 1, reply_crc=9, is_repeated=True)
    worker.execution(6 * S, "c-twice", 1, reply_crc=2)
    worker.execution(26 * S, "c-twice", 1, reply_crc=1)
    worker.execution(28 * S, "c-hidden", 1)
    unknown = Run("client-2", pair=PAIR, boot="c2" * 16, machine="silver-4")
    unknown.call(29 * S, "c-late", 1)
    return [client, worker, unknown]


def planted() -> list[Run]:
    """All journals."""
    return [*_nodes(), *_others()]


@pytest.fixture(scope="module")
def runs(planted_root: PlantedRoot) -> dict[str, Any]:
    return {row.boot[:2]: row for row in planted_root.rows("silver.runs", PAIR)}


@pytest.fixture(scope="module")
def requests(planted_root: PlantedRoot) -> dict[str, Any]:
    return {row.client: row for row in planted_root.rows("silver.requests", PAIR)}


def test_a_step_of_the_wall_clock_moves_nothing_on_the_timeline(runs: dict[str, Any]) -> None:
    assert runs["a1"].offset_us == AT_US - 5 * S
    assert (runs["a1"].started_at_us, runs["a1"].last_at_us) == (AT_US, AT_US + 20 * S)
    assert runs["b1"].offset_us == AT_US + 7 - 99 * HOUR_US


def test_processes_of_one_machine_share_a_clock(runs: dict[str, Any]) -> None:
    # By itself the client would be as wrong as half of its records are.
    assert runs["c1"].offset_us == runs["d1"].offset_us == AT_US - 50
    assert runs["a1"].offset_us == runs["a2"].offset_us


def test_a_run_says_what_is_missing_of_it(runs: dict[str, Any]) -> None:
    assert {boot: (row.missing, row.dropped, row.is_clean, row.is_sampled) for boot, row in runs.items()} == {
        "a1": (1, 0, False, False),
        "a2": (0, 0, True, False),
        "b1": (0, 5, False, False),
        "c1": (0, 0, False, True),
        "d1": (0, 0, False, False),
        "c2": (0, 0, False, False),
    }
    assert runs["a1"].records == len(_nodes()[0].records)


def test_a_run_without_its_first_record_is_what_it_did(runs: dict[str, Any]) -> None:
    assert {boot: row.source for boot, row in runs.items()} == {
        "a1": "broker", "a2": "broker", "b1": "broker", "c1": "client", "d1": "worker", "c2": "client",
    }  # fmt: skip
    assert (runs["c2"].machine, runs["d1"].service) == (None, "echo")


def test_states_follow_each_other_and_a_pause_is_cut_out(planted_root: PlantedRoot) -> None:
    states = planted_root.rows("silver.states", PAIR)
    states.sort(key=lambda row: (row.node, row.since_at_us))
    found = [
        (
            row.boot[:2],
            row.state,
            row.is_serving,
            row.epoch,
            (row.since_at_us - AT_US) / S,
            (row.until_at_us - AT_US) / S,
            row.event,
            row.ended_by,
        )
        for row in states
    ]
    ahead = 7 / S
    assert found == [
        ("b1", "BACKUP", False, 0, ahead, 1 + ahead, "START", "state"),
        ("b1", "PASSIVE", False, 0, 1 + ahead, 24 + ahead, "PEER_ACTIVE", "state"),
        ("b1", "ACTIVE", True, 4, 24 + ahead, 40 + ahead, "CLIENT_REQUEST", "end"),
        ("a1", "PRIMARY", False, 0, 0, 1, "START", "state"),
        ("a1", "ACTIVE", True, 1, 1, 10, "PEER_BACKUP", "stall"),
        ("a1", "ACTIVE", False, 1, 10, 12, "STALL", "stall"),
        ("a1", "ACTIVE", True, 1, 12, 14, "PEER_BACKUP", "state"),
        ("a1", "ACTIVE", True, 3, 14, 20, "EPOCH", "kill"),
        ("a2", "PRIMARY", False, 3, 30, 40, "START", "stop"),
    ]
    texts = {row.event: row.text for row in states}
    assert texts["PEER_BACKUP"] == "PEER_BACKUP: ACTIVE"
    assert texts["STALL"] == "The process was away."
    assert texts["EPOCH"] == "The peer knew a higher one."


def test_a_request_is_one_row_of_what_node_client_and_worker_say(requests: dict[str, Any]) -> None:
    row = requests["c-full"]
    assert (row.evidence, row.node, row.outcome, row.call_outcome) == (7, "primary", "answered", "answered")
    assert (row.accepted_at_us, row.ended_at_us) == (AT_US + 4 * S - 900, AT_US + 4 * S + 100)
    assert (row.total_us, row.queued_us, row.busy_us, row.call_total_us) == (900, 300, 600, 1_100)
    assert (row.bytes_in, row.bytes_out, row.reply_crc, row.execution_crcs) == (10, 20, 7, [7])
    assert (row.node_records, row.answers, row.executions, row.unmarked, row.attempts) == (1, 1, 1, 0, 1)
    assert (row.is_idempotent, row.is_repeated, row.weight, str(row.day)) == (True, False, 1.0, "2026-11-02")


def test_a_request_that_moved_to_the_other_node_is_one_request(requests: dict[str, Any]) -> None:
    row = requests["c-moved"]
    assert (row.node, row.worker, row.outcome, row.evidence) == ("backup", "0c", "answered", 7)
    assert (row.node_records, row.answers, row.returned, row.deliveries, row.attempts) == (3, 1, 1, 3, 2)
    assert (row.executions, row.unmarked, row.is_repeated, row.execution_crcs) == (2, 0, True, [8, 9])
    assert row.accepted_at_us == AT_US + 5 * S - 2_000


def test_a_request_that_its_client_gave_up_at_the_other_node_was_cancelled(requests: dict[str, Any]) -> None:
    row = requests["c-given-up"]
    assert (row.node, row.outcome, row.node_records, row.returned) == ("backup", "cancelled", 2, 1)


def test_each_outcome_of_a_node_has_a_rank() -> None:
    from bstar_pipeline.silver.requests import _OUTCOMES

    (told,) = (field for field in fields(records.Request) if field.name == "outcome")
    assert sorted(_OUTCOMES) == sorted(get_args(told.type))


def test_what_was_answered_and_executed_twice_without_a_mark_shows(requests: dict[str, Any]) -> None:
    row = requests["c-twice"]
    assert (row.node_records, row.answers, row.executions, row.unmarked) == (2, 2, 2, 1)
    assert (row.execution_crcs, row.reply_crc, row.call_outcome, row.evidence) == ([1, 2], None, None, 5)
    # Of two records that are equally good the earlier one tells.
    assert row.node == "primary"


def test_who_alone_recorded_a_request_is_believed(requests: dict[str, Any]) -> None:
    told, hidden = requests["c-alone"], requests["c-hidden"]
    assert (told.evidence, told.outcome, told.busy, told.node, told.answers) == (2, "no-active", 3, None, 0)
    assert (told.accepted_at_us, told.ended_at_us) == (AT_US + 25 * S, AT_US + 27 * S)
    assert (hidden.evidence, hidden.outcome, hidden.executions, hidden.node_records) == (4, None, 1, 0)
    assert (hidden.accepted_at_us, hidden.execution_crcs) == (AT_US + 28 * S - 500, [])


def test_requests_without_an_identity_are_not_taken_for_each_other(planted_root: PlantedRoot) -> None:
    rows = [row for row in planted_root.rows("silver.requests", PAIR) if row.client == "mdp-0a"]
    assert [(row.node_records, row.answers) for row in rows] == [(1, 1), (1, 1)]
