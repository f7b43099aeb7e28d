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
    from bstar_pipeline.inputs import listing, open_inputs

    journals = open_inputs(session, paths)
    files = list(journals.files)
    typed = journals.typed(files)
    found = copies.without_conflicts(typed, copies.ranges(typed))
    unique = copies.once(typed, found)
    return Bronze(
        bronze.records(unique), bronze.rejected(unique), copies.files(found, listing(session, files))
    )
