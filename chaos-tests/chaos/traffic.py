"""Clients and workers of a cluster: processes that write histories (``chaos.client``, ``chaos.worker``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bstar_testing.hosts import Host
from bstar_testing.pairs import ROLES, Pair
from bstar_testing.processes import LIMIT_S, Process
from chaos.history import Failed, Invoke, Line, Ok, Registered, Started, Tail, read

BOTH: tuple[str, ...] = ROLES


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a client does: at most ``threads`` calls outstanding, ``rate`` calls a second.

    Each ``bound_every``-th call is not idempotent (0: all are). Each request is ``padding_bytes`` longer than
    its body, by a second frame.
    """

    threads: int = 8
    rate: float = 80.0
    deadline_s: float = 5.0
    bound_every: int = 5
    padding_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker does: ``credit`` requests at once, each taking ``work_ms`` on average."""

    credit: int = 1
    work_ms: float = 5.0


class Historian(Process):
    """A process of a pair that writes a history, and the product's journal if the pair keeps journals.

    ``principal`` is whose key it has in a pair with keys.
    """

    def __init__(
        self,
        name: str,
        pair: Pair,
        principal: str,
        module: Sequence[str],
        options: Sequence[str],
        host: Host | None,
    ) -> None:
        self.history_path = pair.folder / f"{name}.jsonl"
        argv = (sys.executable, "-m", *module, "--name", name, "--history", str(self.history_path), *options)
        if pair.journals is not None:
            argv = (*argv, "--journal", str(pair.journals))
        keys = pair.keys.variables(principal) if pair.keys is not None else None
        super().__init__(name, argv, folder=pair.folder, host=host, note=pair.note, environment=keys)
        self._lines_before = 0

    def launch(self) -> None:
        """Start it; its history goes on."""
        self._lines_before = len(self.history())
        super().launch()

    def wait_ready(self) -> None:
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
            return found >= count

        self.wait_until(look, what)


class ClientProcess(Historian):
    """``python -m chaos.client``."""

    def __init__(
        self,
        name: str,
        pair: Pair,
        *,
        host: Host | None = None,
        nodes: Sequence[str] = BOTH,
        load: ClientLoad | None = None,
        module: Sequence[str] = ("chaos.client",),
    ) -> None:
        self.load = load or ClientLoad()
        options = (
            *("--endpoints", ",".join(pair.endpoints_of(name, nodes))),
            *("--threads", str(self.load.threads), "--rate", str(self.load.rate)),
            *("--deadline", str(self.load.deadline_s), "--bound-every", str(self.load.bound_every)),
            *("--padding-bytes", str(self.load.padding_bytes)),
        )
        super().__init__(name, pair, "client", module, options, host)

    def wait_for_answers(self, count: int) -> None:
        """Wait until so many calls that *begin* from now on have been answered."""
        before = {line.id for line in self.history() if isinstance(line, Invoke)}
        self.wait_for(
            f"{count} more answers", lambda line: isinstance(line, Ok) and line.id not in before, count
        )

    def wait_for_ends(self, count: int) -> None:
        """Wait until so many calls more have ended in any way."""
        self.wait_for(f"{count} more ends of calls", lambda line: isinstance(line, Ok | Failed), count)

    def finish(self) -> None:
        """Begin no more calls, and wait until those in flight have ended, and the process."""
        self.terminate()
        self.wait_exit(LIMIT_S + self.load.deadline_s)


class WorkerProcess(Historian):
    """``python -m chaos.worker``."""

    def __init__(
        self,
        name: str,
        pair: Pair,
        *,
        host: Host | None = None,
        nodes: Sequence[str] = BOTH,
        load: WorkerLoad | None = None,
        module: Sequence[str] = ("chaos.worker",),
    ) -> None:
        load = load or WorkerLoad()
        options = (
            *("--endpoints", ",".join(pair.endpoints_of(name, nodes))),
            *("--credit", str(load.credit), "--work-ms", str(load.work_ms)),
        )
        super().__init__(name, pair, "worker", module, options, host)

    def wait_registered(self, nodes: int) -> None:
        """Wait until the present run is on the lists of so many nodes."""

        def count() -> bool:
            run = self.history_of_run()
            return len({line.endpoint for line in run if isinstance(line, Registered)}) >= nodes

        self.wait_until(count, f"registered with {nodes} nodes")
