"""The databases that queries over partitions use, one after another."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where databases spill; there is none yet."""
    from bstar_pipeline import partitions

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(partitions, "_idle", [])
    return tmp_path


def test_a_query_gets_the_database_of_the_last_one_without_its_views(spills: Path) -> None:
    import duckdb

    from bstar_pipeline import partitions

    del spills
    with partitions._database() as duck:
        duck.execute("CREATE TEMP VIEW rows AS SELECT 1 AS one")
    with partitions._database() as duck:
        with pytest.raises(duckdb.CatalogException):
            duck.execute("FROM rows")
        assert duck.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
    assert len(partitions._idle) == 1


def test_a_database_that_has_spilled_or_failed_is_closed_and_leaves_no_folder(spills: Path) -> None:
    from bstar_pipeline import partitions

    with partitions._database() as duck:
        duck.execute("SET memory_limit = '40MB'")
        rows = "SELECT md5(range::VARCHAR) AS key FROM range(1_000_000) ORDER BY key"
        assert duck.execute(f"SELECT count(*) FROM ({rows} OFFSET 1)").fetchall() == [(999_999,)]
        assert list(spills.iterdir())
    assert list(spills.iterdir()) == []
    with pytest.raises(RuntimeError), partitions._database():
        raise RuntimeError
    assert partitions._idle == []
