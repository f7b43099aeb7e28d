"""Tables on disk: a run replaces the days and pairs that it makes, and others stay as they are."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest

from bstar.errors import ConfigurationError
from support.journals import Run, closed, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bstar_pipeline.commits import Part, Snapshot
    from bstar_pipeline.partitions import Made, Rows

pytestmark = pytest.mark.spark

NAME = "bronze.rejected"
MONDAY, TUESDAY = dt.date(2026, 11, 2), dt.date(2026, 11, 3)


@pytest.fixture(scope="module", params=["local", "spark"])
def session(request: pytest.FixtureRequest) -> SparkSession | None:
    """None is the local engine."""
    return request.getfixturevalue("spark") if request.param == "spark" else None


def _made(session: SparkSession | None, root: str, *rows: tuple[str, dt.date, str]) -> Made:
    """Rows of the table, made by executors if there are any."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    from bstar_pipeline.partitions import queried, stored
    from bstar_pipeline.schema import table_schema

    shape = table_schema(NAME)
    made = [dict(zip(shape.names, ("file", "unreadable", 1, *row), strict=True)) for row in rows]
    file = Path(root).with_name(f"{token_hex(8)}.parquet")
    pq.write_table(pa.Table.from_pylist(made, to_arrow_schema(shape)), file)
    return queried(stored(session, [str(file)], shape, is_here=True), (), "FROM rows", shape)


def _run(session: SparkSession | None, root: str, parts: list[Part], *rows: tuple[str, dt.date, str]) -> None:
    from bstar_pipeline import store

    with store.writing(session, root) as writer:
        writer.make(NAME, parts, _made(session, root, *rows))
        writer.commit()


def _read(session: SparkSession | None, tables: Snapshot, name: str, parts: Any = None) -> Rows:
    from bstar_pipeline import store
    from bstar_pipeline.partitions import queried

    return queried(store.stored(session, tables, name, parts), (), "FROM rows").collected()


def test_a_table_that_a_run_does_not_write_stays(session: SparkSession | None, tmp_path: Path) -> None:
    from bstar_pipeline import store

    _run(session, str(tmp_path), [], ("a", MONDAY, "p"))
    with store.writing(session, str(tmp_path)) as writer:
        writer.commit()
    assert _held(session, str(tmp_path)) == {("a", MONDAY, "p")}


def _held(session: SparkSession | None, root: str) -> set[tuple[str, dt.date, str]]:
    from bstar_pipeline import store

    rows = _read(session, store.snapshot(session, root), NAME)
    return {(row["line"], row["day"], row["pair"]) for row in rows}


def test_a_run_replaces_its_parts_and_leaves_others(session: SparkSession | None, tmp_path: Path) -> None:
    from bstar_pipeline import store

    root = str(tmp_path / "tables of ours")
    # A table without rows is a table.
    _run(session, root, [(MONDAY, "p")])
    assert _held(session, root) == set()
    first = (("a", MONDAY, "p"), ("b", MONDAY, "123"), ("c", TUESDAY, "p"), ("d", TUESDAY, "ü/%=' x"))
    _run(session, root, [], *first)
    assert _held(session, root) == set(first)
    opened = store.snapshot(session, root)
    # A run about two parts that has rows for one of them.
    _run(session, root, [(MONDAY, "p"), (TUESDAY, "p")], ("e", TUESDAY, "p"))
    assert _held(session, root) == {*first[1::2], ("e", TUESDAY, "p")}
    # Who opened the tables before sees what was there then.
    assert {row["line"] for row in _read(session, opened, NAME)} == set("abcd")
    now = store.snapshot(session, root)
    assert [row["line"] for row in _read(session, now, NAME, [(TUESDAY, "p")])] == ["e"]
    others = [(MONDAY, "123"), (TUESDAY, first[3][2])]
    assert now.files(NAME, others) == opened.files(NAME, others) != []


def test_compaction_and_retention_change_no_row_of_what_stays(
    session: SparkSession | None, tmp_path: Path
) -> None:
    from bstar_pipeline import store

    root = str(tmp_path)
    for row in (("a", MONDAY, "p"), ("b", TUESDAY, "p"), ("c", TUESDAY, "p"), ("d", TUESDAY, "q")):
        with store.writing(session, root) as writer:
            writer.keep(NAME, [*writer.carried(NAME, []), *writer.write(_made(session, root, row), NAME)])
            writer.commit(read={"journal": 1})
    opened = store.snapshot(session, root)
    assert store.compact(session, root) == 2
    assert {row["line"] for row in _read(session, opened, NAME)} == set("abcd")
    now = store.snapshot(session, root)
    assert _held(session, root) >= {("b", TUESDAY, "p"), ("c", TUESDAY, "p")}
    assert len(now.files(NAME, [(TUESDAY, "p")])) == 1
    assert now.files(NAME, [(TUESDAY, "q")]) == opened.files(NAME, [(TUESDAY, "q")])
    assert store.compact(session, root) == 0
    assert store.snapshot(session, root) == now
    assert store.retain(session, root, TUESDAY) == 1
    assert {line for line, _, _ in _held(session, root)} == set("bcd")
    # What was read stays read.
    assert store.snapshot(session, root).manifest.read == {"journal": 1}


