"""One process on a host: start it, wait for it, freeze it, kill it, and never leave it behind.

Each process leads a process group of its own, and signals go to that group alone. Its output goes to a log
file, which later runs of the same process continue. A process may import what the test may import.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from bstar_testing.hosts import Host, LoopbackHost
from bstar_testing.reaper import REAPER

# It ends a hang. No test measures it.
LIMIT_S = 60.0
_LOOK_S = 0.01
_LINES_SHOWN = 40

NoteTaker = Callable[[str, str, str], object]
"""Takes notes of what the harness does: (what, name of the process, text)."""


@contextmanager
def stopped(leader: int) -> Iterator[None]:
    """SIGSTOP for the length of the block, for a process group that another process has started, such as a
    node's front. If the harness is killed meanwhile, so is the group: it cannot see that its node has ended.
    """
    REAPER.began(leader)
    try:
        os.kill(leader, signal.SIGSTOP)
        yield
    finally:
        with suppress(ProcessLookupError):  # the node may have killed it
            os.kill(leader, signal.SIGCONT)
        REAPER.ended(leader)


class HarnessError(Exception):
    """An expected event did not come, or a process ended that should live."""


def wait_until(
    happened: Callable[[], object], what: str, *, limit_s: float = LIMIT_S, look_s: float = _LOOK_S
) -> float:
    """Ask until the answer is true. Returns the seconds it took; raises HarnessError after ``limit_s``."""
    began = time.monotonic()
    while not happened():
        if time.monotonic() > began + limit_s:
            raise HarnessError(f"did not come within {limit_s:g} s: {what}")
        time.sleep(look_s)
    return time.monotonic() - began


def ignore_note(what: str, target: str, text: str) -> None:
    """The note taker of a harness that keeps no notes."""


def environment() -> dict[str, str]:
    """What processes inherit: the test's import path, and no BSTAR_… of the user's own brokers."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    return inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}


class Process:
    """A command that may start again after it has ended. ``with`` starts it and kills it at the end.

    ``argv`` is the command without what the host adds. Standard input is a pipe that closes when this
    process ends; ``close_input`` closes it earlier.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        folder: Path,
        host: Host | None = None,
        note: NoteTaker = ignore_note,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.host: Host = host or LoopbackHost()
        self.argv = tuple(argv)
        self.log_path = folder / f"{name}.log"
        self._note = note
        self._extra = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self.is_paused = False
        self.is_noted_running = False
        """True from a start to the end that the harness saw. A process that ended by itself shows by it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.trouble())
        self.close()

    # --- looking ------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True while there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended (negative: the signal); None while it runs."""
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        """The output of all runs."""
        return self._log_from(0)

    def log_since_start(self) -> str:
        """The output of the present run."""
        return self._log_from(self._log_offset)

    def _log_from(self, offset: int) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(offset)
            return file.read().decode("utf-8", "replace")

    def rss_bytes(self) -> int:
        """The resident memory, as the kernel counts it."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise HarnessError(f"the kernel does not say how much memory {self.name} has")

    @property
    def children(self) -> list[int]:
        """The processes that it has started and that run."""
        found: list[int] = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
                found += map(int, (task / "children").read_text("ascii").split())
        return found

    def wait_until(self, happened: Callable[[], object], what: str, *, limit_s: float = LIMIT_S) -> float:
        """Wait for something about this process; an error at once if it ends before.

        The error shows the end of its log.
        """

        def look() -> bool:
            is_running = self.is_running  # looked at first: the last words of a process count
            if happened():
                return True
            if not is_running:
                raise HarnessError(f"{self.name} ended with {self.exit_code}; expected: {what}")
            return False

        try:
            return wait_until(look, f"{self.name}: {what}", limit_s=limit_s)
        except HarnessError as error:
            error.add_note(self.trouble())
            raise

    def wait_for_log(self, text: str) -> None:
        """Wait until the present run has written this text."""
        self.wait_until(lambda: text in self.log_since_start(), f"writes {text!r}")

    def trouble(self) -> str:
        """How the process is, where its log is, and the end of that log: for the text of a failure."""
        lines = self.log().splitlines()[-_LINES_SHOWN:]
        how = "runs" if self.is_running else f"ended with {self.exit_code}"
        return "\n".join([f"{self.name} {how}; the end of {self.log_path}:", *lines])

    # --- life and death -----------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process; returns at once."""
        assert not self.is_running, f"{self.name} runs already"
        self.is_paused = False
        self.is_noted_running = True
        self.close_input()
        with self.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
                self.host.command(self.argv),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment() | self._extra,
                start_new_session=True,  # Ctrl-C is for the test, which ends its processes in order
            )
        REAPER.began(self.pid)
        self.note("start", f"pid {self.pid}")

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the process is ready. A plain process is ready at once."""

    def kill(self) -> None:
        """SIGKILL: it has no chance to say goodbye. Returns when it is gone."""
        self._signal(signal.SIGKILL, "kill")
        self.wait_exit()

    def terminate(self) -> None:
        """SIGTERM: please end. Returns at once; ``stop`` waits."""
        self._signal(signal.SIGTERM, "terminate")

    def stop(self) -> int:
        """SIGTERM, and wait for the end; returns the exit code."""
        self.terminate()
        return self.wait_exit()

    def wait_exit(self, limit_s: float = LIMIT_S) -> int:
        """Wait for the end; returns the exit code (negative: the signal)."""
        assert self._process is not None, f"{self.name} was never started"
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{self.name} did not end within {limit_s:g} s\n{self.trouble()}") from None
        self.is_paused = False
        if self.is_noted_running:
            self.is_noted_running = False
            REAPER.ended(self.pid)
            self.note("exit", str(code))
        return code

    def pause(self) -> None:
        """SIGSTOP; returns when the kernel has stopped the process."""
        self._signal(signal.SIGSTOP, "pause")
        self.is_paused = True
        self.wait_until(self._is_stopped, "stands still")
        self.note("paused")

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self._signal(signal.SIGCONT, "resume")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the process for the length of the block: it lives and does nothing."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def send_signal(self, number: signal.Signals) -> None:
        """Send any signal to this process."""
        self._signal(number, number.name)

    def close(self) -> None:
        """Kill the process in any state. Idempotent."""
        if self.is_running:
            self.kill()
        elif self.is_noted_running:
            self.wait_exit()
        self.close_input()

    def close_input(self) -> None:
        """Close its standard input."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals, what: str) -> None:
        assert self._process is not None, f"{self.name} was never started"
        if self._process.poll() is not None:
            raise HarnessError(f"{what}: {self.name} has ended already\n{self.trouble()}")
        # Noted before: nothing that the signal causes may seem to come earlier.
        self.note(what)
        os.killpg(self._process.pid, number)
        # Noted after, too: if this process was kept waiting in between, the notes tell for how long.
        self.note(f"{what} sent")

    def _is_stopped(self) -> bool:
        with suppress(FileNotFoundError):
            status = Path(f"/proc/{self.pid}/stat").read_text()
            return status.rpartition(")")[2].split()[0] in "Tt"
        return False

    def note(self, what: str, text: str = "") -> object:
        """Write down what is done to this process."""
        return self._note(what, self.name, text)
