"""What ``bstar bench`` prints: a table for people, CSV for spreadsheets, JSON for programs."""

import csv
import io
import os
import platform

import msgspec
from rich.table import Table
from rich.text import Text

import bstar
from bstar_cli.bench.plan import Means, Side
from bstar_cli.bench.results import Ratio, Row

CSV_COLUMNS = (
    "side", "pair", "endpoints", "dialect", "client", "size", "window", "clients", "rate", "rounds",
    "answered", "failed", "unsent", "per_second", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "cpu_us",
)  # fmt: skip


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured from."""

    system: str
    cores: int | None
    python: str


def _this_machine() -> Machine:
    return Machine(f"{platform.system()} {platform.machine()}", os.cpu_count(), platform.python_version())


class Asked(msgspec.Struct, frozen=True):
    """The load. ``window`` and ``size`` are in the rows; ``rate`` is of all clients together."""

    clients: int
    means: Means
    rate: float | None
    seconds: float | None
    count: int | None
    rounds: int
    echo: int


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``cpu_unknown``: by the side's name, why there are no figures of the broker's CPU time."""

    version: str = bstar.__version__
    machine: Machine = msgspec.field(default_factory=_this_machine)
    load: Asked
    sides: list[Side]
    rows: list[Row]
    ratios: list[Ratio]
    cpu_unknown: dict[str, str]
    is_complete: bool


def as_csv(document: Document) -> str:
    """A line per row, under ``CSV_COLUMNS``; what is not known is empty; a whole side has no pair."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    sides = {side.name: side for side in document.sides}
    for row in document.rows:
        side = sides[row.side]
        endpoints = side.endpoints if row.pair is None else side.pairs_used[row.pair].endpoints
        writer.writerow(
            msgspec.structs.asdict(row)
            | {
                "endpoints": " ".join(endpoints),
                "dialect": side.dialect,
                "client": side.client,
                "clients": document.load.clients,
                "rate": document.load.rate,
                "rounds": len(row.rounds),
                "failed": sum(row.failed.values()),
                "per_second": round(row.per_second, 1),
                "cpu_us": None if row.cpu_us is None else round(row.cpu_us, 2),
            }
        )
    return text.getvalue()


def as_table(document: Document) -> Table:
    """A row per side and case, and one for each of its pairs if it has several; last the sides' ratio."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "SIZE", "WINDOW", "REQ/S", "P50", "P90", "P99", "P99.9", "MAX", "FAILED", "CPU/REQ"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    ratios = {(ratio.size, ratio.window): ratio for ratio in document.ratios}
    last = {(row.size, row.window): row for row in document.rows}
    for row in document.rows:
        failed = sum(row.failed.values()) + row.unsent
        table.add_row(
            row.side if row.pair is None else f"  {row.pair}",
            f"{row.size:,}",
            f"{row.window:,}",
            f"{row.per_second:,.0f}",
            *(_time(each) for each in (row.p50_us, row.p90_us, row.p99_us, row.p999_us, row.max_us)),
            Text(f"{failed:,}", style="red" if failed else ""),
            "-" if row.cpu_us is None else f"{row.cpu_us:,.1f} µs",
        )
        ratio = ratios.get((row.size, row.window))
        if ratio is not None and row == last[row.size, row.window]:
            table.add_row(
                f"{document.sides[0].name}/{document.sides[-1].name}",
                *("", "", _factor(ratio.per_second), _factor(ratio.p50_us), "", _factor(ratio.p99_us)),
                *("", "", "", _factor(ratio.cpu_us)),
                style="bold",
                end_section=True,
            )
    return table


def _factor(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}×"


def _time(latency_us: int | None) -> str:
    if latency_us is None:
        return "-"
    if latency_us < 10_000:
        return f"{latency_us:,} µs"
    return f"{latency_us / 1e3:,.1f} ms" if latency_us < 10_000_000 else f"{latency_us / 1e6:,.1f} s"
