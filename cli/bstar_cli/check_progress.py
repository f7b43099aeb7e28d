"""How far ``bstar store check`` is, on standard error: a bar on a terminal, otherwise a line now and then."""

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Of a log: rarely enough, and often enough to see that it goes on.
_LINE_INTERVAL_S: Final = 10.0


class CheckProgress:
    """Shows what ``watch`` hears, while its block lasts."""

    def __init__(self, console: Console | None = None, line_interval_s: float = _LINE_INTERVAL_S) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._line_interval_s = line_interval_s
        self._line_at = time.monotonic() + line_interval_s
        self._bar: Progress | None = None
        self._tasks: dict[str, int] = {}
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            bar = Progress(*columns, console=self._console, transient=True)
            self._bar = self._resources.enter_context(bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._resources.close()

    def watch(self, part: str, done: int, count: int) -> None:
        """So many of the ``count`` rows of a part are read; 0 and 0 if that is not known."""
        if self._bar is not None:
            if part not in self._tasks:
                self._tasks[part] = self._bar.add_task(part, total=count or None)
            self._bar.update(self._tasks[part], completed=done)  # type: ignore[arg-type]  # a TaskID is a number
            return
        now = time.monotonic()
        if now >= self._line_at:
            self._line_at = now + self._line_interval_s
            typer.echo(f"{part}: {done} of {count}" if count else f"{part}: under way", err=True)
