"""What the chaos tests plant into copies of journals, and what they read of the harness's notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar import records
from bstar.records import Base, Call, Execution, Request, SegmentClosed, Started, StateChanged, Stopped
from chaos import journals
from chaos.history import Note, Writer
from chaos.injected import injected
from chaos.journals import PLANTS, Journals

CLIENT, WORKER, PRIMARY, BACKUP = (digit * 32 for digit in "cdab")
NODES = {CLIENT: "client1", WORKER: "worker1", PRIMARY: "primary", BACKUP: "backup"}
EPOCH = 10_000_000
WHO = {"client": "e" * 32, "service": "work"}


def story() -> Journals:
    """Sixty requests, every fifth not idempotent; then the primary is stopped and the backup takes over."""
    told: dict[str, list[tuple[type[Base], int, dict[str, Any]]]] = {boot: [] for boot in NODES}
    sources = {CLIENT: "client", WORKER: "worker"}
    for boot in NODES:
        source = sources.get(boot, "broker")
        about = {"source": source, "version": "1", "machine": "m", "host": "h", "pid": 1}
        told[boot].append((Started, 0, about))
    for number in range(1, 61):
        at = 10_000 * number
        is_idempotent = number % 5 != 0
        execution = {"outcome": "answered", "epoch": 1, "busy_us": 900, "reply_crc": number}
        request = {"sender": "00", "outcome": "answered", "epoch": 1, "total_us": 1_500}
        call = {"outcome": "answered", "total_us": 2_000, "reply_crc": number, "is_idempotent": is_idempotent}
        told[WORKER].append((Execution, at, WHO | {"number": number} | execution))
        told[PRIMARY].append((Request, at + 100, WHO | {"number": number} | request))
        told[CLIENT].append((Call, at + 200, WHO | {"number": number} | call))
    change = {"event": "X", "text": "x", "epoch": 1}
    told[PRIMARY].append((StateChanged, 700_000, change | {"old": "ACTIVE", "new": "PASSIVE"}))
    told[BACKUP].append((StateChanged, 700_300, change | {"old": "PASSIVE", "new": "ACTIVE"}))
    for boot in NODES:
        told[boot].append((Stopped, 9_000_000, {}))
        told[boot].append((SegmentClosed, 9_000_001, {"lines": len(told[boot])}))
    return {
        boot: [
            decode(
                kind,
                {"node": NODES[boot], "boot": boot, "seq": seq, "at": EPOCH + at, "mono": EPOCH + at}
                | fields,
            )
            for seq, (kind, at, fields) in enumerate(lines, start=1)
        ]
        for boot, lines in told.items()
    }


def decode(kind: type[Base], fields: dict[str, Any]) -> records.Record:
    return records.decode(
        msgspec.json.encode({"v": 1, "pair": "p", "kind": kind.__struct_config__.tag} | fields)
    )


def lines_of(found: Journals) -> dict[str, list[str]]:
    return {kept[0].node: [repr(record) for record in kept] for kept in found.values()}


def test_a_copy_is_the_same_of_another_pair(tmp_path: Path) -> None:
    journals.write(story(), tmp_path, "other")
    copy = journals.read(tmp_path)
    assert len(copy) == 4
    assert copy.keys().isdisjoint(NODES)
    assert {record.pair for kept in copy.values() for record in kept} == {"other"}
    for kept, original in zip(
        sorted(copy.values(), key=lambda kept: kept[0].node),
        sorted(story().values(), key=lambda kept: kept[0].node),
        strict=True,
    ):
        assert [(type(a), a.seq, a.mono) for a in kept] == [(type(b), b.seq, b.mono) for b in original]


@pytest.mark.parametrize("pair", PLANTS)
def test_a_plant_changes_one_thing_and_leaves_the_journal_well_kept(pair: str, tmp_path: Path) -> None:
    truth = story()
    lie = story()
    finding = PLANTS[pair](lie)
    journals.write(lie, tmp_path, pair)
    copy = journals.read(tmp_path)  # nothing is missing
    for kept in copy.values():
        times = [record.mono for record in kept]
        assert times == sorted(times)
        if isinstance(kept[-1], SegmentClosed):
            assert kept[-1].lines == len(kept) - 1
    assert finding.rule in ("lost", "executed-twice", "crossed", "both-active")
    changed = {node for node, lines in lines_of(lie).items() if lines != lines_of(truth)[node]}
    assert (
        changed
        == {
            "lost": {"client1", "primary"},
            "twice": {"worker1"},
            "twice-bound": {"worker1"},
            "crossed": {"client1"},
            "two-actives": {"primary"},
        }[pair]
    )


def test_forty_milliseconds_are_between_the_changes_of_state() -> None:
    lie = story()
    assert PLANTS["two-actives"](lie).duration_us == 40_000
    [left] = [record for record in lie[PRIMARY] if isinstance(record, StateChanged)]
    [taken] = [record for record in lie[BACKUP] if isinstance(record, StateChanged)]
    assert left.mono - taken.mono == 40_000


def test_a_torn_last_line_is_forgiven_and_a_gap_is_not(tmp_path: Path) -> None:
    journals.write(story(), tmp_path, "p")
    path = next(tmp_path.glob("*.client1.*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert len(journals.read(tmp_path)) == 4
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    with pytest.raises(AssertionError, match="records are missing"):
        journals.read(tmp_path)


def test_what_was_injected_lies_between_two_notes(tmp_path: Path) -> None:
    with Writer(tmp_path / "harness.jsonl") as writer:
        at = {
            what: writer.write(Note(at=0.0, what=what, target=target))
            for what, target in (
                ("start", "primary"),
                ("kill", "primary"),
                ("kill sent", "primary"),
                ("cut", ""),
                ("cut made", ""),
            )
        }
    killed, cut = injected(tmp_path, ahead_us=1_000)
    assert (killed.kind, killed.node, cut.kind, cut.node) == ("crash", "primary", "partition", "")
    assert (killed.after_us, killed.before_us) == tuple(
        round(at[what] * 1e6) + 1_000 for what in ("kill", "kill sent")
    )


def test_every_record_of_the_story_can_be_written() -> None:
    for kept in story().values():
        for record in kept:
            assert records.decode(records.encode(record)) == record
