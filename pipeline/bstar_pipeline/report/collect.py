"""Brings what a report shows from the tables to the driver: all of its parts, of one pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bstar_pipeline.report import asking, events, services
from bstar_pipeline.report.content import Content
from bstar_pipeline.report.reading import open_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collect(
    spark: SparkSession,
    root: str,
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Content:
    """The report's content of the tables below ``root``: one pair, the period from the first to the last sign
    of its processes, or the part of it in [``from_us``, ``until_us``).

    ``progress`` is called with a word for each part. Raises ConfigurationError if there are no tables, no
    such pair, several pairs and none chosen, or nothing in that period.
    """
    progress("reading processes")
    tables = open_tables(spark, root, pair=pair, from_us=from_us, until_us=until_us, is_of_one_pair=True)
    assert tables.pair is not None
    runs = events.runs(tables)
    progress("reading requests")
    rates, retried = events.rates(tables)
    progress("reading states and incidents")
    intervals = events.intervals(tables)
    incidents = asking.incidents(tables)
    progress("reading audit")
    verdicts = asking.verdicts(tables)
    findings = asking.findings(tables)
    progress("reading objectives")
    objectives, p99_us = services.objectives(tables)
    progress("reading latencies")
    edges_us, heats = services.heats(
        tables, [each.service for each in objectives[: services.PLOTTED_SERVICES_MAX]]
    )
    progress("reading capacity and clients")
    capacity = services.capacity(tables)
    clients = services.clients(tables)
    progress("asking how good the data are")
    return Content(
        pair=tables.pair,
        from_us=tables.from_us,
        until_us=tables.until_us,
        step_us=tables.step_us,
        requests=sum(rate.answered + rate.not_answered for rate in rates),
        errors=sum(rate.not_answered for rate in rates),
        retried=retried,
        verdicts=verdicts,
        findings=findings,
        intervals=intervals,
        rates=rates,
        incidents=incidents,
        edges_us=edges_us,
        heats=heats,
        p99_us=p99_us,
        objectives=objectives,
        capacity=capacity,
        clients=clients,
        runs=runs,
        quality=events.quality(tables),
    )
