"""Lines of journals as typed records: every kind of bad input is counted, and the rest is right."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from bstar.errors import ConfigurationError
from support import bronze_tables, odd_journals
from support.journals import frame, write
from support.odd_journals import BAD, history

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory with everything that can be wrong with a directory of journals."""
    root = tmp_path_factory.mktemp("journals")
    odd_journals.plant(root)
    return root


class Told(NamedTuple):
    """The rows of the three tables."""

    records: list[Row]
    rejected: list[Row]
    files: list[Row]


@pytest.fixture(scope="module", params=["local", "spark"])
def told(request: pytest.FixtureRequest, folder: Path) -> Told:
    """By each engine: both parse lines, each in its way."""
    from bstar_pipeline.engine import local_session

    paths = [str(folder), str(folder / "*.open")]
    if request.param == "spark":
        return Told(
            *(table.collect() for table in bronze_tables.read(request.getfixturevalue("spark"), paths))
        )
    with local_session("bronze") as session:
        return Told(*(table.collect() for table in bronze_tables.read(session, paths)))


@pytest.fixture(scope="module")
def records(told: Told) -> list[Row]:
    return told.records


@pytest.fixture(scope="module")
def files(told: Told, folder: Path) -> dict[str, Row]:
    from urllib.parse import unquote

    rows = told.files
    return {unquote(row.file).split(f"{folder.name}/")[1]: row for row in rows}


def test_every_line_that_is_no_record_is_set_aside_with_its_reason(told: Told) -> None:
    rows = [row for row in told.rejected if "shop.east" in row.file]
    found = {row.line: row.reason for row in rows}
    assert found == {
        **{line.decode(errors="replace"): reason for line, reason in BAD.items()},
        '{"v":1,"ki': "unreadable",
    }
    assert {(str(row.day), row.pair) for row in rows} == {("2026-11-04", "shop.east")}
    assert [row.version for row in rows if row.line.startswith('{"kind":"request","v":2')] == [2]


def test_a_new_kind_of_the_same_version_is_an_event(records: list[Row]) -> None:
    (row,) = [row for row in records if row.kind == "novel"]
    assert (row.topic, row.seq) == ("events", 1)
    assert "shop.east" in row.file


def test_a_record_keeps_a_reason_of_its_own(records: list[Row]) -> None:
    assert [row.reason for row in records if row.kind == "refused"] == ["no-service"]


def test_each_record_comes_once_whatever_files_it_is_in(records: list[Row]) -> None:
    by_node = Counter(row.node for row in records)
    assert (by_node["primary"], by_node["backup"]) == (23, 12)
    assert len({(row.boot, row.seq) for row in records}) == len(records)


def test_files_say_what_became_of_them(files: dict[str, Row]) -> None:
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


def test_a_packed_file_without_its_end_gives_every_line_before_the_cut(
    told: Told, files: dict[str, Row]
) -> None:
    row = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0001.ndjson.gz"]
    assert row.lines > 500
    assert (row.first_seq, row.last_seq) == (1, row.lines)
    assert (row.pair, str(row.day)) == ("stock", "2026-11-02")
    not_packed = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0002.ndjson.gz"]
    assert (not_packed.lines, not_packed.pair, not_packed.last_seq) == (0, "stock", None)


def test_a_field_that_was_left_out_has_its_default_where_its_kind_has_one(records: list[Row]) -> None:
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
    assert str(request.time) == "2026-11-02 00:00:00.001000"


def test_a_line_is_parsed_once_and_by_no_python(spark: SparkSession, folder: Path) -> None:
    from bstar_pipeline import bronze as module
    from bstar_pipeline import journal_files
    from support.plans import plan_of

    typed = module.typed(journal_files.lines_of(spark, journal_files.find_files(spark, [str(folder)])))
    plan = plan_of(module.records(typed).where("kind = 'request'").select("seq"))
    # Once as one of the common kinds, or once as any other: the conditions exclude one another.
    assert plan.count("from_json(") == 2
    assert "Python" not in plan_of(bronze_tables.read(spark, [str(folder)]).records)


def test_what_sums_up_all_records_has_no_python_no_join_and_shuffles_only_sums(spark: SparkSession) -> None:
    from bstar_pipeline.gold.objectives import sketches
    from support.plans import plan_of

    plan = plan_of(sketches(frame(spark, [history()])))
    assert len(re.findall(r"\(\d+\) Exchange", plan)) == 1
    assert plan.index("partial_sum") < plan.index("Arguments: hashpartitioning")
    assert not any(word in plan for word in ("PythonUDF", "Join", "Pandas"))


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_path_without_journals_is_an_error_that_says_what_to_do(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    from bstar_pipeline.engine import local_session

    write(tmp_path / "full" / history().name(), history().lines())
    (tmp_path / "empty").mkdir()
    with contextlib.ExitStack() as stack:
        if engine == "local":
            session = stack.enter_context(local_session("bronze"))
        else:
            session = request.getfixturevalue("spark")
        for path, what in (
            ("empty", "holds no file"),
            ("nowhere", "does not exist"),
            ("*.gz", "does not exist"),
        ):
            with pytest.raises(ConfigurationError, match=what) as caught:
                bronze_tables.read(session, [str(tmp_path / "full"), str(tmp_path / path)])
            assert str(tmp_path / path) in str(caught.value)
            assert "journal.directory" in str(caught.value)
        with pytest.raises(ConfigurationError, match="at least one"):
            bronze_tables.read(session, [])
