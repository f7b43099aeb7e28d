"""Clients and workers of a cluster: processes that write histories (``chaos.client``, ``chaos.worker``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.history import Failed, Invoke, Line, Ok, Registered, Started, Tail, Writer, read
from chaos.hosts import Host
from chaos.processes import LIMIT_S, HarnessError, Process

__all__ = ["BOTH", "ClientLoad", "ClientProcess", "Historian", "WorkerLoad", "WorkerProcess"]

BOTH = ("primary", "backup")


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a client does: at most ``threads`` calls outstanding, ``rate`` calls a second.

    Each ``bound_every``-th call is not idempotent (0: all are).
    """

    threads: int = 8
    rate: float = 80.0
    deadline_s: float = 5.0
    bound_every: int = 5


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker does: ``credit`` requests at once, each taking ``work_ms`` on average."""

    credit: int = 1
    work_ms: float = 5.0


class Historian(Process):
    """A process that writes a history, and in ``journals`` the product's journal, too."""

    def __init__(
        self,
        name: str,
        host: Host,
        module: Sequence[str],
        options: Sequence[str],
        folder: Path,
        journal: Writer,
        journals: Path | None = None,
    ) -> None:
        self.history_path = folder / f"{name}.jsonl"
        argv = (sys.executable, "-m", *module, "--name", name, "--history", str(self.history_path), *options)
        if journals is not None:
            argv = (*argv, "--journal", str(journals))
        super().__init__(name, host, argv, folder=folder, journal=journal)
        self._lines_before = 0

    def start(self) -> None:
        """Start it; its history goes on."""
        self._lines_before = len(self.history())
        super().start()

    def wait_for_start(self) -> None:
        """Wait until the present run can be asked to end in good order."""
        self.wait_until(
            lambda: any(isinstance(line, Started) for line in self.history_of_run()), "has started"
        )

    def history_of_run(self) -> list[Line]:
        """What the present run has written so far."""
        return self.history()[self._lines_before :]

    def history(self) -> list[Line]:
        """Everything it has written so far, in all its runs."""
        return read(self.history_path)

    def wait_for(self, what: str, happened: Callable[[Line], bool], count: int = 1) -> None:
        """Wait until so many lines more fulfil a condition, counted from now on."""
        tail = Tail(self.history_path)
        tail.more()
        found = 0

        def look() -> bool:
            nonlocal found
            found += sum(map(happened, tail.more()))
            return found >= count or not self.is_running

        self.wait_until(look, what)
        if found < count:
            raise HarnessError(f"{self.name} ended; expected: {what}\n{self.trouble()}")


class ClientProcess(Historian):
    """``python -m chaos.client``."""

    def __init__(
        self,
        name: str,
        host: Host,
        endpoints: Sequence[str],
        *,
        folder: Path,
        journal: Writer,
        journals: Path | None = None,
        load: ClientLoad | None = None,
        module: Sequence[str] = ("chaos.client",),
    ) -> None:
        load = load or ClientLoad()
        options = (
            *("--endpoints", ",".join(endpoints), "--threads", str(load.threads), "--rate", str(load.rate)),
            *("--deadline", str(load.deadline_s), "--bound-every", str(load.bound_every)),
        )
        super().__init__(name, host, module, options, folder, journal, journals)
        self.load = load

    def wait_for_answers(self, count: int) -> None:
        """Wait until so many calls that *begin* from now on have been answered."""
        tail = Tail(self.history_path)
        before = {line.id for line in tail.more() if isinstance(line, Invoke)}
        answered = 0

        def look() -> bool:
            nonlocal answered
            answered += sum(isinstance(line, Ok) and line.id not in before for line in tail.more())
            return answered >= count or not self.is_running

        self.wait_until(look, f"{count} more answers")
        if answered < count:
            raise HarnessError(f"{self.name} ended; expected: {count} more answers\n{self.trouble()}")

    def wait_for_ends(self, count: int) -> None:
        """Wait until so many calls more have ended in any way."""
        self.wait_for(f"{count} more ends of calls", lambda line: isinstance(line, Ok | Failed), count)

    def finish(self) -> None:
        """Begin no more calls, and wait until those that are outstanding have ended, and the process."""
        self.terminate()
        self.wait_exit(LIMIT_S + self.load.deadline_s)


class WorkerProcess(Historian):
    """``python -m chaos.worker``."""

    def __init__(
        self,
        name: str,
        host: Host,
        endpoints: Sequence[str],
        *,
        folder: Path,
        journal: Writer,
        journals: Path | None = None,
        load: WorkerLoad | None = None,
        module: Sequence[str] = ("chaos.worker",),
    ) -> None:
        load = load or WorkerLoad()
        options = (
            *("--endpoints", ",".join(endpoints)),
            *("--credit", str(load.credit), "--work-ms", str(load.work_ms)),
        )
        super().__init__(name, host, module, options, folder, journal, journals)

    def wait_registered(self, nodes: int) -> None:
        """Wait until the present run is on the lists of so many nodes."""

        def count() -> bool:
            run = self.history_of_run()
            return len({line.endpoint for line in run if isinstance(line, Registered)}) >= nodes

        self.wait_until(count, f"registered with {nodes} nodes")
