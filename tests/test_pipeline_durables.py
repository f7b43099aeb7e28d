"""Durable requests in the pipeline: planted journals of both nodes, and what the audit says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from support.journals import Run

if TYPE_CHECKING:
    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark

S = 1_000_000
NUMBER = 1 << 62


class Nodes:
    """Two nodes of a pair on one machine; both tell each step, the follower 2 ms later."""

    def __init__(self, pair: str) -> None:
        self.primary, self.backup = (
            Run("primary", pair=pair, boot=_boot(pair, 1)),
            Run("backup", pair=pair, boot=_boot(pair, 2)),
        )
        self.primary.start(0)
        self.backup.start(0)
        self.primary.state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
        self.backup.state(1 * S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
        self.entry = 0

    def step(self, t_us: int, client: str, step: str, **fields: Any) -> None:
        self.entry += 1
        self.primary.durable(t_us, client, step, self.entry, **fields)
        self.backup.durable(t_us + 2_000, client, step, self.entry, **fields)

    def fetched(self, t_us: int, client: str, crc: int, **fields: Any) -> None:
        self.primary.durable(t_us, client, "fetched", reply_crc=crc, **fields)

    def attempt(self, t_us: int, client: str, outcome: str = "answered", **fields: Any) -> None:
        """A worker had it for the last second."""
        self.primary.request(
            t_us, client, NUMBER, outcome, service="price", total_us=S, busy_us=S, queued_us=0, **fields
        )

    def stop(self, t_us: int = 60 * S) -> list[Run]:
        for run in (self.primary, self.backup):
            run.add(records.Stopped, t_us, reason="SIGTERM")
        return [self.primary, self.backup]


def _boot(pair: str, number: int) -> str:
    return (pair.encode().hex() + str(number)).rjust(32, "0")


def good() -> list[Run]:
    """A failed attempt, an answer that is fetched twice and closed; one that waits; one submitted again."""
    nodes = Nodes("good")
    nodes.step(10 * S, "a1", "submitted")
    nodes.attempt(12 * S, "a1", "failed")
    nodes.step(12 * S, "a1", "attempt", attempts=1)
    nodes.attempt(14 * S, "a1", is_repeated=True)
    nodes.step(14 * S, "a1", "answered", attempts=1, reply_crc=7)
    nodes.fetched(15 * S, "a1", 7)
    nodes.fetched(16 * S, "a1", 7)
    nodes.step(17 * S, "a1", "closed")
    nodes.step(18 * S, "b2", "submitted")
    # The same key again is another request, with another answer.
    nodes.step(20 * S, "a1", "submitted", submission=9)
    nodes.attempt(22 * S, "a1")
    nodes.step(22 * S, "a1", "answered", submission=9, reply_crc=8)
    nodes.step(23 * S, "c3", "submitted")
    nodes.step(24 * S, "c3", "dead", cause="expired")
    nodes.step(25 * S, "c3", "retried")
    nodes.step(26 * S, "c3", "cancelled")
    nodes.primary.store(30 * S, nodes.entry, pending=1, answered=1, cancelled=1)
    nodes.backup.store(30 * S, nodes.entry - 2, is_leading=False)
    return nodes.stop()


def lost() -> list[Run]:
    """Two are acknowledged, and the store holds one."""
    nodes = Nodes("lost")
    nodes.step(10 * S, "a1", "submitted")
    nodes.step(11 * S, "b2", "submitted")
    nodes.primary.store(12 * S, nodes.entry, pending=2)
    nodes.primary.store(30 * S, nodes.entry + 5, pending=1)
    return nodes.stop()


def doubtful() -> list[Run]:
    """The same, but the node that led was killed meanwhile: perhaps it had answered one."""
    nodes = Nodes("doubtful")
    nodes.step(10 * S, "a1", "submitted")
    nodes.step(11 * S, "b2", "submitted")
    nodes.backup.add(records.PeerLost, 20 * S, reason="gone", silent_us=S)
    nodes.backup.state(21 * S, "PASSIVE", "ACTIVE", "CLIENT_REQUEST", epoch=2)
    nodes.backup.store(50 * S, nodes.entry + 5, pending=1)
    nodes.backup.durable(55 * S, "c3", "submitted", 99)
    nodes.backup.add(records.Stopped, 60 * S, reason="SIGTERM")
    return [nodes.primary, nodes.backup]


def begun() -> list[Run]:
    """One is given to a worker after its close, another one after its cancel."""
    nodes = Nodes("begun")
    for client, end in (("a1", "closed"), ("b2", "cancelled")):
        nodes.step(10 * S, client, "submitted")
        nodes.step(11 * S, client, end)
        nodes.attempt(14 * S, client)
    # It had begun before.
    nodes.step(10 * S, "c3", "submitted")
    nodes.step(11 * S, "c3", "closed")
    nodes.attempt(11 * S + S // 2, "c3", "late")
    # It was retried after its cancel.
    nodes.step(10 * S, "d4", "submitted")
    nodes.step(11 * S, "d4", "cancelled")
    nodes.step(12 * S, "d4", "retried")
    nodes.attempt(14 * S, "d4")
    nodes.step(14 * S, "d4", "answered", reply_crc=7)
    nodes.primary.store(30 * S, nodes.entry, answered=1, cancelled=1)
    return nodes.stop()


def changed() -> list[Run]:
    """A client gets another answer than was stored; another request ends twice."""
    nodes = Nodes("changed")
    nodes.step(10 * S, "a1", "submitted")
    nodes.step(11 * S, "a1", "answered", reply_crc=0xAB)
    nodes.fetched(12 * S, "a1", 0xCD)
    nodes.step(10 * S, "b2", "submitted")
    nodes.step(11 * S, "b2", "cancelled")
    nodes.step(12 * S, "b2", "answered", reply_crc=1)
    nodes.primary.store(30 * S, nodes.entry, answered=2)
    return nodes.stop()


def planted() -> list[Run]:
    """The journals of all pairs."""
    return [*good(), *lost(), *doubtful(), *begun(), *changed()]


def one(root: PlantedRoot, pair: str, client: str, submission: int = 1) -> Any:
    rows = root.rows("silver.durables", pair)
    [row] = [row for row in rows if (row.client, row.submission) == (client, submission)]
    return row


def of_pair(root: PlantedRoot, pair: str, *rules: str) -> list[Any]:
    return [row for row in root.rows("gold.audit", pair) if row.rule in rules]


DURABLE = ("durable-lost", "begun-after-end", "answer-changed")


def test_a_durable_request_is_one_row_whoever_told_its_steps(planted_root: PlantedRoot) -> None:
    row = one(planted_root, "good", "a1")
    assert (row.state, row.attempts, row.ends, row.fetches, row.answers) == ("closed", 1, 1, 2, [7])
    assert row.ended_at_us - row.submitted_at_us == 4 * S
    assert row.stopped_at_us - row.submitted_at_us == 7 * S
    assert row.given_at_us - row.submitted_at_us == 3 * S
    assert one(planted_root, "good", "b2").state == "pending"
    row = one(planted_root, "good", "c3")
    assert (row.state, row.ends, row.retries) == ("cancelled", 2, 1)


def test_an_id_that_is_submitted_again_is_another_request(planted_root: PlantedRoot) -> None:
    row = one(planted_root, "good", "a1", 9)
    assert (row.state, row.answers) == ("answered", [8])
    assert row.given_at_us - row.submitted_at_us == S


def test_a_good_journal_has_no_violation_and_what_waits_is_excused(planted_root: PlantedRoot) -> None:
    assert not [row for row in planted_root.rows("gold.audit", "good") if row.verdict == "violated"]
    [row] = of_pair(planted_root, "good", *DURABLE)
    assert (row.rule, row.verdict, row.count) == ("durable-lost", "excused", 1)


def test_attempts_at_durable_requests_need_no_client_s_journal(planted_root: PlantedRoot) -> None:
    assert not [row for row in of_pair(planted_root, "good", "lost") if row.verdict != "excused"]
    texts = [row.text for row in of_pair(planted_root, "good", "answered-twice")]
    assert texts == ["attempts at a durable request that ended"]


def test_acknowledged_and_never_ended_is_lost_if_the_store_has_fewer(planted_root: PlantedRoot) -> None:
    [row] = of_pair(planted_root, "lost", *DURABLE)
    assert (row.rule, row.verdict, row.count, row.node) == ("durable-lost", "violated", 1, "primary")
    assert row.text == "2 are pending by the journals after entry 7, and the store of the primary has 1"


def test_after_a_kill_the_journals_cannot_tell(planted_root: PlantedRoot) -> None:
    rows = sorted(of_pair(planted_root, "doubtful", *DURABLE), key=lambda row: row.text)
    assert [(row.rule, row.verdict, row.count) for row in rows] == [
        ("durable-lost", "unproven", 1),
        ("durable-lost", "unproven", 1),
    ]
    assert "but a journal lacks something" in rows[0].text
    assert "after the last count of a store that led" in rows[1].text


def test_begun_after_its_close_or_cancel_was_acknowledged_is_named(planted_root: PlantedRoot) -> None:
    rows = [row for row in of_pair(planted_root, "begun", *DURABLE) if row.verdict == "violated"]
    assert sorted((row.rule, row.client, row.duration_us) for row in rows) == [
        ("begun-after-end", "a1", 2 * S),
        ("begun-after-end", "b2", 2 * S),
    ]


def test_an_answer_that_changed_and_an_end_that_changed_are_named(planted_root: PlantedRoot) -> None:
    rows = of_pair(planted_root, "changed", *DURABLE)
    assert sorted((row.rule, row.verdict, row.client, row.text) for row in rows) == [
        ("answer-changed", "violated", "a1", "nodes stored or gave answers with the CRC-32 AB, CD"),
        ("answer-changed", "violated", "b2", "it ended 2 times, and was retried 0 times"),
    ]
