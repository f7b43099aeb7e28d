"""Starts ``python -m bstar_cli`` and what is in this folder by a fork of a process that has imported the
program, in place of an exec.

A thousand tests start nodes, workers and commands, and the imports of a node take 0.6 s of CPU. A zygote
(Android's word) imports once. For each start it forks twice: its child ends at once, and the test process, a
subreaper for that moment, becomes the parent of the grandchild, as it is after an exec. ``subprocess`` sees
no difference: pid, pipes, session and exit status are the same.

An exec remains for all else: other programs and interpreter options, a command within another one
(``prlimit``, ``ip netns exec``), inherited descriptors. ``BSTAR_TEST_EXEC=1`` in the environment of this
process or of the command asks for one.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import ctypes
import gc
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_COMMAND: Final = "bstar_cli"
_FOLDER: Final = str(Path(__file__).parent) + os.sep
# Modules of this folder.
_SUPPORT: Final = "support."
_EXEC: Final = "BSTAR_TEST_EXEC"
# What the usual commands import, some of it late.
_MODULES: Final = (
    *("bstar.pair.arbiter", "bstar_broker.server", "bstar_broker.store.disk", "bstar_broker.supervision"),
    *(f"bstar_cli.{name}" for name in ("main", "serve", "arbiter", "worker", "call", "durable", "status")),
    *(f"bstar_cli.{name}" for name in ("services", "orders", "history", "epoch", "configuration", "run")),
)
# The interpreter, the C library and the loader read variables with these beginnings once, at the start.
_EARLY: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
_LATE: Final = frozenset(("PYTHONPATH", "PYTHONUNBUFFERED"))
_PR_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_BYTES_MAX: Final = 1 << 20
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_fork_exec = _posixsubprocess.fork_exec


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_EARLY) and name not in _LATE
    }


def _is_ours(first: str = "", second: str = "") -> bool:
    if first == "-m":
        return second == _COMMAND or second.startswith(_SUPPORT)
    return first.startswith(_FOLDER)


def _be_subreaper(is_one: int) -> None:
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, is_one, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


# --- the test process ---------------------------------------------------------------------------------------


class Zygote:
    """The zygote of this process. It starts with the first command, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork_exec(self, *arguments: Any) -> int:
        """What ``subprocess`` calls to start a process, with the arguments of CPython's own; its pid."""
        argv, executables, close_fds, kept, cwd, variables, stdin, _, _, stdout, _, stderr = arguments[:12]
        _, _, _, is_session_leader, *others = arguments[12:22]
        command = [os.fsdecode(each) for each in argv]
        is_usual = (
            _is_ours(*command[1:3])
            and executables[0] == os.fsencode(sys.executable)
            and (bool(close_fds), len(kept)) == (True, 1)
            # The group, the user and the mask of the new process, and what it calls before the exec.
            and others == [-1, None, None, None, -1, None]
        )
        if not is_usual:
            return _fork_exec(*arguments)
        environment = dict(os.environ)
        if variables is not None:
            pairs = (os.fsdecode(each).partition("=") for each in variables)
            environment = {name: value for name, _, value in pairs}
        is_early = _early(environment) != _early(dict(os.environ))
        if is_early or _EXEC in environment or _EXEC in os.environ:
            return _fork_exec(*arguments)
        request = {
            "argv": command[1:],
            "cwd": str(Path.cwd()) if cwd is None else os.fsdecode(cwd),
            "environment": environment,
            "is_session_leader": bool(is_session_leader),
        }
        files = [given if given != -1 else own for own, given in enumerate((stdin, stdout, stderr))]
        return self._start(json.dumps(request).encode(), files)

    def _start(self, request: bytes, files: list[int]) -> int:
        with self._lock:
            if self._link is None:
                self._link = self._launch()
                atexit.register(self._close)
            _be_subreaper(1)
            try:
                socket.send_fds(self._link, [request], files)
                pid = int(self._link.recv(64) or 0)
            finally:
                _be_subreaper(0)
        if not pid:
            raise OSError("the zygote started no process; its standard error says why")
        return pid

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, __file__, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return ours

    def _close(self) -> None:
        assert self._link is not None
        assert self._process is not None
        self._link.close()
        self._process.wait()


def pytest_configure() -> None:
    """As a plugin of pytest: from now on ``subprocess`` starts the command by forks."""
    subprocess._fork_exec = Zygote().fork_exec  # type: ignore[attr-defined]


# --- the zygote ---------------------------------------------------------------------------------------------


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Start what is asked for until the test process ends. In each new process it returns the request."""
    while True:
        content, files, _, _ = socket.recv_fds(link, _REQUEST_BYTES_MAX, 3)
        if not content:
            return None
        ready, report = os.pipe()
        if (child := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            link.close()
            os.close(ready)
            request: dict[str, Any] = json.loads(content)
            _become(request, files)
            os.write(report, b"%d" % os.getpid())
            os.close(report)
            return request
        os.waitpid(child, 0)
        for number in (*files, report):
            os.close(number)
        link.send(os.read(ready, 64))
        os.close(ready)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take over what an exec would have set up."""
    if request["is_session_leader"]:
        os.setsid()
    for number, given in enumerate(files):
        os.dup2(given, number)
        os.close(given)
    os.chdir(request["cwd"])
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name), bool(environment.get("PYTHONUNBUFFERED")))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    argv: list[str] = request["argv"]
    is_script = argv[0] != "-m"
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path(argv[0]).parent) if is_script else request["cwd"], *paths, *_OWN_PATH]
    sys.argv[:] = argv if is_script else ["-m", *argv[2:]]


def _stream(number: int, like: io.TextIOWrapper, is_unbuffered: bool) -> io.TextIOWrapper:
    buffering = 0 if is_unbuffered and number else -1
    buffer: Any = open(number, "wb" if number else "rb", buffering, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or buffer.isatty(),
        write_through=not buffering,
    )


if __name__ == "__main__":
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # What the interpreter adds itself: neither this file's folder nor PYTHONPATH.
    _OWN_PATH = [each for each in sys.path[1:] if each not in inherited]
    for module in _MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()
    if (request := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        # What ``python FILE`` and ``python -m`` run.
        if sys.argv[0] == "-m":
            runpy._run_module_as_main(request["argv"][1])  # type: ignore[attr-defined]
        else:
            __file__ = sys.argv[0]
            exec(compile(Path(__file__).read_bytes(), __file__, "exec", dont_inherit=True))
