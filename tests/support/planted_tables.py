"""Tables as the pipeline writes them, made of a few rows without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bstar_pipeline import commits
from bstar_pipeline.tables import TABLES, columns_of

DAY = dt.date(2026, 11, 21)

_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
}


def save(root: Path, name: str, rows: list[dict[str, Any]], *, lacks: frozenset[str] = frozenset()) -> None:
    """Commit one table as a run would, but in milliseconds; ``lacks``: columns that its files do not have."""
    columns = columns_of(TABLES[name])
    schema = pa.schema([(column, _TYPES[kind]) for column, kind in columns if column not in lacks])
    store, files = commits.Folder(root), []
    before, run = (
        commits.current(store, str(root)) or commits.NOTHING,
        commits.new_run(dt.datetime.now(dt.UTC)),
    )
    for day, pair in {(row.get("day", DAY), row.get("pair", "orders")) for row in rows}:
        chosen = [row for row in rows if (row.get("day", DAY), row.get("pair", "orders")) == (day, pair)]
        plain = [{**row, "day": day, "pair": pair} for row in chosen]
        assert not {key for row in plain for key in row} - set(schema.names)
        path = f"{commits.folder_of(run)}/{name.replace('.', '/')}/{day} {pair.encode().hex()}.parquet"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(plain, schema=schema), root / path)
        files.append(commits.File(day, pair, path))
    tables = {**before.tables, name: files}
    commits.commit(store, str(root), commits.Manifest(run, before.run, dt.datetime.now(dt.UTC), tables))
