"""The report: one self-contained HTML page about one pair, made of the tables.

``write`` reads the tables with Spark (``collect``), brings what it needs of them to the driver (``content``),
and renders the page (``page``, ``plots``, ``words``), which loads nothing from any network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bstar_pipeline.report.content import Content

__all__ = ["write"]


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
    from bstar_pipeline.report.collect import collect
    from bstar_pipeline.report.page import render

    content = collect(spark, root, pair=pair, from_us=from_us, until_us=until_us, progress=progress)
    out.write_text(render(content, made_at_us=time.time_ns() // 1000), encoding="utf-8")
    return content
