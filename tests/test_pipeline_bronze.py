"""Lines of journals as typed records: every kind of bad input is counted, and the rest is right."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from support import committed
from support.odd_journals import BAD, history

if TYPE_CHECKING:
    from support.planted_root import PlantedRoot

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def records(planted_root: PlantedRoot) -> list[Any]:
    """Of the odd files alone."""
    return committed.rows(planted_root.root, "bronze.records", f"file LIKE '%{planted_root.odd}/%'")


@pytest.fixture(scope="module")
def files(planted_root: PlantedRoot) -> dict[str, Any]:
    named = {
        unquote(row.file).partition(f"{planted_root.odd}/")[2]: row
        for row in planted_root.rows("bronze.files")
    }
    return {name: row for name, row in named.items() if name}


def test_every_line_that_is_no_record_is_set_aside_with_its_reason(planted_root: PlantedRoot) -> None:
    rows = [row for row in planted_root.rows("bronze.rejected") if "shop.east" in row.file]
    found = {row.line: row.reason for row in rows}
    assert found == {
        **{line.decode(errors="replace"): reason for line, reason in BAD.items()},
        '{"v":1,"ki': "unreadable",
    }
    assert {(str(row.day), row.pair) for row in rows} == {("2026-11-04", "shop.east")}
    assert [row.version for row in rows if row.line.startswith('{"kind":"request","v":2')] == [2]


def test_a_new_kind_of_the_same_version_is_an_event(records: list[Any]) -> None:
    (row,) = [row for row in records if row.kind == "novel"]
    assert (row.topic, row.seq) == ("events", 1)
    assert "shop.east" in row.file


def test_a_record_keeps_a_reason_of_its_own(records: list[Any]) -> None:
    assert [row.reason for row in records if row.kind == "refused"] == ["no-service"]


def test_each_record_comes_once_whatever_files_it_is_in(records: list[Any]) -> None:
    by_node = Counter(row.node for row in records)
    assert (by_node["primary"], by_node["backup"]) == (23, 12)
    assert len({(row.boot, row.seq) for row in records}) == len(records)


def test_files_say_what_became_of_them(files: dict[str, Any]) -> None:
    whole = history()
    assert {name: row.state for name, row in files.items()} == {
        "copied here/" + whole.name(suffix=".ndjson.gz"): "whole",
        whole.name(): "duplicate",
        "earlier/" + whole.name(suffix=".ndjson.open"): "duplicate",
        "orders.backup.20261102T000000Z.b0b0b0b0.0001.ndjson.open": "open",
        "orders.backup.20261102T000000Z.b0b0b0b0.0002.ndjson.open": "open",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0001.ndjson.gz": "truncated",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0002.ndjson.gz": "truncated",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0003.ndjson": "open",
        "shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson": "open",
        "joined.joined-1.20261102T000000Z.d0d0d0d0.0001.ndjson.gz": "whole",
    }
    assert files[whole.name()].duplicates == 23
    assert files["orders.backup.20261102T000000Z.b0b0b0b0.0002.ndjson.open"].duplicates == 4
    bad = files["shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson"]
    assert (bad.lines, bad.rejected) == (len(BAD) + 2, len(BAD) + 1)


def test_a_packed_file_without_its_end_gives_every_line_before_the_cut(files: dict[str, Any]) -> None:
    row = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0001.ndjson.gz"]
    assert row.lines > 500
    assert (row.first_seq, row.last_seq) == (1, row.lines)
    assert (row.pair, str(row.day)) == ("stock", "2026-11-02")
    not_packed = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0002.ndjson.gz"]
    assert (not_packed.lines, not_packed.pair, not_packed.last_seq) == (0, "stock", None)


def test_a_field_that_was_left_out_has_its_default_where_its_kind_has_one(records: list[Any]) -> None:
    start, request = sorted(
        (row for row in records if row.node == "primary" and row.seq <= 2), key=lambda row: int(row.seq)
    )
    assert (request.kind, request.topic, request.weight, request.deliveries) == (
        "request",
        "requests",
        1.0,
        1,
    )
    assert (request.is_repeated, request.accepted, request.reply_crc) == (False, None, None)
    assert (start.kind, start.topic, start.sample, start.epoch, start.weight) == (
        "started",
        "events",
        1.0,
        0,
        None,
    )
    assert str(request.time) == "2026-11-02 00:00:00.001000+00:00"


@pytest.mark.parametrize("many", [0, 40])
def test_as_many_records_as_lines_are_not_a_record_in_each_line(many: int) -> None:
    import pyarrow as pa

    from bstar_pipeline.bronze import batches

    record = (
        '{"kind":"execution","v":1,"pair":"p","node":"w","boot":"b","seq":%d,"at":1767571200225389,"mono":5,'
        '"client":"c","number":1,"service":"s","outcome":"answered","epoch":1,"busy_us":1,"bytes_in":1,"bytes_out":1}'
    )
    lines = [record % (number + 10) for number in range(many)]
    two, cut = record % 1 + record % 2, '{"more":\n{"kind":"x"},' + record[1:] % 3
    text = "\n".join([*lines, two, cut]).encode()
    rows = pa.Table.from_batches(batches(text, "p.w.20260105T000000Z.00000000.1.ndjson")).to_pylist()
    assert [row["rejection"] for row in rows if row["rejection"]] == ["unreadable"] * 3
    assert sorted(row["seq"] for row in rows if row["seq"]) == [number + 10 for number in range(many)]
