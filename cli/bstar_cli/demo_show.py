"""What the watcher of a demo sees, and how a demo ends: in good order, failed, or interrupted."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import TypeVar

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bstar_broker.core.snapshot import NodeState
from bstar_cli import exits
from bstar_cli.demo_stage import Stage
from bstar_testing import HarnessError, Node

Played = TypeVar("Played")


def printer() -> Console:
    """Where a demo's report goes; as wide as its tables where there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 110)


def counts_table(counts: Sequence[tuple[str, float]], *, bad: Collection[str]) -> Table:
    """A line for each count; one of the ``bad`` ones is red unless it is 0."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for label, number in counts:
        shown.add_row(Text(label), Text(str(number), style="bold red" if label in bad and number else "bold"))
    return shown


def perform(stage: Stage, show: "Show", play: Callable[[], Played], *, is_live: bool) -> Played:
    """Play, and show it: a live picture on a terminal if wanted, lines elsewhere. Every process ends.

    Exits with 1 if something did not come, with 130 if it was interrupted.
    """
    console = Console(stderr=True)
    is_live = is_live and console.is_terminal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stage.interrupt())
    try:
        with stage, Live(show, console=console, refresh_per_second=8) if is_live else nullcontext():
            show.begin(stage, None if is_live else console)
            return play()
    except HarnessError as error:
        console.print(Text(f"the demo failed: {error}", style="bold red"), soft_wrap=True)
        console.print(Text(f"logs: {stage.folder}"), soft_wrap=True)
        raise typer.Exit(exits.FAILED) from None
    except KeyboardInterrupt:
        stage.remove()
        console.print("interrupted; every process of the demo was ended")
        raise typer.Exit(exits.INTERRUPTED) from None


def leave(stage: Stage, *, is_ok: bool) -> None:
    """Remove the folder, or name it and exit with 1."""
    if is_ok:
        stage.remove()
        return
    Console(stderr=True).print(Text(f"logs: {stage.folder}"), soft_wrap=True)
    raise typer.Exit(exits.FAILED)


class Show:
    """What the watcher sees: a live picture on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._console: Console | None = None
        self._began = time.monotonic()
        self._lines: deque[str] = deque(maxlen=8)
        # Times and counts of answers, for the rate.
        self._recent: deque[tuple[float, int]] = deque(maxlen=30)

    def begin(self, stage: Stage, console: Console | None) -> None:
        """Show this stage from now on; as lines if a console is given."""
        self._stage = stage
        self._console = console

    def say(self, text: str) -> None:
        """A new step begins."""
        line = f"{time.monotonic() - self._began:6.2f} s  {text}"
        self._lines.append(line)
        if self._console is not None:
            self._console.print(Text(line), soft_wrap=True)

    def refresh(self) -> None:
        """Something may have changed."""
        if self._stage is not None:
            now, answered = time.monotonic(), self._stage.progress.answered
            if not self._recent or answered > self._recent[-1][1]:
                self._recent.append((now, answered))

    def __rich__(self) -> Group:
        stage = self._stage
        if stage is None:
            return Group(Text("starting"))
        nodes = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("NODE", "STATE", "EPOCH", "WORKERS", "IN FLIGHT", "ANSWERED", "PID"):
            nodes.add_column(heading, min_width=9)
        for node in stage.nodes:
            nodes.add_row(*_cells(node, stage.states.get(node.role)))
        counts = Text(f"{stage.summary()}   {self._rate():.0f}/s")
        return Group(nodes, Text(), counts, Text(), *(Text(line) for line in list(self._lines)))

    def _rate(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (began, first), (ended, last) = self._recent[0], self._recent[-1]
        return (last - first) / max(0.001, max(ended, time.monotonic() - 0.2) - began)


def _cells(node: Node, state: NodeState | None) -> list[Text]:
    if state is None:
        words = "starting" if node.is_running else "down"
        return [Text(node.role), Text(words, style="red"), *(Text("-") for _ in range(5))]
    pair, broker = state.pair, state.broker
    style = "bold green" if pair.is_active else ""
    numbers = (
        pair.epoch,
        broker.workers,
        broker.in_flight,
        sum(s.answered for s in broker.services),
        node.pid,
    )
    return [Text(node.role), Text(pair.state, style=style), *(Text(str(number)) for number in numbers)]
