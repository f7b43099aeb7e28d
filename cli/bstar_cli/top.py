"""``bstar top``: the nodes and services of all pairs, live: role, rates, latencies, queues, workers, lag."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bstar.base.printable import duration
from bstar_broker.core.snapshot import ServiceState
from bstar_cli import exits
from bstar_cli.diagnosis import Seen
from bstar_cli.options import Nodes, refuse
from bstar_cli.terminal import cell, print_tables, sentence, table
from bstar_client.calls.status import node_states

_TIMEOUT_S: Final = 2.0
# The rest of the screen belongs to the services; bstar status shows all.
_FINDINGS_MAX: Final = 10
_KEYS_HELP: Final = "q quit   s rate   p p99   u queued   w workers   n name"


class SortBy(StrEnum):
    """By which column the services are sorted; all but the name with the highest first."""

    NAME = "name"
    RATE = "rate"
    P99 = "p99"
    QUEUED = "queued"
    WORKERS = "workers"


_BY_KEY: Final = {
    "n": SortBy.NAME,
    "s": SortBy.RATE,
    "p": SortBy.P99,
    "u": SortBy.QUEUED,
    "w": SortBy.WORKERS,
}


class Sample:
    """All nodes at one moment, ``at`` seconds of a monotonic clock."""

    def __init__(self, nodes: Sequence[Seen], at: float) -> None:
        self.nodes = nodes
        self.at = at
        self.services = {
            (seen.endpoint, service.service): service
            for seen in nodes
            if seen.view is not None and seen.view.pair.is_active
            for service in seen.view.broker.services
        }


class Row:
    """One service between two samples. A latency is the upper bound of its bucket, None if nothing ended."""

    def __init__(self, service: ServiceState, before: ServiceState | None, elapsed_s: float) -> None:
        self.service = service
        # A node that started again counts from 0.
        known = before if before is not None and before.answered <= service.answered else None
        answered = service.answered - (known.answered if known is not None else service.answered)
        self.rate = answered / elapsed_s if elapsed_s > 0 else 0.0
        was = known.latency_counts if known is not None else service.latency_counts
        self.counts = [now - then for now, then in zip(service.latency_counts, was, strict=False)]

    def latency_s(self, share: float) -> float | None:
        """The latency that this share of the requests did not exceed; infinity above the last bound."""
        from bstar_broker.core.records import LATENCY_BOUNDS_S  # noqa: PLC0415  # only now needed

        rank, seen = share * sum(self.counts), 0
        for bound, count in zip((*LATENCY_BOUNDS_S, float("inf")), self.counts, strict=False):
            seen += count
            if count and seen >= rank:
                return bound
        return None

    def key(self, by: SortBy) -> float:
        """For a sort by a number, the highest first."""
        return {
            SortBy.NAME: 0.0,
            SortBy.RATE: self.rate,
            SortBy.P99: self.latency_s(0.99) or 0.0,
            SortBy.QUEUED: float(self.service.queued),
            SortBy.WORKERS: float(self.service.workers),
        }[by]


def rows(before: Sample, now: Sample, by: SortBy) -> list[Row]:
    """The services of the nodes that serve, in order."""
    elapsed_s = now.at - before.at
    made = [Row(service, before.services.get(key), elapsed_s) for key, service in now.services.items()]
    return sorted(made, key=lambda row: (-row.key(by), row.service.service))


def top(
    nodes: Nodes,
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and end, for a script or without a terminal.")
    ] = False,
    sort: Annotated[SortBy, typer.Option("--sort", help="How the services are sorted.")] = SortBy.RATE,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch the nodes and services of all pairs: role, rates, latencies, queues, workers, lag.

    Looking is no vote. Rates and latencies are those between two looks; a latency is the upper bound of its
    bucket. Keys: q quits; s, p, u, w and n sort by rate, p99, queued, workers and name.

    Exit codes: 0; 1 with --once if no node shows its state; 2 wrong usage, or no terminal and no --once.

    Examples:

        bstar top

        bstar top --sort queued --interval 5

        bstar top --once --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    refuse(not once and not is_terminal, "bstar top needs a terminal: use --once, or bstar status --json")
    before = _look(nodes)
    if once:
        time.sleep(interval)
        now = _look(nodes)
        print_tables(*tables(before, now, sort))
        talk = Console(stderr=True, soft_wrap=True)
        for seen in now.nodes:
            if seen.view is None:
                talk.print(sentence(f"{seen.endpoint}: {seen.error}"))
        raise typer.Exit(exits.OK if any(seen.view is not None for seen in now.nodes) else exits.FAILED)
    with _keys(), Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            key = _key(interval)
            if key == "q":
                return
            sort = _BY_KEY.get(key, sort)
            now = _look(nodes)
            live.update(Group(*tables(before, now, sort), Text(_KEYS_HELP, style="dim")), refresh=True)
            before = now


def tables(before: Sample, now: Sample, by: SortBy) -> list[Table]:
    """The picture: the nodes, what they found, then the services. Each fits into 80 columns."""
    shown = table(("NODE", "STATE"), ("EPOCH", "WORKERS", "QUEUED", "LAG", "STORE LAG"), no_wrap=True)
    for seen in now.nodes:
        view = seen.view
        if view is None:
            shown.add_row(cell(seen.endpoint), Text(seen.word, style="red"))
            continue
        shown.add_row(
            cell(view.pair.role),
            cell(view.pair.state, style="bold green" if view.pair.is_active else ""),
            cell(view.pair.epoch),
            cell(view.broker.workers),
            cell(view.broker.queued),
            cell("-" if view.loop is None else f"{view.loop.lag_last_s * 1000:.1f} ms"),
            cell("-" if view.store is None else view.store.lag_entries),
        )
    services = table(("SERVICE",), ("RATE", "P50", "P99", "QUEUED", "IN FLIGHT", "WORKERS"), no_wrap=True)
    for row in rows(before, now, by):
        services.add_row(
            cell(row.service.service),
            cell(f"{row.rate:.1f}/s"),
            cell(_shown(row.latency_s(0.5))),
            cell(_shown(row.latency_s(0.99))),
            cell(row.service.queued),
            cell(row.service.in_flight),
            cell(row.service.workers),
        )
    found = [
        (each.service or view.pair.role, each)
        for view in (seen.view for seen in now.nodes)
        if view is not None
        for each in view.findings or ()
    ]
    if not found:
        return [shown, services]
    findings = table(("FINDING", "OF"), ("FOR",), no_wrap=True)
    for owner, each in found[:_FINDINGS_MAX]:
        style = "bold red" if each.severity == "critical" else "yellow"
        findings.add_row(cell(each.name, style=style), cell(owner), cell(duration(each.for_s)))
    return [shown, findings, services]


def _shown(latency_s: float | None) -> str:
    if latency_s is None:
        return "-"
    return "> 30 s" if latency_s == float("inf") else f"{latency_s * 1000:g} ms"


def _look(nodes: Nodes) -> Sample:
    reports = node_states(nodes.fleet().endpoints, _TIMEOUT_S, nodes.security())
    return Sample([Seen.of(report) for report in reports], time.monotonic())


@contextmanager
def _keys() -> Iterator[None]:
    """Keys come at once and are not shown."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key(timeout_s: float) -> str:
    """The key that was pressed within that time, or ""."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""
