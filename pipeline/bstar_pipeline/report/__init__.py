"""The report: one self-contained HTML page about one pair, made of the tables.

``collect`` asks the tables (``reading``) for what the page needs (``asking``, ``events``, ``services``) and
brings it to this process (``content``). ``page.render`` makes the page of it (``plots``, ``words``), which
loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bstar_pipeline.report.content import Content
    from bstar_pipeline.report.reading import Tables

__all__ = ["collect"]


def collect(tables: Tables, progress: Callable[[str], None] = lambda _: None) -> Content:
    """The report's content of ``tables`` of one pair. ``progress`` is called with a word for each part."""
    from bstar_pipeline.report import asking, events, services
    from bstar_pipeline.report.content import Content
    from bstar_pipeline.report.words import worst_outage

    pair = tables.pair
    assert pair is not None, "a report is about one pair"
    progress("reading processes")
    runs = events.runs(tables)
    progress("reading requests")
    rates = events.rates(tables)
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
        pair=pair,
        from_us=tables.from_us,
        until_us=tables.until_us,
        step_us=tables.step_us,
        requests=sum(rate.answered + rate.not_answered for rate in rates),
        errors=sum(rate.not_answered for rate in rates),
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
