"""How far a ``map`` is, on the terminal of standard error: a bar of Rich if it is there, otherwise a line.

It counts the outcomes that ``map`` has handed out. Where standard error is no terminal nothing is written.
"""

import sys
import time
from collections.abc import Callable
from operator import length_hint

from bstar.base.printable import printable
from bstar_client.core.calls import CallFailed, Reply

# It is drawn this often at most: a person sees no more, and a map may have 200,000 outcomes a second.
_INTERVAL_S = 0.1


class MapBar:
    """Draws from ``begin`` to ``end``. ``bodies``: what ``map`` was given; its length is the total."""

    def __init__(self, service: str | bytes, bodies: object) -> None:
        self.title = printable(service)
        # None: it cannot be told.
        self.total = length_hint(bodies, 0) or None
        self.done = 0
        self.failed = 0
        self._draw: Callable[[], object] | None = None
        self._end: Callable[[], object]
        self._due_at = 0.0

    @property
    def text(self) -> str:
        """What stands before the count."""
        return f"{self.title}, {self.failed:,} failed" if self.failed else self.title

    def count(self, outcome: Reply | CallFailed) -> None:
        """One more outcome is handed out."""
        self.done += 1
        self.failed += isinstance(outcome, CallFailed)
        if self._draw is not None and (now := time.monotonic()) >= self._due_at:
            self._due_at = now + _INTERVAL_S
            self._draw()

    def begin(self) -> None:
        """Show the bar, if standard error is a terminal."""
        if sys.stderr is None or not sys.stderr.isatty():
            return
        try:
            from rich import console, progress  # noqa: PLC0415 - an application need not have it
        except ImportError:
            self._draw, self._end = self._write, lambda: sys.stderr.write("\n")
            return
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        bar = progress.Progress(*columns, console=console.Console(stderr=True))
        task = bar.add_task(self.text, total=self.total)
        bar.start()
        self._draw = lambda: bar.update(task, completed=self.done, description=self.text)
        self._end = bar.stop

    def _write(self) -> None:
        """Write the line over the one before, which is no longer."""
        of = "" if self.total is None else f" of {self.total:,}"
        sys.stderr.write(f"\r{self.text}: {self.done:,}{of}")
        sys.stderr.flush()

    def end(self) -> None:
        """Show the last count, and leave the bar on the terminal."""
        if self._draw is not None:
            self._draw()
            self._end()
