"""The tables of the first layer as DataFrames, of journals that a test wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Bronze(NamedTuple):
    records: DataFrame
    rejected: DataFrame
    files: DataFrame


def read(session: SparkSession, paths: Sequence[str]) -> Bronze:
    """What the batch job makes of these journals, computed when it is asked for, by either engine."""
    from bstar_pipeline import bronze, copies
    from bstar_pipeline.inputs import open_inputs
    from bstar_pipeline.pair_rows import frame_of
    from bstar_pipeline.schema import table_schema

    journals = open_inputs(session, paths)
    typed = journals.typed(list(journals.files))
    found = copies.ranges(typed)
    unique = copies.once(typed, found, {row["pair"] for row in found if row["pair"] is not None})
    files = list(copies.files(found, journals.files, copies.kept(unique)))
    wholly = [row["file"] for row in files if row["state"] == "duplicate"]
    rejected = bronze.rejected(typed.where(~typed.file.isin(wholly)))
    of_files = frame_of(session, files, table_schema("bronze.files"))
    return Bronze(bronze.records(unique), rejected, of_files)
