"""``bstar run``: an App in several processes, with a parent that keeps them alive.

The parent imports nothing of the app. Each child (``run_child``) imports it, serves it and writes its figures
to a socket twice a second; the parent reads them to learn whether the child is registered and how much it has
done, and shows them as metrics. A child ends when the socket's other end does, so none outlives its parent.
"""

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
import typer

from bstar.errors import ConfigurationError
from bstar_cli import exits
from bstar_cli.logs import EventLog, LogOptions
from bstar_cli.options import ServedHttp, refuse
from bstar_client.core.figures import WorkerFigures

if TYPE_CHECKING:
    from prometheus_client import Metric

    from bstar.net.http_endpoint import HttpEndpoint, HttpPlace
    from bstar.net.http_server import Page

# The pause before a child that died is started again doubles with each death in a row, up to the maximum. A
# child that has served for so long starts a new row.
_PAUSE_MIN_S = 0.2
_PAUSE_MAX_S = 30.0
_SERVED_S = 10.0
# A new child that no node has registered by then does not replace the old one. To load a model takes a while.
_REGISTERED_S_MAX = 120.0
# A process that leaves and has not ended by then is killed. Its workers drain for 10 s.
LEAVES_S_MAX = 60.0
# How often figures, memory and files are looked at.
_LOOK_S = 0.5
_LINE_BYTES_MAX = 4 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"0*([1-9][0-9]{0,11})([KMG])")

_decode = msgspec.json.Decoder(list[WorkerFigures]).decode


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """When a child is replaced by a new one."""

    requests_max: Annotated[
        int | None, typer.Option("--requests-max", min=1, help="Replace a process after so many requests.")
    ] = None
    memory_max: Annotated[
        str | None,
        typer.Option(
            "--memory-max", metavar="SIZE", help="Replace a process that holds more memory, such as 500M."
        ),
    ] = None

    def memory_bytes_max(self) -> int | None:
        """In bytes. Raises ConfigurationError."""
        text = self.memory_max
        if text is None:
            return None
        match = _SIZE.fullmatch(text.upper())
        if match is None:
            raise ConfigurationError(f"--memory-max: {text!r:.80} is no size; write 500M or 2G")
        return int(match[1]) * _UNITS[match[2]]


def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The bstar_client.App to serve.")],
    *,
    processes: Annotated[int, typer.Option("--processes", min=1, max=256, help="How many.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file below the current folder changes.")
    ] = False,
    limits: _Limits,
    http: ServedHttp,
    logs: LogOptions,
) -> None:
    """Serve the services of an App in several processes until SIGTERM or Ctrl-C.

    A process that dies is started again, after a pause that grows. One that has reached a limit is replaced:
    a new one is registered first, then the old one finishes what it executes; one process at a time.
    SIGTERM lets all finish; a second signal ends them at once.

    Exit codes: 0 stopped as asked; 2 wrong usage, or the app cannot be imported; 130 ended at once.

    Examples:

        bstar run shop:app

        bstar run shop:app --processes 4 --requests-max 10000 --memory-max 500M --http 127.0.0.1:9412

        bstar run shop:app --reload
    """
    logs.configure()
    module, separator, name = app.partition(":")
    refuse(not (module and separator and name), f"{app!r} names no app: write MODULE:APP, such as shop:app")
    command = [app, logs.log_level, logs.log_format]
    supervisor = _Supervisor(command, processes, limits.requests_max, limits.memory_bytes_max())
    place = http.place()
    watched = _Files() if reload else None
    with supervisor, _served(supervisor, place) as pages:
        raise typer.Exit(supervisor.run(watched, {} if pages is None else {"http": pages.url}))


