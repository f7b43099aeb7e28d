"""The history of each pair, and of it the intervals of each node's state; ``gold.history`` explains both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Window
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
from bstar_pipeline.pair_rows import Rows, columns, per_pair, rows_of, together
from bstar_pipeline.schema import table_schema

_HISTORY = columns(State, Incident, Overlap, second="BIGINT")


def histories(records: DataFrame, runs: DataFrame, clock_error_us: int = CLOCK_ERROR_US) -> DataFrame:
    """The history of every pair, of bronze records and ``silver.runs``: ``what`` is state, incident, overlap
    (of two nodes' serving), or second (around an incident).
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
    named = runs.join(_pulses(records, runs), "boot", "left")
    of_runs = named.select(F.lit("run").alias("what"), *(field.name for field in fields(Run)))
    return per_pair(together(events, of_runs), partial(_history, clock_error_us), _HISTORY)


def _pulses(records: DataFrame, runs: DataFrame) -> DataFrame:
    """What a broker's pulses tell in all: boot, first_state, first_epoch, pulse_us and longest_us."""
    is_pulse = F.col("kind") == "pulse"
    in_run = Window.partitionBy("boot").orderBy("seq")
    first = F.when(is_pulse, F.col("seq"))
    return (
        records.where((F.col("topic") == "events") & (is_pulse | F.col("kind").isin(*KINDS)))
        .join(F.broadcast(runs.where("source = 'broker'").select("boot")), "boot", "left_semi")
        .withColumn("silent_us", F.col("mono") - F.lag("mono").over(in_run))
        .groupBy("boot")
        .agg(
            F.min_by("state", first).alias("first_state"),
            F.min_by("epoch", first).alias("first_epoch"),
            F.expr(
                "(max(if(kind = 'pulse', mono, NULL)) - min(if(kind = 'pulse', mono, NULL))) "
                "/ nullif(count_if(kind = 'pulse') - 1, 0) AS pulse_us"
            ),
            F.max("silent_us").alias("longest_us"),
        )
    )


def states(histories: DataFrame) -> DataFrame:
    """``silver.states`` of ``histories``. An interval is of the day of the record that begins it."""
    return histories.where("what = 'state'").select(*table_schema("silver.states").names)


def both_serving(histories: DataFrame) -> DataFrame:
    """The times in which two nodes of a pair served at once: pair, and the fields of Overlap."""
    return histories.where("what = 'overlap'").select("pair", *(field.name for field in fields(Overlap)))


def _history(clock_error_us: int, pair: str, rows: Rows) -> Iterator[dict[str, Any]]:
    history = History(rows_of(rows, "run", Run), rows_of(rows, "event", Event), clock_error_us)
    found = history.states()
    incidents = history.incidents(found)
    yield from ({"what": "state", **asdict(each)} for each in found)
    yield from ({"what": "incident", "pair": pair, **asdict(each)} for each in incidents)
    for each in overlaps(found, history.runs, clock_error_us):
        yield {"what": "overlap", "pair": pair, **asdict(each)}
    yield from ({"what": "second", "pair": pair, "second": each} for each in outages.seconds(incidents))
