"""Tables as the pipeline writes them, made of a few rows without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bstar_pipeline.tables import TABLES, columns_of

DAY = dt.date(2026, 11, 21)

_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
}


def save(root: Path, name: str, rows: list[dict[str, Any]], *, lacks: frozenset[str] = frozenset()) -> None:
    """Write one table as Spark would, but in milliseconds; ``lacks``: columns that its files do not have."""
    table = TABLES[name]
    schema = pa.schema([(column, _TYPES[kind]) for column, kind in columns_of(table) if column not in lacks])
    for day, pair in {(row.get("day", DAY), row.get("pair", "orders")) for row in rows}:
        chosen = [row for row in rows if (row.get("day", DAY), row.get("pair", "orders")) == (day, pair)]
        plain = [{key: value for key, value in row.items() if key not in ("day", "pair")} for row in chosen]
        assert not {key for row in plain for key in row} - set(schema.names)
        folder = root / table.path / f"day={day}" / f"pair={pair}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(plain, schema=schema), folder / "part-0.parquet")
