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


def test_rows_of_equal_keys_are_together_in_however_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_schema

    from bstar_pipeline import partitions

    rows = pa.table({"key": [f"k{number % 100}" for number in range(5_000)], "value": range(5_000)})
    pq.write_table(rows, tmp_path / "rows.parquet")
    there = partitions.stored(
        None, [str(tmp_path / "rows.parquet")], from_arrow_schema(rows.schema), is_here=True
    )
    query = "SELECT key, count(*) AS rows, sum(value)::BIGINT AS value FROM rows GROUP BY key"

    def found(row_count_max: int, where: str = "true") -> tuple[int, list[tuple[object, ...]]]:
        monkeypatch.setattr(partitions, "_PARTITION_ROWS", row_count_max)
        asked = partitions.queried(there.take("key", "value", where=where), ("key",), query)
        batches = list(asked.batches())
        return len(batches), sorted(tuple(row.values()) for row in asked.collected())

    whole, parted = found(10_000), found(500)
    assert whole[0] == 1
    assert parted[0] == 10
    assert parted[1] == whole[1]
    assert len(whole[1]) == 100
    # As many as there are keys, and as the rows that are asked for need.
    assert found(500, "key < 'k3'")[0] == 3
    assert found(500, "key = 'k3'")[0] == 1


def test_shares_have_all_rows_and_each_key_in_one() -> None:
    import pyarrow as pa

    from bstar_pipeline import partitions

    rows = pa.table({"key": [f"k{number % 100}" for number in range(5_000)], "value": range(5_000)})
    whole = partitions._Query("FROM rows", rows.schema)
    shares = list(whole.shared(rows.schema, ("key",), 4, rows.to_batches(max_chunksize=999)))
    of_share: dict[int, set[str]] = {number: set() for number in range(4)}
    back = []
    shared = partitions._Query("FROM rows", rows.schema, is_shared=True)
    for row in (row for batch in shares for row in batch.to_pylist()):
        batch = pa.RecordBatch.from_pylist([row], shares[0].schema)
        there = pa.Table.from_batches(shared.rows(rows.schema, [batch]))
        of_share[row["share"]].update(there["key"].to_pylist())
        back.append(there)
    assert sum(map(len, of_share.values())) == len(set.union(*of_share.values())) == 100
    assert all(of_share.values())
    assert pa.concat_tables(back).sort_by("value") == rows