def test_a_run_that_fails_leaves_no_file_and_the_tables_as_they_were(
    session: SparkSession | None, tmp_path: Path
) -> None:
    from bstar_pipeline import store

    root = str(tmp_path)
    _run(session, root, [], ("a", MONDAY, "p"))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(AssertionError, match="not the columns"), store.writing(session, root) as writer:  # noqa: PT012
        writer.make(NAME, [(MONDAY, "p")], _made(session, root, ("b", MONDAY, "p")))
        writer.make("gold.audit", [], _made(session, root))
    assert _held(session, root) == {("a", MONDAY, "p")}
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_while_a_run_writes_a_second_one_is_refused(session: SparkSession | None, tmp_path: Path) -> None:
    from bstar_pipeline import store

    with store.writing(session, str(tmp_path)), pytest.raises(ConfigurationError, match="another process"):
        _run(session, str(tmp_path), [])


def test_a_table_that_was_never_written_is_an_error_that_says_what_to_do(
    session: SparkSession | None, tmp_path: Path
) -> None:
    from bstar_pipeline import store

    with pytest.raises(ConfigurationError, match=r"no tables below .*bstar pipeline run"):
        store.snapshot(session, str(tmp_path))


def test_storage_that_only_spark_knows_keeps_the_same_promises(spark: SparkSession, tmp_path: Path) -> None:
    from bstar_pipeline.store import _Hadoop

    found = _Hadoop(spark, tmp_path.as_uri())
    assert found.get("runs/a/manifest.json") is None
    assert found.files("runs") == []
    for content in (b"one", b"two \xff\x00"):
        found.put("runs/a b%20/manifest.json", content)
        assert found.get("runs/a b%20/manifest.json") == content
    assert found.files("runs") == ["runs/a b%20/manifest.json"]
    found.remove(found.files("runs"))
    assert found.files("runs") == []
    with found.locked():
        found.settle([])


def test_a_path_without_journals_is_an_error_that_says_what_to_do(
    session: SparkSession | None, tmp_path: Path
) -> None:
    from bstar_pipeline.journal_files import find_files

    full, *others = (str(tmp_path / name) for name in ("full", "empty", "nowhere", "*.gz"))
    write(tmp_path / "full" / Run("primary").name(), [])
    (tmp_path / "empty").mkdir()
    for path, what in zip(others, ("holds no file", "does not exist", "does not exist"), strict=True):
        with pytest.raises(ConfigurationError, match=what) as caught:
            find_files(session, [full, path])
        assert path in str(caught.value)
        assert "journal.directory" in str(caught.value)
    with pytest.raises(ConfigurationError, match="at least one"):
        find_files(session, [])


class _LivePair:
    """Journals of a pair at work, in open files, beside an old one of the same records."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._node, self._client = (
            Run(node, pair=name, boot=f"{name}-{node}".encode().hex()[:32]) for node in ("primary", "client")
        )
        self._node.start()
        self._client.start(source="client")
        for number in range(3):
            self._node.request(100_000 * (1 + number), "c", number)
            self._client.call(100_000 * (1 + number) + 100, "c", number)
        for run in (self._node, self._client):
            closed(run, 1_000_000)
            write(folder / run.name(suffix=".ndjson.open"), run.lines())
        old_name = Run("backup", pair=name).name(suffix=".ndjson.gz")
        self.old = write(folder / old_name, self._node.lines())
        self.sealed = {self._node.name(), self._client.name(suffix=".ndjson.gz"), old_name}

    def seal(self) -> None:
        """What writers do: one renames its file, and one packs it."""
        opened = self._folder / self._node.name(suffix=".ndjson.open")
        if opened.exists():
            opened.rename(self._folder / self._node.name())
            write(self._folder / self._client.name(suffix=".ndjson.gz"), self._client.lines())
            (self._folder / self._client.name(suffix=".ndjson.open")).unlink()


@pytest.mark.timeout(1_800)
def test_a_run_reads_files_that_their_writers_seal_meanwhile(
    session: SparkSession | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pair seals after its files were listed, and removes an old one; another after they were opened.

    Spark makes the first layer only: the others do not read journals.
    """
    from bstar_pipeline import commits, job, journal_files, store

    folder, root = tmp_path / "of live pairs", tmp_path / "tables"
    listed, opened = _LivePair(folder, "listed"), _LivePair(folder, "opened")
    attempts: list[list[str]] = []

    copied = journal_files.copied

    def live(files: list[str], folder: Path | None) -> dict[str, str]:
        attempts.append(files)
        listed.seal()
        listed.old.unlink(missing_ok=True)
        found = copied(files, folder)
        opened.seal()
        return found

    monkeypatch.setattr(journal_files, "copied", live)
    if session is not None:
        monkeypatch.setattr(job, "_tables", lambda *given: {})

    def records_of() -> Rows:
        return _read(session, store.snapshot(session, str(root)), "bronze.records")

    first = job.run(session, [str(folder)], str(root))
    if session is None:
        assert (first.records, first.requests, first.findings.get("violated", 0)) == (20, 6, 0)
    assert first.rejected == {}
    assert len(attempts) == 2
    # A start, three requests and the end of each process, whatever was sealed.
    records = Counter((row["pair"], row["node"]) for row in records_of())
    assert set(records.values()) == {5}
    assert len(records) == 4
    again = job.run(session, [str(folder)], str(root))
    assert (again.records, again.requests) == (first.records, first.requests)
    third = job.run(session, [str(folder)], str(root))
    assert third.read == 0
    # The copies of open files went with the commit.
    assert not [path for path in commits.Folder(root).files(commits.RUNS) if "/open/" in path]
    found = records_of()
    assert Counter((row["pair"], row["node"]) for row in found) == records
    assert {Path(row["file"]).name for row in found} <= listed.sealed | opened.sealed
