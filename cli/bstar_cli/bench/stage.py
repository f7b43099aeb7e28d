"""The processes of a measurement: clients and echo workers, their turns, and the broker's CPU time.

Everything that is started here is ended here, by its own id. All waiting has a limit, except for that of a
turn, which is the load's own and ends with ``stop``.
"""

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import msgspec

from bstar.errors import BstarError
from bstar.security import Security
from bstar_cli.bench.plan import (
    EchoPlan,
    FromClient,
    Job,
    Progress,
    Ready,
    Side,
    Stop,
    Tally,
    ToClient,
    Trouble,
    Turn,
)
from bstar_client import node_states

_START_S_MAX = 30.0
_LOOK_S = 0.1
_STATUS_S_MAX = 2.0

_decode: Callable[[bytes], FromClient] = msgspec.json.Decoder(FromClient).decode


class BenchError(Exception):
    """The measurement cannot be made; ``code`` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Child:
    """A process that speaks lines on its standard output and ends with its standard input."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - the stage closes it
        # A session of its own: Ctrl-C is for the command, which still wants the figures.
        self.process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A file: nothing reads it while the process runs, and a full pipe would stop that.
            stderr=self.errors,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._pending = b""

    def lines(self) -> list[bytes]:
        """What it said since; raises BenchError if it has ended."""
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if data == b"":
            raise BenchError(f"{self.name} ended with {self.process.wait()}: {self._last_words()}", 1)
        *lines, self._pending = (self._pending + (data or b"")).split(b"\n")
        return lines

    def tell(self, message: ToClient) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading from it says so
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
            self.process.stdin.flush()

    def close_input(self) -> None:
        """Ask it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def _last_words(self) -> str:
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else "it said nothing"


class Stage:
    """Clients and echo workers of all sides. A context manager: it ends every process that it started.

    ``is_stopped`` is asked while something is awaited; once it says yes, turns end early.
    """

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped
        self._children: list[_Child] = []
        self._clients: dict[str, list[_Child]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close_input()
        until = time.monotonic() + 3.0
        for child in self._children:
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            assert child.process.stdout is not None
            child.process.stdout.close()
            child.errors.close()

    def start_echo(self, plans: Sequence[EchoPlan]) -> None:
        """Start these workers, and wait until a node has each of them on its list."""
        waiting = []
        for plan in plans:
            arguments = ("bstar_cli.bench.echo", msgspec.json.encode(plan).decode())
            waiting.append(self._add(_Child(f"the echo worker of {plan.service}", *arguments)))
        for child, line in self._said(waiting, limit_s=_START_S_MAX, what="no node accepted the echo worker"):
            if line == b"ready" and child in waiting:
                waiting.remove(child)

    def start_clients(self, side: Side, jobs: Sequence[Job]) -> None:
        """Start the clients of a side; each makes one request. BenchError if one is not answered."""
        clients = [self._add(_Child(f"a client of {side.name}", "bstar_cli.bench.client")) for _ in jobs]
        self._clients[side.name] = clients
        for client, job in zip(clients, jobs, strict=True):
            client.tell(job)
        waiting = list(clients)
        limit_s = _START_S_MAX + max(job.timeout_s for job in jobs)
        for client, line in self._said(waiting, limit_s=limit_s, what="a client did not become ready"):
            message = _decode(line)
            if isinstance(message, Trouble):
                raise BenchError(_no_answer(side, jobs, message), message.code)
            if isinstance(message, Ready):
                waiting.remove(client)

    def run(self, side: Side, turns: Sequence[Turn], on_progress: Callable[[int], None]) -> list[Tally]:
        """One turn of a side, a Turn for each of its clients; what each of them saw.

        ``on_progress`` gets the replies so far.
        """
        clients = self._clients[side.name]
        for client, turn in zip(clients, turns, strict=True):
            client.tell(turn)
        answered = dict.fromkeys(clients, 0)
        tallies: dict[_Child, Tally] = {}
        waiting = list(clients)
        for client, line in self._said(waiting):
            message = _decode(line)
            if isinstance(message, Progress):
                answered[client] = message.answered
                on_progress(sum(answered.values()))
            elif isinstance(message, Trouble):
                raise BenchError(f"{client.name}: {message.error}: {message.text}", message.code)
            elif isinstance(message, Tally):
                tallies[client] = message
                waiting.remove(client)
        return [tallies[client] for client in clients]

    def _add(self, child: _Child) -> _Child:
        self._children.append(child)
        return child

    def _said(
        self, waiting: list[_Child], *, limit_s: float | None = None, what: str = ""
    ) -> Iterator[tuple[_Child, bytes]]:
        """Lines of these children, until the caller has taken all of them from ``waiting``."""
        until = None if limit_s is None else time.monotonic() + limit_s
        is_stop_sent = False
        with selectors.DefaultSelector() as selector:
            for child in waiting:
                assert child.process.stdout is not None
                selector.register(child.process.stdout, selectors.EVENT_READ, child)
            while waiting:
                if self._is_stopped() and not is_stop_sent:
                    if until is not None:
                        raise KeyboardInterrupt
                    is_stop_sent = True
                    for child in waiting:
                        child.tell(Stop())
                if until is not None and time.monotonic() > until:
                    raise BenchError(f"{what} within {limit_s:g} s", 1)
                for key, _ in selector.select(_LOOK_S):
                    for line in key.data.lines():
                        yield key.data, line


def _no_answer(side: Side, jobs: Sequence[Job], trouble: Trouble) -> str:
    services = ", ".join(sorted({job.service for job in jobs}))
    return (
        f"no worker answers {services} at {', '.join(side.endpoints)}: {trouble.error}: {trouble.text}\n"
        "bstar bench needs nodes (bstar status) and a worker that answers (bstar worker --service NAME); "
        "--echo 1 starts one"
    )


def cpu_of(side: Side) -> dict[str, tuple[str, float] | str]:
    """By pair that is asked for something: whose CPU time it is and how many seconds since its start; if it
    cannot be had a text: why.

    It is that of the active node as ``mmi.state`` tells it (the call counts in the time that it measures), or
    of the process that the side names, which then has one pair.
    """
    if side.pid is not None:
        [pair] = side.pairs_used
        return {pair: _cpu_of_process(side.pid)}
    used = side.pairs_used
    try:
        security = Security.from_environment()
        endpoints = [each for pair in used.values() for each in pair.endpoints]
        reports = node_states(endpoints, _STATUS_S_MAX, security)
    except BstarError as error:
        return dict.fromkeys(used, str(error))
    states = {report.endpoint: report.state for report in reports}
    return {
        name: _cpu_of_active([states[endpoint] for endpoint in pair.endpoints]) for name, pair in used.items()
    }


def _cpu_of_process(pid: int) -> tuple[str, float] | str:
    try:
        # The process's clock, as clock_getcpuclockid(3) finds it: threads that have ended are in it.
        return f"process {pid}", time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError) as error:
        return f"process {pid} cannot be looked at: {error}"


def _cpu_of_active(states: Sequence[dict[str, object] | None]) -> tuple[str, float] | str:
    for state in states:
        try:
            node = msgspec.convert(state, _Node)
        except msgspec.ValidationError:
            continue
        if node.pair.is_active:
            if node.loop is None or node.loop.cpu_s is None:
                return "the active node does not tell its CPU time: it is older than this command"
            return node.pair.node, node.loop.cpu_s
    return "no node tells its state, or none is active; --cpu-of PID measures a process of this machine"


class _Loop(msgspec.Struct, frozen=True):
    cpu_s: float | None = None


class _Pair(msgspec.Struct, frozen=True):
    node: str
    is_active: bool


class _Node(msgspec.Struct, frozen=True):
    pair: _Pair
    loop: _Loop | None = None
