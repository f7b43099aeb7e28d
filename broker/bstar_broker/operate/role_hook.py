"""The operator's program that runs at each change of state of the node (``hooks.on_role_change``).

    PROGRAM OLD NEW EPOCH REASON

OLD and NEW are states: primary, backup, active, passive, error. BSTAR_PAIR and BSTAR_ROLE in its environment
say which node it is. A thread runs it, one change after the other, so it never holds up the loop. A program
that takes longer than ``hooks.timeout_s`` is killed.
"""

import logging
import os
import queue
import shutil
import signal
import subprocess
import threading
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
        with process:
            try:
                output, _ = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                try:
                    output, _ = process.communicate(timeout=_KILL_S)
                except subprocess.TimeoutExpired as late:
                    # What it started in a session of its own lives, and holds the output open.
                    output = late.output or b""
                _log.error("%s was stopped after %g s: %s", subject, self._timeout_s, _shown(output))
                return
        level = logging.INFO if process.returncode == 0 else logging.ERROR
        _log.log(level, "%s ended with %d: %s", subject, process.returncode, _shown(output))


def _shown(output: bytes) -> str:
    return printable(output.decode(errors="replace").strip(), _OUTPUT_CHARS_MAX)