class _Child:
    """One process that serves the app. ``slot`` counts from 1."""

    def __init__(self, command: Sequence[str], slot: int) -> None:
        self.slot = slot
        self.is_warned = False
        self.began_at = time.monotonic()
        self.figures: list[WorkerFigures] = []
        self.is_leaving = False
        self.leaves_at = 0.0
        self._pending = b""
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C is for the parent, which lets the children finish.
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "bstar_cli.run_child", *command, str(slot), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours

    def read(self) -> None:
        """Take what it has reported. The last report counts."""
        with suppress(BlockingIOError, ConnectionError):
            while block := self.socket.recv(1 << 16):
                self._pending += block
        *lines, self._pending = self._pending.split(b"\n")
        self._pending = self._pending[:_LINE_BYTES_MAX]
        if lines:
            with suppress(msgspec.MsgspecError):  # the app wrote to our descriptor; the next report is whole
                self.figures = _decode(lines[-1])

    @property
    def is_ready(self) -> bool:
        """True if nodes have registered each of its services."""
        return bool(self.figures) and all(any(each.registered.values()) for each in self.figures)

    @property
    def requests(self) -> int:
        """How many it has ended."""
        return sum(each.counters["requests"] - each.held for each in self.figures)

    @property
    def memory_bytes(self) -> int:
        """Its resident memory; 0 if it has ended."""
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def leave(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Let it finish what it executes and end."""
        self.is_leaving = True
        self.leaves_at = time.monotonic()
        self.process.send_signal(number)

    def close(self) -> None:
        """Release what belonged to a child that has ended."""
        self.socket.close()


class _Slot:
    """The place of one child. ``next`` is the child that is to replace it, ``old`` those that it replaced."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: _Child | None = None
        self.next: _Child | None = None
        self.old: list[_Child] = []
        self.deaths = 0
        self.starts_at = 0.0
        # The change of files of which a new process could not start.
        self.refused_at = 0.0

    @property
    def pause_s(self) -> float:
        """The pause after its last death."""
        # Not beyond the maximum: after 1,024 deaths in a row the power would be an OverflowError.
        return min(_PAUSE_MIN_S * 2.0 ** min(self.deaths - 1, 16), _PAUSE_MAX_S)

    @property
    def children(self) -> list[_Child]:
        """All that run."""
        return [each for each in (self.child, self.next, *self.old) if each is not None]


class _Supervisor:
    """Keeps ``processes`` children alive. A context manager: no child outlives it."""

    def __init__(
        self, command: Sequence[str], processes: int, requests_max: int | None, memory_bytes_max: int | None
    ) -> None:
        self.slots = [_Slot(number + 1) for number in range(processes)]
        # How many processes have ended, by why.
        self.ended: Counter[str] = Counter()
        self._command = command
        self._changed_at = 0.0
        self._requests_max = requests_max
        self._memory_bytes_max = memory_bytes_max
        self._log = EventLog("bstar.run")
        self._signals = 0
        self._was_killed = False
        self._has_served = False
        self._selector = selectors.DefaultSelector()
        self._waking, self._woken = socket.socketpair()

    def __enter__(self) -> Self:
        for each in (self._waking, self._woken):
            each.setblocking(False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children():
            child.process.kill()
            child.process.wait()
            self._forget(child)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._waking.close()
        self._woken.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _children(self) -> list[_Child]:
        return [child for slot in self.slots for child in slot.children]

    # --- the loop -------------------------------------------------------------------------------------------

    def run(self, files: "_Files | None", about: dict[str, str]) -> int:
        """Until a signal, or a child that cannot import the app. The exit code. ``about`` goes to the log."""
        self._log.info("starting", app=self._command[0], processes=len(self.slots), pid=os.getpid(), **about)
        looks_at = 0.0
        while not self._signals:
            now = time.monotonic()
            for slot in self.slots:
                if slot.child is None and now >= slot.starts_at:
                    slot.child = self._start(slot)
            if now >= looks_at:
                looks_at = now + _LOOK_S
                self._look(now)
                if files is not None and (changed := files.changed()):
                    self._log.info("a file has changed: replacing all processes", file=changed)
                    self._changed_at = now
                    for slot in self.slots:
                        slot.starts_at = 0.0
            if not self._reap(is_reloading=files is not None):
                self._stop()
                return exits.USAGE
            self._wait(looks_at - time.monotonic())
        self._log.info("stopping", processes=len(self._children()))
        self._stop()
        self._log.info("stopped")
        return exits.INTERRUPTED if self._was_killed else exits.OK

    def _wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.data is None:
                with suppress(BlockingIOError):
                    while self._waking.recv(4096):
                        pass
            else:
                key.data.read()

    def _stop(self) -> None:
        """Let all children finish. The second signal ends them at once."""
        for child in self._children():
            if not child.is_leaving:
                child.leave()
        while children := self._children():
            if self._signals > 1 and not self._was_killed:
                self._was_killed = True
                for child in children:
                    child.leave(signal.SIGKILL)
            self._kill_overdue(time.monotonic())
            self._reap(is_reloading=True)
            if self._children():
                self._wait(_LOOK_S)

    def _kill_overdue(self, now: float) -> None:
        """Those that leave and do not end: a shutdown function hangs, for example."""
        for child in self._children():
            if child.is_leaving and now >= child.leaves_at + LEAVES_S_MAX:
                self._log.warning(
                    "a process does not end: killing it",
                    process=child.slot,
                    pid=child.process.pid,
                    after_s=LEAVES_S_MAX,
                )
                child.leave(signal.SIGKILL)

    # --- children -------------------------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> _Child | None:
        """A new child; None if the system has no process, memory or descriptor for it: perhaps later."""
        try:
            child = _Child(self._command, slot.number)
        except OSError as error:
            slot.deaths += 1
            slot.starts_at = time.monotonic() + slot.pause_s
            self._log.warning(
                "a process cannot be started", process=slot.number, why=str(error), starts_in_s=slot.pause_s
            )
            return None
        self._selector.register(child.socket, selectors.EVENT_READ, child)
        return child

    def _forget(self, child: _Child) -> None:
        self._selector.unregister(child.socket)
        child.close()
        slot = self.slots[child.slot - 1]
        if slot.child is child:
            slot.child = None
        elif slot.next is child:
            slot.next = None
        else:
            slot.old.remove(child)

    def _reap(self, *, is_reloading: bool) -> bool:
        """Take in the children that have ended. False if the app cannot be imported: there is no use."""
        if os.getpid() == 1:
            self._reap_orphans()
        for child in self._children():
            code = child.process.poll()
            if code is None:
                continue
            slot = self.slots[child.slot - 1]
            was_only, was_next = slot.child is child, slot.next is child
            lived_s = time.monotonic() - child.began_at
            self._forget(child)
            if child.is_leaving:
                continue
            self.ended["died"] += 1
            if was_next and child.began_at >= self._changed_at:
                slot.refused_at = self._changed_at
            if code == exits.USAGE and not self._has_served and not is_reloading:
                return False
            slot.deaths = 1 if child.is_ready and lived_s >= _SERVED_S else slot.deaths + 1
            pause_s = slot.pause_s
            if was_only or was_next:
                slot.starts_at = time.monotonic() + pause_s
            why = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            self._log.warning(
                "a process ended", process=slot.number, pid=child.process.pid, why=why, starts_in_s=pause_s
            )
        return True

    def _reap_orphans(self) -> None:
        """The parent is the first process of its container: what others left behind is its to bury."""
        ours = {child.process.pid for child in self._children()}
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in ours:
                    return  # ``poll`` takes it; the next round sees the others
                os.waitpid(found.si_pid, 0)

    def _look(self, now: float) -> None:
        """Replace the children that have reached a limit, one at a time."""
        self._kill_overdue(now)
        for slot in self.slots:
            if slot.child is not None and slot.child.is_ready:
                self._has_served = True
            coming = slot.next
            if coming is None:
                continue
            if coming.is_ready:
                if slot.child is not None:
                    self.ended["replaced"] += 1
                    slot.old.append(slot.child)
                    slot.child.leave()
                slot.child, slot.next = coming, None
            elif (is_outdated := self._is_outdated(coming)) or now >= coming.began_at + _REGISTERED_S_MAX:
                self._log.warning(
                    "a file has changed again: the new process is replaced before it serves"
                    if is_outdated
                    else "no node has registered a new process: the old one stays",
                    process=slot.number,
                    after_s=round(now - coming.began_at),
                )
                coming.leave()
                slot.old.append(coming)
                slot.next = None
        if any(slot.next is not None or slot.child is None for slot in self.slots):
            return
        # One that does not end delays no change of files: who makes them waits.
        is_leaving = any(slot.old for slot in self.slots)
        # The oldest first, or the first place would always have its turn.
        children = sorted((slot.child for slot in self.slots if slot.child), key=lambda child: child.began_at)
        for child in children:
            slot = self.slots[child.slot - 1]
            if is_leaving and not self._is_outdated(child):
                continue
            if now >= slot.starts_at and (why := self._why_replaced(child)):
                self._log.info("replacing a process", process=child.slot, pid=child.process.pid, why=why)
                slot.next = self._start(slot)
                return

    def _is_outdated(self, child: _Child) -> bool:
        """True if a file has changed since it began."""
        return child.began_at < self._changed_at

    def _why_replaced(self, child: _Child) -> str:
        if self._is_outdated(child) and self._changed_at != self.slots[child.slot - 1].refused_at:
            return "a file has changed"
        if self._requests_max is not None and child.requests >= self._requests_max:
            return f"{child.requests} requests"
        if self._memory_bytes_max is not None and child.memory_bytes > self._memory_bytes_max:
            held = f"{child.memory_bytes >> 20} MiB of memory"
            if time.monotonic() - child.began_at >= _SERVED_S:
                return held
            if not child.is_warned:
                child.is_warned = True
                self._log.warning(
                    "a new process holds more than --memory-max: it is replaced every 10 s",
                    process=child.slot,
                    holds=held,
                )
        return ""


class _Files:
    """The Python files below the current folder, without hidden folders and those of an environment."""

    def __init__(self) -> None:
        self._root = Path.cwd()
        self._seen = dict(self._times())

    def _times(self) -> Iterator[tuple[str, int]]:
        for folder, folders, files in os.walk(self._root):
            folders[:] = [
                each
                for each in folders
                if not each.startswith((".", "__")) and not Path(folder, each, "pyvenv.cfg").exists()
            ]
            for file in files:
                if file.endswith(".py"):
                    with suppress(OSError):  # it has just been removed
                        path = Path(folder, file)
                        yield str(path), path.stat().st_mtime_ns

    def changed(self) -> str:
        """A file that is new, changed or gone since the last time, if there is any."""
        before, self._seen = self._seen, dict(self._times())
        return next((path for path, _ in before.items() ^ self._seen.items()), "")


# --- metrics ------------------------------------------------------------------------------------------------


class _Observed:
    """One service of one slot, as the metrics of a worker see it."""

    def __init__(self, figures: WorkerFigures) -> None:
        self.last = figures

    def figures(self) -> WorkerFigures:
        """The last report."""
        return self.last

    def time_handlers(self) -> None:
        """The child does."""


class _Pages:
    """The probes and metrics of all children."""

    def __init__(self, supervisor: _Supervisor) -> None:
        from bstar.net.http_endpoint import metrics_page, process_registry  # noqa: PLC0415

        self._slots = supervisor.slots
        self._supervisor = supervisor
        self._registry = process_registry()
        self._registry.register(self)
        self._observed: dict[tuple[int, str], _Observed] = {}
        self._show = metrics_page(self._registry)

    def _children(self) -> list[tuple[int, _Child | None]]:
        """Each place and its child at this moment: the parent's thread may forget it in the next one."""
        return [(slot.number, slot.child) for slot in self._slots]

    def collect(self) -> "Iterator[Metric]":
        """What the parent knows of its processes."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        ended = CounterMetricFamily("bstar_run_ended", "Processes that have ended, by why.", labels=["why"])
        for why in ("died", "replaced"):
            ended.add_metric([why], self._supervisor.ended[why])
        held = GaugeMetricFamily(
            "bstar_run_memory_bytes", "Resident memory of each process.", labels=["process"]
        )
        for number, child in self._children():
            if child is not None:
                held.add_metric([str(number)], child.memory_bytes)
        yield from (ended, held)

    def metrics(self, accept: str) -> "Page":
        """Each child's services, by the number of its place."""
        from bstar_client.metrics import register  # noqa: PLC0415

        for number, child in self._children():
            for figures in [] if child is None else list(child.figures):
                known = self._observed.get((number, figures.service))
                if known is None:
                    known = self._observed[number, figures.service] = _Observed(figures)
                    register(known, name=f"{number}/{figures.service}", registry=self._registry)
                known.last = figures
        return self._show(accept)

    def health(self, accept: str) -> "Page":
        """The parent answers; stuck handlers of a child make it ill."""
        from bstar.net.http_server import said  # noqa: PLC0415

        stuck = sum(each.stuck for _, child in self._children() if child for each in child.figures)
        if stuck:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, f"{stuck} handlers are stuck")
        return said(HTTPStatus.OK, "the parent answers")

    def readiness(self, accept: str) -> "Page":
        """Ready if each child is registered."""
        from bstar.net.http_server import said  # noqa: PLC0415

        lacking = [number for number, child in self._children() if child is None or not child.is_ready]
        if lacking:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "processes are not registered", processes=lacking)
        return said(HTTPStatus.OK, "every process is registered")


def _served(
    supervisor: _Supervisor, place: "HttpPlace | None"
) -> "AbstractContextManager[HttpEndpoint | None]":
    if place is None:
        return nullcontext()
    from bstar.net.http_endpoint import HttpEndpoint  # noqa: PLC0415 - most runs serve none

    pages = _Pages(supervisor)
    return HttpEndpoint(
        place.bind,
        {"/healthz": pages.health, "/readyz": pages.readiness, "/metrics": pages.metrics},
        loop="the parent",
    )
