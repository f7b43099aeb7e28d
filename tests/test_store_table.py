"""The table on the disk is the table in memory: the same entries make the same records, in any order of
commands, and both find the same ones.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import StoreError
from bstar.wire.durable import Cause, Serial, State
from bstar_broker.store import sqlite_table
from bstar_broker.store.core.commands import (
    Answered,
    Cancelled,
    Closed,
    Command,
    Defaults,
    Failed,
    Retried,
    Submitted,
    Swept,
)
from bstar_broker.store.core.records import Record, Totals, Wanted
from bstar_broker.store.sqlite_table import SqliteTable
from support.entries import carry_out, name, submit, submitted
from support.memory_table import MemoryTable

MANY = 1 << 30


@contextmanager
def sqlite() -> Iterator[tuple[SqliteTable, sqlite3.Connection]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for statement in sqlite_table.SCHEMA:
            database.execute(statement)
        yield SqliteTable(database, Totals()), database


IDS = st.integers(1, 8)
NAMES = IDS.map(name)
OWNERS = st.sampled_from([None, "ann", "bob"])
SPANS = st.integers(0, 3_000)


@st.composite
def submits(draw: st.DrawFn) -> Submitted:
    rows = [
        submit(
            draw(IDS),
            draw(st.sampled_from([b"a", b"bb"])),
            draw(st.sampled_from([b"price", b"stock"])),
            delay_ms=draw(st.sampled_from([0, 0, 500, 2_000])),
            expires_ms=draw(st.sampled_from([0, 1_500])),
            attempts_max=draw(st.integers(0, 2)),
            backoff_ms=draw(SPANS),
            priority=draw(st.sampled_from([0, 0, 9, Serial(0, "a"), Serial(0, "a"), Serial(9, "b")])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    owner = draw(st.sampled_from(["", "ann", "bob"]))
    return submitted(*rows, owner=owner, defaults=Defaults(attempts_max=3, backoff_ms=700))


def test_the_oldest_due_request_is_that_of_all_services_and_priorities() -> None:
    with sqlite() as (table, database):
        assert table.oldest_due_ms(MANY) == 0
        for at_ms, number, service, priority, delay_ms in (
            (700, 1, b"a", 9, 0),
            (500, 2, b"a", 0, 0),
            (600, 3, b"b", 5, 0),
            (100, 4, b"c", 5, 800),
        ):
            row = submit(number, b"x", service, priority=priority, delay_ms=delay_ms)
            carry_out(table, number, submitted(row), at_ms=at_ms)
        assert table.oldest_due_ms(10_000) == 500
        assert table.oldest_due_ms(499) == 0
        for number in (2, 3, 1):
            carry_out(table, 10 + number, Closed([name(number)]), at_ms=800)
        assert table.oldest_due_ms(899) == 0
        assert table.oldest_due_ms(900) == 900, "its time has come, though nobody has asked for it"
        plan = database.execute("EXPLAIN QUERY PLAN " + sqlite_table._FIRST, (b"a", 10)).fetchall()
        assert [row[3] for row in plan] == ["SEARCH records USING INDEX ready (service=? AND priority<?)"], (
            "it sorts nothing"
        )


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    submits(),
    submits(),
    st.builds(Answered, NAMES, st.just([b"the", b"answer"])),
    st.builds(
        Failed, NAMES, st.just(Cause.FAILED), st.just("no"), st.sampled_from([-1, 0, 900]), st.booleans()
    ),
    st.builds(Closed, st.lists(NAMES, max_size=3), OWNERS),
    st.builds(Cancelled, NAMES, OWNERS),
    st.builds(Retried, NAMES, OWNERS),
    st.builds(Swept, SPANS, SPANS, st.integers(1, 3)),
)
ENTRIES = st.lists(st.tuples(st.integers(0, 1_500), st.lists(COMMANDS, max_size=4)), max_size=12)
WANTED = [
    Wanted(),
    Wanted(b"price"),
    Wanted(state=State.PENDING),
    Wanted(state=State.DEAD),
    Wanted(b"stock", State.ANSWERED),
    Wanted(submitted_before_ms=1_500),
    Wanted(owner="ann"),
]


@pytest.mark.storm
@settings(max_examples=150, deadline=None)
@given(ENTRIES)
def test_both_tables_are_the_same_after_any_entries(entries: list[tuple[int, list[Command]]]) -> None:
    memory = MemoryTable()
    with sqlite() as (disk, _):
        at_ms = 1_000
        for number, (passed_ms, orders) in enumerate(entries, 1):
            at_ms += passed_ms
            in_memory = carry_out(memory, number, *orders, at_ms=at_ms)
            assert carry_out(disk, number, *orders, at_ms=at_ms) == in_memory
            assert disk.totals == memory.totals
            _find_the_same(disk, memory, at_ms)


def _find_the_same(disk: SqliteTable, memory: MemoryTable, at_ms: int) -> None:
    for wanted in WANTED:
        assert disk.page(0, wanted, 100, MANY) == memory.page(0, wanted, 100, MANY)
        first, has_more = disk.page(0, wanted, 2, MANY)
        assert (first, has_more) == memory.page(0, wanted, 2, MANY)
        if has_more:
            assert disk.page(first[-1].seq, wanted, 2, 5) == memory.page(first[-1].seq, wanted, 2, 5)
    for service in (b"price", b"stock", b"none"):
        for limit, octets, skip in ((100, MANY, frozenset()), (2, 3, frozenset([name(1), name(2)]))):
            asked = (service, at_ms, limit, octets, skip)
            assert disk.due(*asked) == memory.due(*asked)
    due, expected = disk.next_due(), memory.next_due()
    assert due.keys() == expected.keys()
    assert all(due[service] in (0, when) for service, when in expected.items())
    assert disk.expired(at_ms + 500, 3) == memory.expired(at_ms + 500, 3)
    states = (State.ANSWERED, State.DEAD)
    assert disk.ended(states, at_ms, 3) == memory.ended(states, at_ms, 3)
    for number in range(1, 9):
        assert disk.get(name(number)) == memory.get(name(number))


def test_a_copy_of_the_records_makes_the_same_table() -> None:
    with sqlite() as (table, _), sqlite() as (other, _):
        rows = [submit(number, delay_ms=number % 3) for number in range(20)]
        rows += [submit(number, priority=Serial(0, "ab"[number % 2])) for number in range(20, 30)]
        carry_out(table, 1, submitted(*rows), Answered(name(3), [b"yes"]), Cancelled(name(4)))
        other.stage()
        other.put(table.page(0, Wanted(), 100, MANY)[0])
        assert (other.totals, other.staged) == (Totals(), table.totals)
        assert other.page(0, Wanted(), 100, MANY) == ([], False)
        other.swap()
        assert other.totals == table.totals
        assert other.page(0, Wanted(), 100, MANY) == table.page(0, Wanted(), 100, MANY)
        assert other.due(b"price", 2_000, 5, MANY, ()) == table.due(b"price", 2_000, 5, MANY, ())
        for each in (table, other):
            carry_out(each, 2, Answered(name(20), [b"yes"]))
            found, _, _ = each.due(b"price", 2_000, 100, MANY, ())
            assert [record.id for record in found if record.group] == [name(21), name(22)]


@pytest.mark.parametrize("column", ["content", "checksum"])
def test_a_damaged_record_is_named_and_never_served(column: str) -> None:
    with sqlite() as (table, database):
        carry_out(table, 1, submitted(submit(1), submit(2, delay_ms=5), submit(3, expires_ms=5)))
        wrong = {"content": "CAST(replace(content, 'body', 'bodY') AS BLOB)", "checksum": "checksum + 1"}
        database.execute(f"UPDATE records SET {column} = {wrong[column]}")
        with pytest.raises(StoreError, match=r"record 1048576 is damaged: its checksum is wrong"):
            table.get(name(1))
        assert table.due(b"price", 9_000, 10, MANY, ()) == ([], False, 0)
        assert table.page(0, Wanted(), 10, MANY) == ([], False)
        assert table.expired(9_000, 10) == []
        assert sorted(table.damaged) == [1048576, 1048577, 1048578]


def test_a_request_that_its_group_lacks_is_damage() -> None:
    """It would wait for ever."""
    with sqlite() as (table, database):
        rows = [submit(number, priority=Serial(0, "ab"[number % 2])) for number in range(4)]
        carry_out(table, 1, submitted(*rows, submit(5)))
        assert (table.verify(0), table.damaged) == (None, {})
        database.execute("DELETE FROM serial WHERE seq = ?", (last := (1 << 20) + 3,))
        assert table.verify(0) is None
        assert table.damaged == {last: f"record {last} is damaged: its group lacks it"}


def test_the_first_of_a_group_is_read_from_its_index() -> None:
    with sqlite() as (_, database):
        plan = database.execute(f"EXPLAIN QUERY PLAN {sqlite_table._FIRST_OF_GROUP}", (b"g",)).fetchall()
    assert [row[3] for row in plan] == ["SEARCH serial USING PRIMARY KEY (name=?)"], "it scans no group"


def test_an_index_that_names_the_wrong_record_is_damage() -> None:
    with sqlite() as (table, database):
        carry_out(table, 1, submitted(submit(1)))
        database.execute("UPDATE records SET id = ?", (name(2),))
        with pytest.raises(StoreError, match=f"it is not {name(2).hex()}"):
            table.get(name(2))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (sqlite_table._READY, "ready"),
        (sqlite_table._PROMOTE, "waiting"),
        (sqlite_table._ENDED, "ended"),
        (sqlite_table._EXPIRED, "expiring"),
        (sqlite_table._BY_ID, "by_id"),
        (sqlite_table._NEXT, "waiting"),
        (sqlite_table._SERVICES.format(sqlite_table.READY), "ready"),
        (sqlite_table._SERVICES.format(sqlite_table.WAITING), "waiting"),
    ],
)
def test_what_is_asked_often_is_read_from_an_index_in_its_order(query: str, index: str) -> None:
    with sqlite() as (_, database):
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", (1,) * query.count("?"))]
    assert any(f"INDEX {index}" in step for step in plan), plan
    assert not any("B-TREE" in step for step in plan), plan


def test_a_damaged_record_is_left_out_of_a_copy_and_named() -> None:
    """The peer would take it for whole: only this disk knows its checksum."""
    with sqlite() as (table, database):
        carry_out(table, 1, submitted(submit(1), submit(2), submit(3)))
        seqs = [seq for (seq,) in database.execute("SELECT seq FROM records ORDER BY seq")]
        database.execute("UPDATE records SET checksum = checksum + 1 WHERE seq = ?", (seqs[1],))
        records, after, has_more = table.export(0, MANY)
        assert [msgspec.msgpack.decode(record, type=Record).id for record in records] == [name(1), name(3)]
        assert (after, has_more) == (seqs[-1], False)
        assert list(table.damaged) == [seqs[1]]


def test_a_part_of_a_copy_has_so_many_octets_and_one_record_at_least() -> None:
    with sqlite() as (table, database):
        carry_out(table, 1, submitted(submit(1), submit(2), submit(3)))
        sizes = [size for (size,) in database.execute("SELECT length(content) FROM records ORDER BY seq")]
        assert [len(table.export(0, octets)[0]) for octets in (1, sum(sizes[:2]), sum(sizes))] == [1, 2, 3]
        assert [table.export(0, octets)[2] for octets in (1, sum(sizes))] == [True, False]


def test_the_content_of_another_record_is_damage_although_its_checksum_is_right() -> None:
    """Two pages that a disk wrote to each other's place."""
    with sqlite() as (table, database):
        carry_out(table, 1, submitted(submit(1), submit(2)))
        database.execute(
            "UPDATE records SET (checksum, content) = (SELECT checksum, content FROM records WHERE id = ?)",
            (name(2),),
        )
        with pytest.raises(StoreError, match="its bytes are those of record 1048577"):
            table.get(name(1))
        assert table.get(name(2)) is not None
        assert [record.id for record in table.page(0, Wanted(), 10, MANY)[0]] == [name(2)]
