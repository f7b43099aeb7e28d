"""Brings what a report shows from the tables to the driver: all of its parts, of one pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bstar_pipeline.report import events, services
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
    runs, runs_cut = events.runs(tables)
    progress("reading requests")
    rates, retried = events.rates(tables)
    progress("reading states and incidents")
    intervals, intervals_cut = events.intervals(tables)
    incidents, incidents_cut = events.incidents(tables)
    progress("reading audit")
    verdicts = events.verdicts(tables)
    findings, findings_cut = events.findings(tables)
    progress("reading objectives")
    objectives, objectives_cut, p99_us = services.objectives(tables)
    progress("reading latencies")
    edges_us, heats = services.heats(
        tables, [each.service for each in objectives[: services.PLOTTED_SERVICES_MAX]]
    )
    progress("reading capacity and clients")
    capacity, capacity_cut = services.capacity(tables)
    clients, clients_cut = services.clients(tables)
    progress("asking how good the data are")
    quality = events.quality(tables)
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
        findings_cut=findings_cut,
        intervals=intervals,
        intervals_cut=intervals_cut,
        rates=rates,
        incidents=incidents,
        incidents_cut=incidents_cut,
        edges_us=edges_us,
        heats=heats,
        p99_us=p99_us,
        objectives=objectives,
        objectives_cut=objectives_cut,
        capacity=capacity,
        capacity_cut=capacity_cut,
        clients=clients,
        clients_cut=clients_cut,
        runs=runs,
        runs_cut=runs_cut,
        quality=quality,
    )
