"""The report: one self-contained HTML page about one pair, made of the tables.

``write`` reads the tables (``asking``, ``events``, ``services``), brings what the page needs to this
process (``content``), and renders it (``page``, ``plots``, ``words``). The page loads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bstar_pipeline.report.content import Content

__all__ = ["collect", "write"]


def write(
    spark: SparkSession,
    root: str,
    out: Path,
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Content:
    """Write the page about ``pair`` (needed if the tables below ``root`` are about several) to ``out``.

    The period is all that the tables have of it, or what of that is in [``from_us``, ``until_us``),
    microseconds since 1970. Returns what the page shows. Raises ConfigurationError if there is nothing to
    show, and OSError if ``out`` cannot be written.
    """
    from bstar_pipeline.report.page import render

    content = collect(spark, root, pair=pair, from_us=from_us, until_us=until_us, progress=progress)
    out.write_text(render(content, made_at_us=time.time_ns() // 1000), encoding="utf-8")
    return content


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
    from bstar_pipeline.report import asking, events, services
    from bstar_pipeline.report.content import Content
    from bstar_pipeline.report.reading import open_tables
    from bstar_pipeline.report.words import worst_outage

    progress("reading processes")
    tables = open_tables(spark, root, pair=pair, from_us=from_us, until_us=until_us, is_of_one_pair=True)
    assert tables.pair is not None
    runs = events.runs(tables)
    progress("reading requests")
    rates, retried = events.rates(tables)
    progress("reading incidents")
    incidents = asking.incidents(tables)
    progress("reading objectives")
    objectives, p99_us = services.objectives(tables)
    promises = {each.service: each.promise for each in objectives if each.promise is not None}
    hits = asking.hits(tables, worst_outage(incidents), promises)
    progress("reading latencies")
    plotted = [each.service for each in objectives[: services.PLOTTED_SERVICES_MAX]]
    edges_us, heats = services.heats(tables, plotted)
    progress("reading audit, capacity and clients")
    return Content(
        pair=tables.pair,
        from_us=tables.from_us,
        until_us=tables.until_us,
        step_us=tables.step_us,
        requests=sum(rate.answered + rate.not_answered for rate in rates),
        errors=sum(rate.not_answered for rate in rates),
        retried=retried,
        verdicts=asking.verdicts(tables),
        findings=asking.findings(tables),
        intervals=events.intervals(tables),
        rates=rates,
        incidents=incidents,
        hits=hits,
        edges_us=edges_us,
        heats=heats,
        p99_us=p99_us,
        objectives=objectives,
        capacity=services.capacity(tables),
        clients=services.clients(tables),
        runs=runs,
        quality=events.quality(tables),
    )
