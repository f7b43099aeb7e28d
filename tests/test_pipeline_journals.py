"""Journals as rows, as the local engine reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bstar.errors import ConfigurationError
from support.journals import Run, write


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What the local engine reads of a file, without an engine."""
    from bstar_pipeline.local_journals import files_at, read

    return [row for file in files_at([str(path)]) for batch in read(file) for row in batch.to_pylist()]


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
    from bstar_pipeline.journal_files import about_name
    from bstar_pipeline.local_journals import files_at

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


def test_a_segment_that_is_sealed_while_it_is_read_is_found_under_its_new_name(tmp_path: Path) -> None:
    from bstar_pipeline.local_journals import files_at, read

    run = Run("primary")
    run.start()
    path = write(tmp_path / run.name(1, ".ndjson.open"), run.lines())
    [file] = files_at([str(tmp_path)])
    path.rename(path.with_suffix(""))
    [batch] = read(file)
    assert batch.num_rows == 1


def test_paths_without_a_journal_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        rows_of(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="holds no file named"):
        rows_of(tmp_path)
