"""Journals as rows, as every engine reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bstar.errors import ConfigurationError
from support.journals import Run, write


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What is read of a file, without an engine."""
    from bstar_pipeline.bronze import read

    with path.open("rb") as source:
        return [row for batch in read(path.as_uri(), source.read) for row in batch.to_pylist()]


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A packed file without its end."""
    run = Run("backup")
    run.start()
    for number in range(2_000):
        run.request(number, f"{number:032x}", number)
    path = write(tmp_path / "journal" / run.name(1, ".ndjson.gz"), run.lines())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def test_several_paths_and_patterns_are_read_and_each_file_once(tmp_path: Path) -> None:
    from bstar_pipeline.journal_files import about_name, files_at

    for pair in ("orders", "stock"):
        write(tmp_path / Run("primary", pair=pair).name(), [])
    (tmp_path / "stray.ndjson").write_text("its name says nothing\n")
    every = files_at([str(tmp_path)])
    assert sorted(about_name(file.path)[0] for file in every) == ["orders", "stock", "unknown"]
    assert files_at([tmp_path.as_uri(), str(tmp_path)]) == every
    orders, others = f"{tmp_path}/orders.primary.*", f"{tmp_path}/{{stock.*,stray.*}}"
    assert sorted(files_at([orders, others, orders]), key=str) == sorted(every, key=str)
    with pytest.raises(ConfigurationError, match="does not exist"):
        files_at([f"{tmp_path}/other.*"])


def test_a_packed_file_without_its_end_gives_its_rows_and_tells_so(cut: Path) -> None:
    rows = rows_of(cut)
    reasons = Counter(row["rejection"] for row in rows)
    assert reasons["truncated"] == 1
    assert reasons[None] > 100
    assert [row["number"] for row in rows if row["kind"] == "request"] == list(range(reasons[None] - 1))
    cut.write_bytes(b"")
    assert [row["rejection"] for row in rows_of(cut)] == ["truncated"]


def test_lines_that_are_no_records_say_why_and_kinds_of_later_versions_are_kept(tmp_path: Path) -> None:
    run = Run("primary")
    run.start()
    line = run.lines()[0]
    newer = line.replace(b'"v":1', b'"v":2')
    later = line.replace(b'"kind":"started"', b'"kind":"of-tomorrow"')
    torn, lacking = line[:40], line.replace(b'"host":"host-1",', b"")
    path = write(tmp_path / run.name(), [line, newer, later, torn, lacking, b"\xff"])
    rows = rows_of(path)
    assert sorted(row["rejection"] or "" for row in rows) == [
        "", "", "incomplete", "newer-version", "unreadable", "unreadable"
    ]  # fmt: skip
    (kept,) = (row for row in rows if row["kind"] == "of-tomorrow")
    # What it calls as other kinds do is in their columns.
    assert (kept["seq"], kept["host"], kept["topic"]) == (1, "host-1", "events")
    assert torn.decode() in {row["line"] for row in rows}
    assert {(row["pair"], row["day"].isoformat()) for row in rows} == {("orders", "2026-11-02")}


def test_a_text_of_a_record_that_is_no_utf8_makes_its_line_unreadable(tmp_path: Path) -> None:
    run = Run("primary")
    run.start()
    line = run.lines()[0]
    path = write(tmp_path / run.name(), [line, line.replace(b"host-1", b"host-\xff")])
    assert Counter(row["rejection"] for row in rows_of(path)) == {None: 1, "unreadable": 1}


def test_one_bad_line_among_many_of_its_kind_is_set_aside_alone(tmp_path: Path) -> None:
    run = Run("primary")
    for number in range(100):
        run.request(number, "c1", number)
    lines = run.lines()
    torn, early = lines[40][:-30], lines[41].replace(b'"seq":42', b'"seq":0')
    two = lines[60] + b"," + lines[61]
    path = write(tmp_path / run.name(), [*lines[:40], torn, early, *lines[42:60], two, *lines[62:]])
    rows = rows_of(path)
    assert [row["line"] for row in rows if row["rejection"]] == [torn.decode(), early.decode(), two.decode()]
    kept = sorted(row["number"] for row in rows if not row["rejection"])
    assert kept == [number for number in range(100) if number not in (40, 41, 60, 61)]


def test_an_executor_opens_a_file_whose_content_it_does_not_get(cut: Path) -> None:
    import pyarrow as pa

    from bstar_pipeline.bronze import on_executor

    uri = cut.as_uri().replace("file://", "file:", 1)
    gone = uri.replace(".ndjson.gz", ".ndjson")
    given = pa.record_batch({"file_path": [gone, uri], "content": pa.array([None, None], pa.binary())})
    found = [row for batch in on_executor({}, None, [given]) for row in batch.to_pylist()]
    assert [{**row, "file": ""} for row in found] == [{**row, "file": ""} for row in rows_of(cut)]
    assert {row["file"] for row in found} == {uri}


def test_paths_without_a_journal_are_told(tmp_path: Path) -> None:
    from bstar_pipeline.journal_files import files_at

    with pytest.raises(ConfigurationError, match="does not exist"):
        files_at([str(tmp_path / "nothing")])
    with pytest.raises(ConfigurationError, match="holds no file named"):
        files_at([str(tmp_path)])
