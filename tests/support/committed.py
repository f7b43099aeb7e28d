"""The files of a table below a root, as the current run names them, for DuckDB."""

from pathlib import Path

from bstar_pipeline.commits import Folder, open_snapshot


def files(root: Path, name: str) -> str:
    """The table as DuckDB reads it: ``FROM {files(root, "gold.audit")}``. Raises if it has no file."""
    found = open_snapshot(Folder(root), str(root)).files(name)
    assert found, f"{name} has no file"
    return f"read_parquet({found!r}, union_by_name = true, hive_partitioning = false)"
