"""A table below a root, as the current run names its files, for DuckDB."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb

from bstar_pipeline.commits import Folder, open_snapshot


def files(root: Path, name: str) -> str:
    """The table: ``FROM {files(root, "gold.audit")}``."""
    from bstar_pipeline.schema import table_schema

    found = open_snapshot(Folder(root), str(root)).files(name)
    names = [f'"{column}"' for column in table_schema(name).names]
    if not found:
        return f"(SELECT {', '.join(f'NULL AS {column}' for column in names)} WHERE FALSE)"
    rows = f"read_parquet({found!r}, union_by_name = true, hive_partitioning = false)"
    return f"(SELECT {', '.join(names)} FROM {rows})"


def rows(root: Path, name: str, where: str = "TRUE") -> list[Any]:
    """The rows of a table, with a field for each column."""
    found = duckdb.execute(f"FROM {files(root, name)} WHERE {where}")
    columns = [column[0] for column in found.description or ()]
    return [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in found.fetchall()]
