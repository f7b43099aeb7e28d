"""What a disk holds after its power failed: the pure part of the chaos tests' disks; chance has a seed."""

from __future__ import annotations

import struct

import pytest

from chaos.platter import SECTOR_BYTES, Loss, Platter, Record, records_of

ONE = bytes([1]) * SECTOR_BYTES


def platter(*records: tuple[str, int, int, bytes], content: dict[str, bytes] | None = None) -> Platter:
    made = Platter(content or {})
    for record in (("B", 0, 0, b""), *records):
        made.play(Record(*record))
    return made


def outcomes(made: Platter, loss: Loss, path: str = "a") -> set[bytes]:
    return {made.after_power_loss(loss, seed).get(path, b"none") for seed in range(200)}


def test_a_write_that_was_not_synced_is_lost() -> None:
    made = platter(("O", 1, 0, b"a"), ("W", 1, 1, b"xy"), content={"a": b"abcd"})
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"abcd"}
    assert made.after_power_loss(Loss.NOTHING, 0) == {"a": b"axyd"}


def test_a_sync_covers_what_was_written_before_it_began_and_nothing_later() -> None:
    made = platter(
        ("O", 1, 0, b"a"), ("W", 1, 0, b"x"), ("W", 1, 1, b"y"), ("S", 1, 3, b""), content={"a": b"abcd"}
    )
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"xbcd"}


def test_a_sync_covers_its_own_file_only() -> None:
    made = platter(
        ("O", 1, 0, b"a"), ("O", 2, 0, b"b"), ("W", 1, 0, b"x"), ("W", 2, 0, b"y"), ("S", 2, 5, b""),
        content={"a": b"1", "b": b"2"},
    )  # fmt: skip
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"1", "b": b"y"}


def test_a_new_file_is_there_once_its_directory_was_synced_and_its_content_once_it_was() -> None:
    begin = (("O", 1, 1, b""), ("C", 2, 0, b"a"), ("W", 2, 0, b"x"))
    assert platter(*begin, ("S", 2, 4, b"")).after_power_loss(Loss.EVERYTHING, 0) == {}
    assert platter(*begin, ("S", 1, 4, b"")).after_power_loss(Loss.EVERYTHING, 0) == {"a": b""}
    both = platter(*begin, ("S", 2, 4, b""), ("S", 1, 5, b""))
    assert both.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"x"}


def test_a_rename_and_a_removal_are_undone_without_a_sync_of_the_directory() -> None:
    content = {"a": b"1", "b": b"2", "d/c": b"3"}
    changes = (("R", 0, 0, b"a\0b"), ("U", 0, 0, b"d/c"))
    made = platter(*changes, ("O", 1, 1, b""), ("O", 2, 1, b"d"), content=content)
    assert made.after_power_loss(Loss.EVERYTHING, 0) == content
    made.play(Record("S", 1, 5, b""))
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"b": b"1", "d/c": b"3"}
    made.play(Record("S", 2, 6, b""))
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"b": b"1"}


def test_a_disk_that_keeps_the_order_loses_the_last_writes_and_tears_one() -> None:
    made = platter(
        ("O", 1, 0, b"a"), ("W", 1, 0, 2 * ONE), ("W", 1, 2 * SECTOR_BYTES, ONE),
        content={"a": bytes(3 * SECTOR_BYTES)},
    )  # fmt: skip
    zero = bytes(SECTOR_BYTES)
    assert outcomes(made, Loss.TAIL) == {
        zero + zero + zero, ONE + zero + zero, zero + ONE + zero, ONE + ONE + zero, ONE + ONE + ONE
    }  # fmt: skip


def test_a_disk_with_an_order_of_its_own_keeps_any_sectors() -> None:
    made = platter(("O", 1, 0, b"a"), ("W", 1, 100, 2 * ONE), content={"a": bytes(3 * SECTOR_BYTES)})
    kept = {
        tuple(content[at] for at in (100, SECTOR_BYTES, 2 * SECTOR_BYTES))
        for content in outcomes(made, Loss.SECTORS)
    }
    assert len(kept) == 8


def test_a_lost_write_below_one_that_was_kept_leaves_zeros() -> None:
    made = platter(("O", 1, 0, b"a"), ("W", 1, 0, ONE), ("W", 1, SECTOR_BYTES, ONE), content={"a": b""})
    assert bytes(SECTOR_BYTES) + ONE in outcomes(made, Loss.SECTORS)


def test_no_later_sync_covers_what_a_failed_one_should_have_covered() -> None:
    records = (
        ("O", 1, 0, b"a"), *(("W", 1, at, b"x") for at in range(20)), ("E", 1, 22, b""), ("S", 1, 23, b"")
    )  # fmt: skip
    content = platter(*records, content={"a": bytes(20)}).after_power_loss(Loss.NOTHING, 0)["a"]
    assert 0 < content.count(b"x") < 20


def test_what_a_killed_process_wrote_is_still_pending_for_the_next_one() -> None:
    made = platter(
        ("O", 1, 0, b"a"), ("W", 1, 0, b"x"), ("B", 0, 0, b""), ("O", 7, 0, b"a"), ("W", 7, 1, b"y"),
        content={"a": b"ab"},
    )  # fmt: skip
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"ab"}
    # A process counts its own records: this sync covers three of them, and all of the one before.
    made.play(Record("S", 7, 3, b""))
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"xy"}


def test_a_smaller_size_is_pending_like_a_write() -> None:
    made = platter(("O", 1, 0, b"a"), ("T", 1, 1, b""), ("T", 1, 3, b""), content={"a": b"abc"})
    assert made.after_power_loss(Loss.EVERYTHING, 0) == {"a": b"abc"}
    assert made.after_power_loss(Loss.NOTHING, 0) == {"a": b"a\0\0"}


@pytest.mark.parametrize("cut", [1, 20, 21])
def test_a_record_that_is_cut_short_is_left_out(cut: int) -> None:
    record = struct.pack("<B3xIQI", ord("W"), 1, 2, 2) + b"xy"
    assert list(records_of(record + record[:cut])) == [Record("W", 1, 2, b"xy")]
