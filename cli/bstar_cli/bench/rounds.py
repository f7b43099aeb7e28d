"""A measurement from its first process to its figures: case by case, round by round, the sides in turns.

The client processes send and count (``stage``, ``client``). This module orders the turns and reads the
broker's CPU time before and after each. Each case begins with a turn that does not count.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bstar.base.printable import lines
from bstar_cli import exits
from bstar_cli.bench.plan import Case, ClientKind, EchoPlan, Job, Side, Turn, shares_of
from bstar_cli.bench.report import Asked, Document
from bstar_cli.bench.results import Result, ratio_of, row_of
from bstar_cli.bench.stage import BenchError, Stage, cpu_of


class Rounds:
    """All turns of a measurement. Setting ``stop`` ends the turn that runs, and with it the measurement."""

    def __init__(
        self,
        sides: list[Side],
        cases: list[Case],
        load: Asked,
        timeout_s: float,
        warm_up_s: float,
        worker: ClientKind,
        credit: int,
    ) -> None:
        self._sides = sides
        self._cases = cases
        self._load = load
        self._timeout_s = timeout_s
        self._warm_up_s = warm_up_s
        self._worker: ClientKind = worker
        self._credit = credit
        # By the side's name and the pair's identity; those of None are of the whole side.
        self._results: dict[tuple[str, str | None, Case], list[Result]] = {}
        self._cpu_unknown: dict[str, str] = {}
        self._is_broken = False
        self.stop = threading.Event()

    def run(self) -> Document:
        """Measure. Returns the results, also after a stop. Raises BenchError, ends with typer.Exit."""
        try:
            with Stage(self.stop.is_set) as stage:
                self._start(stage)
                with _progress() as show:
                    self._measure(stage, show)
        except BenchError as error:
            typer.echo(f"bstar bench: {lines(str(error))}", err=True)
            if not self._results:
                raise typer.Exit(error.code) from None
            self._is_broken = True
        except KeyboardInterrupt:
            raise typer.Exit(exits.INTERRUPTED) from None
        return self._document()

    def _start(self, stage: Stage) -> None:
        load = self._load
        if load.echo:
            stage.start_echo(
                [
                    EchoPlan(
                        list(side.fleet.pair_of(service).endpoints),
                        service,
                        side.dialect,
                        self._worker,
                        self._credit if side.dialect == "native" else 1,
                    )
                    for side in self._sides
                    for service in side.services
                    for _ in range(load.echo)
                ]
            )
        for side in self._sides:
            jobs = [
                Job(side, side.service_of(number), load.means, self._timeout_s)
                for number in range(load.clients)
            ]
            stage.start_clients(side, jobs)

    def _measure(self, stage: Stage, show: "_Show") -> None:
        load = self._load
        total = len(self._cases) * load.rounds * len(self._sides)
        done = 0
        for case in self._cases:
            if self._warm_up_s:
                for side in self._sides:
                    stage.run(side, self._turns(case, warm_up_s=self._warm_up_s), lambda _: None)
            for _ in range(load.rounds):
                for side in self._sides:
                    if self.stop.is_set():
                        return
                    results = self._turn(stage, side, case, show, done / total, 1 / total)
                    if results[None].answered or not self.stop.is_set():
                        for pair, result in results.items():
                            self._results.setdefault((side.name, pair, case), []).append(result)
                    done += 1

    def _turn(
        self, stage: Stage, side: Side, case: Case, show: "_Show", share_done: float, share: float
    ) -> dict[str | None, Result]:
        """The result of the whole side, and of each of its pairs if it has several."""
        load = self._load
        began_at = time.monotonic()

        def on_progress(answered: int) -> None:
            elapsed_s = time.monotonic() - began_at
            part = answered / load.count if load.count is not None else elapsed_s / (load.seconds or 1)
            text = f"{side.name}  {case.size} bytes  window {case.window}  {answered / elapsed_s:,.0f}/s"
            show(share_done + share * min(1.0, part), text)

        before = cpu_of(side)
        tallies = stage.run(side, self._turns(case), on_progress)
        after = cpu_of(side)
        show(share_done + share, "")
        several = len(before) > 1
        spent = {}
        for pair in before:
            name = f"{side.name} {pair}" if several else side.name
            spent[pair] = self._cpu_between(name, before[pair], after[pair])
        known = [cpu_s for cpu_s in spent.values() if cpu_s is not None]
        results: dict[str | None, Result] = {
            None: Result(tallies, sum(known) if len(known) == len(spent) else None)
        }
        if several:
            fleet = side.fleet
            owners = [fleet.pair_of(side.service_of(number)).identity for number in range(load.clients)]
            for pair, cpu_s in spent.items():
                of_pair = [tally for tally, owner in zip(tallies, owners, strict=True) if owner == pair]
                results[pair] = Result(of_pair, cpu_s)
        return results

    def _cpu_between(
        self, name: str, before: tuple[str, float] | str, after: tuple[str, float] | str
    ) -> float | None:
        if isinstance(before, str) or isinstance(after, str):
            self._cpu_unknown[name] = before if isinstance(before, str) else str(after)
            return None
        if before[0] != after[0]:
            self._cpu_unknown[name] = "another node served at the end of a turn than at its beginning"
            return None
        return after[1] - before[1]

    def _turns(self, case: Case, warm_up_s: float | None = None) -> list[Turn]:
        load = self._load
        counts: Sequence[int | None] = [None] * load.clients
        seconds = warm_up_s or load.seconds
        if warm_up_s is None and load.count is not None:
            counts = shares_of(load.count, load.clients)
        return [
            Turn(case.size, case.window, None if count else seconds, count, load.rate, number, load.clients)
            for number, count in enumerate(counts)
        ]

    def _document(self) -> Document:
        rows, ratios = [], []
        for case in self._cases:
            wholes = []
            for side in self._sides:
                for pair in (None, *side.pairs_used):
                    if results := self._results.get((side.name, pair, case)):
                        rows.append(row_of(side, case, results, pair))
                        if pair is None:
                            wholes.append(rows[-1])
            if len(wholes) == 2:
                ratios.append(ratio_of(*wholes))
        is_complete = not self.stop.is_set() and not self._is_broken
        return Document(
            load=self._load,
            sides=self._sides,
            rows=rows,
            ratios=ratios,
            cpu_unknown=self._cpu_unknown,
            is_complete=is_complete,
        )


_Show = Callable[[float, str], None]


@contextmanager
def _progress() -> Iterator[_Show]:
    """A bar on the standard error if that is a terminal."""
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)

        def show(share: float, text: str) -> None:
            progress.update(task, completed=share, description=text)

        yield show
