"""The HTTP front of a node: a child process that the node starts, keeps alive, and takes along when it ends.

The child is a client of the pair. A slow HTTP client costs the node's loop nothing, and a defect of the front
or of its libraries ends the child alone. The node holds the listening socket, so a caller waits while a child
is replaced.
"""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, Self

import msgspec

from bstar.base.printable import duration
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError
from bstar.settings import Settings
from bstar_broker.core.snapshot import FrontState
from bstar_cli.http_front.plan import bind, node_plan, url_of
from bstar_cli.logs import EventLog

# The pause before a child that died is started again doubles, up to the maximum.
_PAUSE_MIN_S: Final = 0.2
_PAUSE_MAX_S: Final = 30.0
# A child that has served for so long begins with the shortest pause again.
_SERVED_S: Final = 60.0
# The child bounds its own end; one that does not end is killed.
_END_S: Final = 15.0
# It reports each second, and is ready two seconds after its start.
_SILENT_S: Final = 10.0
_EXTRA: Final = ("starlette", "uvicorn", "websockets")


class NodeFront:
    """A context manager. ConfigurationError if the front cannot be served as the configuration says."""

    def __init__(self, settings: Settings) -> None:
        missing = next((name for name in _EXTRA if find_spec(name) is None), None)
        if missing is not None:
            raise ConfigurationError(
                f"fronts.http.bind: {missing} is not installed: pip install '.[http]' in a clone of bstar"
            )
        assert settings.fronts.http.bind is not None
        self._log = EventLog("bstar.http")
        self._listener = bind(settings.fronts.http.bind, "fronts.http.bind")
        try:
            self._plan = node_plan(settings, self._listener.fileno())
        except BaseException:
            self._listener.close()
            raise
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        # What the child has reported last, and when.
        self._reported = FrontState("http", {}), time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="bstar-http", daemon=True)

    @property
    def url(self) -> str:
        """Where HTTP clients connect."""
        return url_of(self._listener, self._plan.plan)

    def state(self) -> FrontState:
        """What the child has reported. It has an error if that is too long ago."""
        state, at = self._reported
        if (silent_s := time.monotonic() - at) < _SILENT_S:
            return state
        error = f"its process has not reported for {duration(silent_s)}"
        return msgspec.structs.replace(state, error=error)

    def __enter__(self) -> Self:
        self._thread.start()
        self._log.info("http front", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over.set()
            child = self._child
            if child is not None:
                child.terminate()
        self._thread.join(_END_S)
        if child is not None and self._thread.is_alive():
            child.kill()
            self._thread.join()
        self._listener.close()

    def _keep(self) -> None:
        pause_s = _PAUSE_MIN_S
        while not self._is_over.is_set():
            began_at = time.monotonic()
            try:
                why = self._serve_once()
            except OSError as error:  # no memory for a process, or it ended before it had read its plan
                why = str(error)
            if time.monotonic() - began_at >= _SERVED_S:
                pause_s = _PAUSE_MIN_S
            if not self._is_over.is_set():
                self._log.warning("the HTTP front ended", why=why, starts_in_s=pause_s)
            self._is_over.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _serve_once(self) -> str:
        """One child, until it ends. How it ended."""
        with self._lock:
            if self._is_over.is_set():
                return "the node ends"
            # A session of its own: Ctrl-C is for the node, which ends the child.
            child = subprocess.Popen(
                [sys.executable, "-m", "bstar_cli.http_front.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._listener.fileno(),),
                start_new_session=True,
            )
            self._child = child
        # It ends with its standard input.
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(msgspec.json.encode(self._plan) + b"\n")
            child.stdin.flush()
            for line in child.stdout:
                with suppress(*UNDECODABLE):  # what a library prints is no report
                    self._reported = msgspec.json.decode(line, type=FrontState), time.monotonic()
            return f"status {child.wait()}"
