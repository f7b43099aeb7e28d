"""The operator's program that runs at each change of state of the node (``hooks.on_role_change``).

    PROGRAM OLD NEW EPOCH REASON

OLD and NEW are states: primary, backup, active, passive, error. BSTAR_PAIR and BSTAR_ROLE in its environment
say which node it is. A thread runs it, one change after the other, so it never holds up the loop. A program
that takes longer than ``hooks.timeout_s`` is killed.
"""

import logging
import os
import queue
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bstar import star
from bstar.base.closing import Closing
from bstar.base.printable import printable
from bstar.errors import ConfigurationError
from bstar.settings import Settings

_log = logging.getLogger("bstar.hook")

# A program that hangs for its whole time while the role moves: more changes than these are no news.
_CHANGES_MAX = 100
_OUTPUT_CHARS_MAX = 2_000
_OUTPUT_BYTES_MAX = 4 * _OUTPUT_CHARS_MAX
_READ_BYTES = 64 << 10
# What the system needs to end a killed program.
_KILL_S = 1.0
_END = ()


class RoleHook(Closing):
    """Runs the program of ``settings`` for each StateChanged. ``epoch`` tells the node's own epoch.

    Raises ConfigurationError if the program cannot be executed.
    """

    def __init__(self, settings: Settings, epoch: Callable[[], int]) -> None:
        program = settings.hooks.on_role_change
        assert program is not None
        found = shutil.which(program)
        if found is None:
            raise ConfigurationError(
                f"hooks.on_role_change: {program} is no program that this user may execute: give its path, "
                "and make it executable (chmod +x)"
            )
        self._program = str(Path(found).resolve())
        self._timeout_s = settings.hooks.timeout_s
        self._environ = {**os.environ, "BSTAR_PAIR": settings.pair, "BSTAR_ROLE": settings.role}
        self._epoch = epoch
        self._changes: queue.Queue[tuple[str, ...]] = queue.Queue(_CHANGES_MAX)
        # Those that could not be killed, or do not end.
        self._left: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._run, name="bstar-hook", daemon=True)
        self._thread.start()

    def observe(self, output: star.Output) -> None:
        """Let the thread run the program if the output is a change of state."""
        if not isinstance(output, star.StateChanged):
            return
        change = (output.old.name.lower(), output.new.name.lower(), str(self._epoch()), output.reason)
        try:
            self._changes.put_nowait(change)
        except queue.Full:
            _log.error("%s is %d changes behind: it misses %s", self._program, _CHANGES_MAX, " ".join(change))

    def close(self) -> None:
        """Wait until the program has run for the last change, for ``hooks.timeout_s`` at most. Idempotent."""
        with suppress(queue.Full):
            self._changes.put_nowait(_END)
        self._thread.join(self._timeout_s + _KILL_S)
        if self._thread.is_alive():
            _log.error("%s: the node ends before it has run for each change", self._program)

    def _run(self) -> None:
        while (change := self._changes.get()) is not _END:
            self._call(change)

    def _call(self, change: tuple[str, ...]) -> None:
        self._left = [each for each in self._left if each.poll() is None]
        old, new, *_ = change
        subject = f"{self._program} for {old} -> {new}"
        try:
            # A group of its own: what it started ends with it, and Ctrl-C in a terminal does not reach it.
            process = subprocess.Popen(  # noqa: S603  # the operator's own program
                [self._program, *change],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            _log.error("%s could not be started: %s", subject, error)
            return
        output = _Output(process)
        with output.file:
            if not output.read_to_end(self._timeout_s):
                what = "was stopped"
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except PermissionError as error:
                    what = f"runs on as another user ({error.strerror})"
                # What it started in a session of its own may live, and hold the output open.
                output.read_to_end(_KILL_S)
                if process.poll() is None:
                    self._left.append(process)
                _log.error("%s %s after %g s: %s", subject, what, self._timeout_s, _shown(output.kept))
                return
        level = logging.INFO if process.returncode == 0 else logging.ERROR
        _log.log(level, "%s ended with %d: %s", subject, process.returncode, _shown(output.kept))


class _Output:
    """What a program writes: ``kept`` are its first bytes, the rest is dropped."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self._process = process
        self.file = process.stdout
        self.kept = b""

    def read_to_end(self, timeout_s: float) -> bool:
        """Read until the program has ended, and all that write for it; False if that takes too long."""
        until = time.monotonic() + timeout_s
        ready = select.poll()
        ready.register(self.file)
        while (left_s := until - time.monotonic()) > 0 and ready.poll(left_s * 1_000):
            data = os.read(self.file.fileno(), _READ_BYTES)
            if not data:
                return self._has_ended(until)
            self.kept += data[: _OUTPUT_BYTES_MAX - len(self.kept)]
        return False

    def _has_ended(self, until: float) -> bool:
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def _shown(output: bytes) -> str:
    return printable(output.decode(errors="replace").strip(), _OUTPUT_CHARS_MAX)
