"""The child processes of a job manager: each runs one job at a time and is replaced when it ends.

Each child has one end of a stream socket; the reactor waits for the other ends. End of stream is the end of
the child, so nothing polls. A job that exceeds its time ends with its process, and the next one begins in a
new process. Children are sessions of their own: a signal from the terminal reaches the manager alone.
"""

import contextlib
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from bstar.base.closing import Closing
from bstar.net.agenda import Timer
from bstar.net.reactor import Reactor
from bstar.wire.emq_jobs import encode_result
from bstar_client.emq.child import LENGTH_BYTES, Setup, framed

T = TypeVar("T")

_log = logging.getLogger("bstar.emq")

# The published default (PROTOCOLS.md 0.5): a child that leaks does not grow for ever.
JOBS_OF_A_PROCESS_MAX = 1_024
# A child that ends before its first job is replaced after a pause, or a broken installation costs a CPU.
_PAUSE_S = 1.0
# A child that waits for a job takes it at once. One that does not within this time is stuck.
_SEND_S = 1.0
_READ_BYTES = 1 << 20
# A child imports what its parent can import, from the same places.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from bstar_client.emq.child import main; main(int(sys.argv[1]))"
)


class _Child(Generic[T]):
    """One process and what it does. ``timer`` ends its job."""

    def __init__(self, process: "subprocess.Popen[bytes]", stream: socket.socket) -> None:
        self.process = process
        self.stream = stream
        self.received = bytearray()
        self.is_ready = False
        self.jobs = 0
        self.job: T | None = None
        self.timer: Timer | None = None


class Processes(Closing, Generic[T]):
    """``count`` child processes that call modules of ``allow``.

    ``on_free(now)``: a process is there and runs nothing. ``on_died(now)``: such a process is gone.
    ``on_result(job, result, now)``: a job has ended; ``on_free`` follows when its process takes another one.
    ``ends`` counts why children ended: timeout, died, retired.
    """

    def __init__(
        self,
        reactor: Reactor,
        count: int,
        allow: tuple[str, ...],
        *,
        on_free: Callable[[float], None],
        on_died: Callable[[float], None],
        on_result: Callable[[T, bytes, float], None],
    ) -> None:
        self.ends: Counter[str] = Counter()
        self._reactor = reactor
        self._path = json.dumps(sys.path)
        self._setup = msgspec.json.encode(Setup(allow))
        self._on_free = on_free
        self._on_died = on_died
        self._on_result = on_result
        self._children: set[_Child[T]] = set()
        self._is_closed = False
        for _ in range(count):
            self._start(reactor.now())

    def run(self, job: T, message: bytes, timeout_s: float, now: float) -> None:
        """Give ``message`` to a free process; there is one. ``timeout_s`` may be infinite."""
        child = next(child for child in self._children if child.is_ready and child.job is None)
        child.job = job
        child.jobs += 1
        if timeout_s < math.inf:
            child.timer = self._reactor.call_at(now + timeout_s, lambda now: self._on_timeout(child, now))
        try:
            child.stream.sendall(framed(message))
        except OSError as error:
            self._end(child, "died", f"the job's process took no job: {error}", now)

    def close(self) -> None:
        """Kill all children and wait for their ends. Idempotent."""
        self._is_closed = True
        for child in list(self._children):
            self._remove(child)

    def _start(self, now: float) -> None:
        if self._is_closed:
            return
        try:
            process, ours = self._spawn()
        except OSError as error:
            # No descriptor, no process, no memory: perhaps later.
            _log.warning("no process for jobs: %s", error)
            self.ends["died"] += 1
            self._reactor.call_at(now + _PAUSE_S, self._start)
            return
        child: _Child[T] = _Child(process, ours)
        self._children.add(child)
        self._reactor.add_source(ours.fileno(), lambda now: self._on_readable(child, now))
        # Its pipe is empty: this does not wait.
        with contextlib.suppress(OSError):
            ours.sendall(framed(self._setup))

    def _spawn(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        """A new process and our end of its stream. OSError."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_S)
        command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), self._path]
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
        except OSError:
            ours.close()
            raise
        return process, ours

    def _on_readable(self, child: _Child[T], now: float) -> None:
        try:
            data = child.stream.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self._end(child, "died", "", now)
            return
        child.received += data
        end = LENGTH_BYTES + int.from_bytes(child.received[:LENGTH_BYTES], "big")
        if len(child.received) < max(LENGTH_BYTES, end):
            return
        message = bytes(child.received[LENGTH_BYTES:end])
        del child.received[:end]
        self._on_message(child, message, now)

    def _on_message(self, child: _Child[T], message: bytes, now: float) -> None:
        job, child.job = child.job, None
        if child.timer is not None:
            child.timer.cancel()
        child.is_ready = True
        if job is not None:
            self._on_result(job, message, now)
        if child.jobs >= JOBS_OF_A_PROCESS_MAX:
            self.ends["retired"] += 1
            self._remove(child)
            self._start(now)
        else:
            self._on_free(now)

    def _on_timeout(self, child: _Child[T], now: float) -> None:
        self._end(child, "timeout", "TimeoutError", now)

    def _end(self, child: _Child[T], why: str, text: str, now: float) -> None:
        """The child is of no use any more: answer for its job, and start another one."""
        if child not in self._children:
            return
        self.ends[why] += 1
        code = self._remove(child)
        if child.job is not None:
            text = text or f"the job's process ended before the job did: exit code {code}"
            self._on_result(child.job, encode_result(text), now)
        elif child.is_ready:
            self._on_died(now)
        if child.jobs:
            self._start(now)
        else:
            self._reactor.call_at(now + _PAUSE_S, self._start)

    def _remove(self, child: _Child[T]) -> int:
        """Kill the child with what it started; its exit code, negative for a signal."""
        self._children.discard(child)
        if child.timer is not None:
            child.timer.cancel()
        self._reactor.remove(child.stream.fileno())
        # One that has ended keeps its exit code. Its group is that of its process id until it is waited for.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.stream.close()
        return child.process.wait()
