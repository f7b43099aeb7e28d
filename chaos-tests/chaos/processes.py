"""One process on a host: started, awaited, stopped, frozen, killed, and never left behind.

Each process leads a process group of its own, and signals go to that group and nowhere else. What it says on
stderr goes to a log file of its own, which later runs of the same process continue. What is done to it is
noted in the harness's history.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chaos.history import Note, Writer
from chaos.hosts import Host
from chaos.reaper import REAPER

__all__ = ["LIMIT_S", "HarnessError", "Process", "wait_until"]

# It ends a hang; nothing is measured by it.
LIMIT_S = 45.0
_LOOK_S = 0.01
PACKAGE = Path(__file__).resolve().parent.parent


class HarnessError(Exception):
    """What should have come did not come, or a process ended that should live."""


def wait_until(happened: Callable[[], object], what: str, *, limit_s: float = LIMIT_S) -> float:
    """Wait for something that is observed by asking; returns how long it took."""
    began = time.monotonic()
    while not happened():
        if time.monotonic() > began + limit_s:
            raise HarnessError(f"did not come within {limit_s:g} s: {what}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began


def _environment() -> dict[str, str]:
    """What the user's shell sets for brokers is not for these; the chaos package is importable in them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    paths = [str(PACKAGE), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


class Process:
    """A command that may be started again after it has ended. ``argv`` without what the host adds."""

    def __init__(
        self,
        name: str,
        host: Host,
        argv: Sequence[str],
        *,
        folder: Path,
        journal: Writer,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.argv = tuple(argv)
        self.log_path = folder / f"{name}.log"
        self._journal = journal
        self._extra = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self.is_paused = False
        self.is_noted_running = False
        """Whether its start was noted and its end was not: a process that ended by itself shows by it."""

    # --- looking ------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def log_since_start(self) -> str:
        """What the present run has written."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(self._log_offset)
            return file.read().decode("utf-8", "replace")

    def wait_until(self, happened: Callable[[], object], what: str, *, limit_s: float = LIMIT_S) -> float:
        """Wait for something about this process; what it said last is in the error's text."""
        try:
            return wait_until(happened, f"{self.name}: {what}", limit_s=limit_s)
        except HarnessError as error:
            error.add_note(self.trouble())
            raise

    def trouble(self) -> str:
        """The end of the log, for a failure's text."""
        lines = self.log_path.read_text("utf-8", "replace").splitlines() if self.log_path.exists() else []
        how = "runs" if self.is_running else f"ended with {self.exit_code}"
        return "\n".join([f"{self.name} {how}; the end of {self.log_path}:", *lines[-15:]])

    # --- life and death -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.is_running, f"{self.name} runs already"
        self.is_paused = False
        self.is_noted_running = True
        self._close_stdin()
        with self.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                self.host.command(self.argv),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment() | self._extra,
                start_new_session=True,
            )
        REAPER.began(self.pid)
        self.note("start", f"pid {self.pid}")

    def kill(self) -> None:
        """SIGKILL: it has no chance to say goodbye. Returns when it is gone."""
        self._signal(signal.SIGKILL, "kill")
        self.wait_exit()

    def terminate(self) -> None:
        """SIGTERM: please end. Returns at once; ``wait_exit`` waits."""
        self._signal(signal.SIGTERM, "terminate")

    def wait_exit(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; the exit code (negative: the signal)."""
        assert self._process is not None
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
        """SIGSTOP; returns when the kernel has stopped it."""
        self._signal(signal.SIGSTOP, "pause")
        self.is_paused = True
        self.wait_until(self._is_stopped, "stands still")
        self.note("paused")

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self._signal(signal.SIGCONT, "resume")

    def close(self) -> None:
        """Kill it, whatever state it is in. Idempotent."""
        if self.is_running:
            self.kill()
        elif self.is_noted_running:
            self.wait_exit()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals, what: str) -> None:
        assert self._process is not None, f"{self.name} was never started"
        if self._process.poll() is not None:
            raise HarnessError(f"{what}: {self.name} has ended already\n{self.trouble()}")
        # Noted before: nothing that the signal causes may seem to come earlier.
        self.note(what)
        os.killpg(self._process.pid, number)
        # Noted after as well: if this process was kept waiting in between, it is known for how long.
        self.note(f"{what} sent")

    def _is_stopped(self) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] in "Tt"

    def note(self, what: str, text: str = "") -> float:
        """Write down what is done to this process; when it was."""
        return self._journal.write(Note(at=0.0, what=what, target=self.name, text=text))
