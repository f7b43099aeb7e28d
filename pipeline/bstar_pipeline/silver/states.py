"""The history of each pair, and of it the intervals of each node's state; ``gold.history`` explains both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar_pipeline.gold import outages
from bstar_pipeline.gold.history import (
    CLOCK_ERROR_US,
    FIELDS,
    KINDS,
    Event,
    History,
    Incident,
    Overlap,
    Run,
    State,
    overlaps,
)
from bstar_pipeline.pair_rows import columns, per_pair, rows_of, together
from bstar_pipeline.schema import table_schema

_HISTORY = columns(State, Incident, Overlap, minute="BIGINT")


def histories(records: DataFrame, runs: DataFrame, clock_error_us: int = CLOCK_ERROR_US) -> DataFrame:
    """The history of every pair, of bronze records and ``silver.runs``: ``what`` is state, incident, overlap
    (of two nodes' serving), or minute (around an incident).
    """
    events = (
        records.where((F.col("topic") == "events") & F.col("kind").isin(*KINDS))
        .join(F.broadcast(runs.select("boot", "offset_us")), "boot")
        .select(
            F.lit("event").alias("what"),
            *("pair", "node", "boot", "day", "seq", "kind", *FIELDS),
            (F.col("mono") + F.col("offset_us")).alias("at_us"),
        )
    )
    of_runs = runs.select(F.lit("run").alias("what"), *(field.name for field in fields(Run)))
    return per_pair(together(events, of_runs), partial(_history, clock_error_us), _HISTORY)


def states(histories: DataFrame) -> DataFrame:
    """``silver.states`` of ``histories``. An interval is of the day of the record that begins it."""
    return histories.where("what = 'state'").select(*table_schema("silver.states").names)


def both_serving(histories: DataFrame) -> DataFrame:
    """The times in which two nodes of a pair served at once: pair, and the fields of Overlap."""
    return histories.where("what = 'overlap'").select("pair", *(field.name for field in fields(Overlap)))


def _history(clock_error_us: int, pair: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    history = History(rows_of(table, "run", Run), rows_of(table, "event", Event), clock_error_us)
    found = history.states()
    incidents = history.incidents(found)
    yield from ({"what": "state", **asdict(each)} for each in found)
    yield from ({"what": "incident", "pair": pair, **asdict(each)} for each in incidents)
    for each in overlaps(found, history.runs, clock_error_us):
        yield {"what": "overlap", "pair": pair, **asdict(each)}
    yield from ({"what": "minute", "pair": pair, "minute": each} for each in outages.minutes(incidents))
