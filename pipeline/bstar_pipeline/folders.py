"""Tables in folders of this machine, for the local engine: partitions replaced, file by file, without Spark.

A write goes to a folder beside the table first. Its files are moved to where they belong when all are there,
and those that they replace are removed after that.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

_STAGING = ".writing-"
_ABANDONED_S = 86_400.0
# What Spark does not leave as it is in the name of a partition's folder.
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


@contextmanager
def staged(table: Path) -> Iterator[Path]:
    """A folder to write partitions to; they replace those of the table when the block ends well."""
    table.mkdir(parents=True, exist_ok=True)
    for left in table.parent.glob(f"{_STAGING}*"):
        # Of a job that was killed; nobody writes one table for a day.
        if left.stat().st_mtime < time.time() - _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    staging = table.parent / f"{_STAGING}{uuid4().hex}"
    try:
        yield staging
        _replace(staging, table)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, table: Path) -> None:
    by_leaf: dict[Path, list[Path]] = {}
    for file in sorted(staging.rglob("*.parquet")):
        leaf = table.joinpath(*map(_spelled, file.parent.relative_to(staging).parts))
        by_leaf.setdefault(leaf, []).append(file)
    for leaf, files in by_leaf.items():
        _exchange(leaf, files)


def _exchange(leaf: Path, files: list[Path]) -> None:
    """Move the files into the folder, and remove those that were in it."""
    leaf.mkdir(parents=True, exist_ok=True)
    before = [file for file in leaf.iterdir() if file.is_file()]
    for file in files:
        file.rename(leaf / file.name)
    for file in before:
        file.unlink()


def _spelled(name: str) -> str:
    """A partition's folder as Spark spells it: engines differ in which letters they write as %XX."""
    column, mark, value = name.partition("=")
    return column + mark + _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", unquote(value))


def clear(leaf: Path, shape: pa.Schema) -> None:
    """Leave a file without rows in a folder of a table, instead of what is there."""
    leaf.mkdir(parents=True, exist_ok=True)
    before = [file for file in leaf.iterdir() if file.is_file()]
    pq.write_table(shape.empty_table(), leaf / f"{uuid4().hex}.parquet")
    for file in before:
        file.unlink()


def leaves(table: Path) -> dict[str, set[str]]:
    """The names of a table's files by their folder below it ("day=…/pair=…")."""
    found: dict[str, set[str]] = {}
    for file in table.rglob("*.parquet"):
        found.setdefault(str(file.parent.relative_to(table)), set()).add(file.name)
    return found
