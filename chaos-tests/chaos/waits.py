"""Which processes the machine kept waiting for a CPU, and for how long: a thread that asks the kernel.

A role may move because messages are late, and they are late when whoever carries them is: a node's own
loop, which says so in its log, but as well ZeroMQ's threads beside it, the proxies or the wire through which
every link leads, and the arbiter. Of all these the kernel counts how long each thread was ready to run and
did not (``schedstat``); one that is stopped by a signal is not ready. What a thread has waited between two
looks is noted in the harness's history, under the process's name, if it is long enough to matter.

It explains what the validator would otherwise object to. It changes nothing, and where the kernel does not
count (no /proc, no scheduler statistics) it says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.history import KEPT_WAITING, Writer

# Half a heartbeat of the fastest profile: as much as a node tells of its own loop.
_WAIT_S_MIN = 0.05
_LOOK_S = 0.1


def waits_of(pid: int) -> dict[int, float]:
    """Seconds that each thread of a process has waited for a CPU; those that cannot be read are left out."""
    waits: dict[int, float] = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, IndexError):
                waits[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waits


class WaitWatch:
    """Watches as long as the block. ``running`` is asked at each look: (name, process id) of who runs now."""

    def __init__(self, running: Callable[[], Iterable[tuple[str, int]]], journal: Writer) -> None:
        self._running = running
        self._journal = journal
        self._is_over = threading.Event()
        self._waited_s: dict[tuple[int, int], float] = {}
        self._thread = threading.Thread(target=self._watch, name="waits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Note who has waited for long since the last look."""
        before, self._waited_s = self._waited_s, {}
        for name, pid in self._running():
            longest_s = 0.0
            for thread, waited_s in waits_of(pid).items():
                self._waited_s[pid, thread] = waited_s
                longest_s = max(longest_s, waited_s - before.get((pid, thread), waited_s))
            if longest_s >= _WAIT_S_MIN:
                self._journal.note(KEPT_WAITING, name, f"{longest_s:.3f}")
