"""Planted scenarios: journals in which one thing is wrong, and what the audit tells of each.

Each scenario is a pair of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from bstar import records
from support import committed
from support.journals import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark

S = 1_000_000


class Cast:
    """A pair with a client and a worker, all with whole journals; ten requests without a fault."""

    def __init__(self, pair: str) -> None:
        self.primary, self.backup, self.client, self.worker = (
            Run(node, pair=pair, boot=f"{pair.encode().hex()[:26]}{number}".rjust(32, "0"))
            for number, node in enumerate(("primary", "backup", "client-1", "worker-1"))
        )
        self.primary.start(0, epoch=1)
        self.backup.start(0)
        self.client.start(0, source="client")
        self.worker.start(0, source="worker", service="echo")
        self.primary.state(1 * S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
        self.primary.add(records.Activated, 1 * S, epoch=1, text="The backup waits.")
        self.backup.state(1 * S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
        for number in range(1, 11):
            self.serve((1 + number) * S, number)

    def serve(self, t_us: int, number: int, *, epoch: int = 1, worker: Run | None = None) -> None:
        """A request that all recorded."""
        self.primary.request(t_us, "c1", number, epoch=epoch)
        (worker or self.worker).execution(t_us - 100, "c1", number, epoch=epoch, reply_crc=number)
        self.client.call(t_us + 100, "c1", number, reply_crc=number)

    def load(self, t_us: int, accepted: int) -> None:
        self.primary.add(
            records.Load, t_us, service="echo", interval_us=5 * S, workers=1, credit=1, queued=0, in_flight=0,
            busy_us=0, accepted=accepted,
        )  # fmt: skip

    def take_over(self, t_us: int, epoch: int) -> None:
        """The primary gives the role up, and the backup takes it."""
        self.primary.state(t_us, "ACTIVE", "PASSIVE", "HANDOVER", epoch=1)
        self.primary.add(records.Deactivated, t_us, epoch=1, text="An operator moves the role.")
        self.backup.state(t_us + S, "PASSIVE", "ACTIVE", "PEER_PASSIVE", epoch=epoch)
        self.backup.add(records.Activated, t_us + S, epoch=epoch, text="The peer gave the role up.")

    def runs(self) -> list[Run]:
        return [self.primary, self.backup, self.client, self.worker]

    def end(self) -> list[Run]:
        """All stop in good order."""
        for run in self.runs():
            run.add(records.Stopped, 60 * S, reason="SIGTERM")
        return self.runs()


def _without_first(run: Run, count: int = 6) -> None:
    del run.records[:count]


def _whole(cast: Cast) -> list[Run]:
    cast.load(12 * S, 10)
    return cast.end()


def _client_late(cast: Cast) -> list[Run]:
    found = cast.end()
    _without_first(cast.client)
    return found


def _worker_late(cast: Cast) -> list[Run]:
    found = cast.end()
    _without_first(cast.worker)
    return found


def _node_late(cast: Cast) -> list[Run]:
    found = cast.end()
    _without_first(cast.primary)
    return found


def _foreign_worker(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20, deliveries=2)
    cast.worker.execution(19 * S, "c1", 20, reply_crc=20)
    cast.client.call(20 * S + 100, "c1", 20, reply_crc=99)
    return cast.end()


def _crossed(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20)
    cast.worker.execution(19 * S, "c1", 20, reply_crc=20)
    cast.client.call(20 * S + 100, "c1", 20, reply_crc=99)
    return cast.end()


def _snapshot(cast: Cast) -> list[Run]:
    """Two more records of the worker have numbers that it gave already."""
    again = Run("worker-1", pair=cast.worker.pair, boot=cast.worker.boot)
    again.records += cast.worker.records[:9]
    for number in (30, 31):
        cast.serve(number * S, number, worker=again)
    _without_first(again, 9)
    return [*cast.end(), again]


def _delivered_twice(cast: Cast) -> list[Run]:
    cast.client.call(30 * S, "c1", 5, reply_crc=5)
    return cast.end()


def _older_epoch(cast: Cast) -> list[Run]:
    cast.take_over(20 * S, 2)
    cast.serve(25 * S, 25, epoch=2)
    cast.serve(27 * S, 27, epoch=1)
    return cast.end()


def _one_epoch(cast: Cast) -> list[Run]:
    cast.take_over(20 * S, 1)
    return cast.end()


def _uncounted(cast: Cast) -> list[Run]:
    cast.load(12 * S, 13)
    return cast.end()


def _marked_first(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20, deliveries=2, is_repeated=True)
    cast.worker.execution(19 * S, "c1", 20, reply_crc=20, is_repeated=True)
    cast.worker.execution(19 * S + 100_000, "c1", 20, reply_crc=20, busy_us=50_000)
    cast.client.call(20 * S + 100, "c1", 20, reply_crc=20, attempts=2)
    return cast.end()


def _marked_second(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20, deliveries=2, is_repeated=True)
    cast.worker.execution(19 * S, "c1", 20, reply_crc=20)
    cast.worker.execution(19 * S + 100_000, "c1", 20, reply_crc=20, busy_us=50_000, is_repeated=True)
    cast.client.call(20 * S + 100, "c1", 20, reply_crc=20, attempts=2)
    return cast.end()


def _refused_by_a_worker(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20, "failed")
    cast.client.call(20 * S + 100, "c1", 20, "rejected")
    return cast.end()


def _sent_late(cast: Cast) -> list[Run]:
    cast.primary.request(20 * S, "c1", 20, total_us=S)
    cast.client.call(20 * S + 100_000, "c1", 20, "timeout", total_us=4 * S)
    return cast.end()


def _no_nodes(cast: Cast) -> list[Run]:
    return cast.end()[2:]


def _no_peer(cast: Cast) -> list[Run]:
    primary, _, *others = cast.end()
    return [primary, *others]


class Planted(NamedTuple):
    """``told``: rule and verdict of each finding that is not excused, with a part of its text."""

    what: str
    plant: Callable[[Cast], list[Run]]
    told: tuple[tuple[str, str, str], ...]


_BEFORE = "records that it wrote before its first one here are not here"
PLANTED = {
    "whole": Planted("nothing: all journals are whole", _whole, ()),
    "client-late": Planted(
        "the first file of a client is missing",
        _client_late,
        (
            ("lost", "unproven", f"client client-1: {_BEFORE}"),
            ("lost", "unproven", "no outcome in the client's journal, which may lack something there"),
            ("lost", "unproven", "not in a client's journal"),
        ),
    ),
    "worker-late": Planted(
        "the first file of a worker is missing",
        _worker_late,
        (
            ("executed-twice", "unproven", f"worker worker-1: {_BEFORE}"),
            ("executed-twice", "unproven", "not in a worker's journal"),
            ("crossed", "unproven", "not in a worker's journal"),
        ),
    ),
    "node-late": Planted(
        "the first file of the active node is missing",
        _node_late,
        (
            ("answered-twice", "unproven", f"broker primary: {_BEFORE}"),
            ("answered-twice", "unproven", "not in a node's journal"),
        ),
    ),
    "foreign": Planted(
        "a worker without a journal answered a request that another one had first",
        _foreign_worker,
        (("crossed", "unproven", "a worker that a node gave it to recorded nothing of it"),),
    ),
    "crossed": Planted(
        "a client got the reply to another request",
        _crossed,
        (("crossed", "violated", "its client got a reply with CRC-32 63"),),
    ),
    "snapshot": Planted(
        "a worker's machine was restored from a snapshot: one boot id, different records",
        _snapshot,
        (("executed-twice", "unproven", "its boot id ran twice, as after a restored snapshot"),),
    ),
    "two-outcomes": Planted(
        "a client was given one outcome twice",
        _delivered_twice,
        (("answered-twice", "violated", "its client's journal has 2 outcomes of it"),),
    ),
    "older-epoch": Planted(
        "a worker executed in epoch 1 after epoch 2",
        _older_epoch,
        (("stale-epoch", "violated", "began it in epoch 1, after it had executed in epoch 2"),),
    ),
    "one-epoch": Planted(
        "both nodes took one epoch",
        _one_epoch,
        (("epoch-reused", "violated", "backup and primary both took epoch 1"),),
    ),
    "uncounted": Planted(
        "a node counted 13 accepted requests and recorded the end of 10",
        _uncounted,
        (("lost", "violated", "primary accepted 13 requests, held 0 of them at its last count"),),
    ),
    "marked-first": Planted(
        "a marked run of a request, then one without a mark",
        _marked_first,
        (("executed-twice", "violated", "1 runs after the first were not marked as repetitions"),),
    ),
    "marked-second": Planted("a run of a request, then a marked one", _marked_second, ()),
    "refused": Planted("a worker refused a request that it could not read", _refused_by_a_worker, ()),
    "sent-late": Planted(
        "a node answered a request just before its client gave up, and had got it late", _sent_late, ()
    ),
    "no-nodes": Planted(
        "no node keeps a journal",
        _no_nodes,
        (
            ("answered-twice", "unproven", "not in a node's journal"),
            ("both-active", "unproven", "no journal of a node is here"),
        ),
    ),
    "no-peer": Planted(
        "the journal of one node is missing",
        _no_peer,
        (("both-active", "unproven", "the journal of the peer of primary is not here"),),
    ),
}


# A machine was restored from a snapshot: two files of one name, whose records differ from the sixth on.
RESTORED = "restored"


def _restored() -> list[Run]:
    runs = [Run("client-1", pair=RESTORED) for _ in range(2)]
    for run, later_us in zip(runs, (0, S), strict=True):
        run.start(0, source="client")
        for number in range(1, 10):
            run.call(number * S + (later_us if number > 4 else 0), "c1", number)
    return runs


def planted() -> list[Run]:
    """The journals of all scenarios."""
    return [*_restored(), *(run for pair, one in PLANTED.items() for run in one.plant(Cast(pair)))]


@pytest.mark.parametrize("pair", PLANTED)
def test_the_audit_tells_what_is_wrong_and_nothing_else(planted_root: PlantedRoot, pair: str) -> None:
    found = [row for row in planted_root.rows("gold.audit", pair) if row.verdict != "excused"]
    what, _, wanted = PLANTED[pair]
    told = [(row.rule, row.verdict, row.text) for row in found]
    for rule, verdict, text in wanted:
        assert [one for one in told if one[:2] == (rule, verdict) and text in one[2]], (what, text, told)
    assert len(told) == len(wanted), (what, told)


def test_records_of_a_restored_snapshot_are_no_copies(planted_root: PlantedRoot) -> None:
    """A copy that was taken while a file was written is one: test_pipeline_bronze.py has some."""
    assert len(committed.rows(planted_root.root, "bronze.records", f"pair = '{RESTORED}'")) == 10 + 5
    assert [row.state for row in planted_root.rows("bronze.files", RESTORED)] == ["open", "open"]
