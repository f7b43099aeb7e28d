"""A table below a root, as the current run names its files, for DuckDB."""

from pathlib import Path

from bstar_pipeline.commits import Folder, open_snapshot


def files(root: Path, name: str) -> str:
    """The table: ``FROM {files(root, "gold.audit")}``. Raises AssertionError if it has no file."""
    from bstar_pipeline.schema import table_schema

    found = open_snapshot(Folder(root), str(root)).files(name)
    assert found, f"{name} has no file"
    columns = ", ".join(f'"{column}"' for column in table_schema(name).names)
    return f"(SELECT {columns} FROM read_parquet({found!r}, union_by_name = true, hive_partitioning = false))"
