"""Hosts in network namespaces: each has an interface and a loopback of its own and is on no other network.

    with Namespace.create("primary") as namespace:
        subprocess.run(namespace.command(["ip", "address"]), check=True)

A namespace's name tells which process made it, by process id and start time, so that what a killed run left
behind is found and removed by the next one, and what another run is using is let alone. Nothing is done to
the network of the machine itself: no interface, no address and no route is added there. How hosts reach each
other is the business of ``chaos.wire``.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from chaos.lock import exclusive

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_FOLDER = Path("/run/netns")
_LOCK = Path("/run/lock/bstar-chaos-leftovers")
_NAME = re.compile(r"bstar-chaos-(?P<pid>\d+)-(?P<started>\d+)-\d+-.+")
_PORT_FIRST = 5001
# It ends a hang; nothing is measured by it.
_GONE_S_MAX = 10.0

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)


def what_is_missing() -> str | None:
    """What this machine lacks for hosts in namespaces; None if nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is missing (Debian: apt-get install iproute2)"
    if shutil.which("nft") is None:
        return "the command nft is missing (Debian: apt-get install nftables)"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun cannot be opened: {error.strerror}"
    try:
        Namespace.create("probe").close()
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr.strip()}"
    return None


def enter(namespace: Path) -> None:
    """Move the calling thread, and no other, into the network namespace of this file."""
    file = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(file, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    finally:
        os.close(file)


class Namespace:
    """One network namespace with its loopback up. ``close`` kills what runs in it and removes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = _FOLDER / name

    @classmethod
    def create(cls, label: str) -> Self:
        """Make a new one. ``label`` is for people who look at a list of them."""
        pid = os.getpid()
        namespace = cls(f"bstar-chaos-{pid}-{_started(pid)}-{next(_numbers)}-{label}")
        _run("ip", "netns", "add", namespace.name)
        atexit.register(namespace.close)
        namespace.ip("link", "set", "lo", "up")
        return namespace

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` in here, as the same process."""
        return ["ip", "netns", "exec", self.name, *argv]

    def ip(self, *arguments: str) -> None:
        """Run ``ip`` on the interfaces in here."""
        _run("ip", "-n", self.name, *arguments)

    def inside(self, call: Callable[[], T]) -> T:
        """Call in a thread that is in here. A socket made by it stays in here, whoever uses it afterwards."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                enter(self.path)
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
                future.set_exception(error)
            else:
                future.set_result(result)

        thread = threading.Thread(target=run, name=f"inside {self.name}")
        thread.start()
        thread.join()
        return future.result()

    def close(self) -> None:
        """Kill what runs in here and remove it. Idempotent."""
        atexit.unregister(self.close)
        if not self.path.exists():
            return
        until = time.monotonic() + _GONE_S_MAX
        while pids := [int(pid) for pid in _run("ip", "netns", "pids", self.name).split()]:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name} cannot be removed, processes {pids} do not end")
            for pid in pids:
                _kill(pid)
            time.sleep(0.01)
        _run("ip", "netns", "delete", self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_leftovers() -> list[str]:
    """Remove the namespaces of runs that are no more, and what still runs in them; their names.

    Of several processes that call it at once each namespace is removed by one.
    """
    removed = []
    with exclusive(_LOCK):
        for name in [path.name for path in _FOLDER.iterdir()] if _FOLDER.is_dir() else []:
            match = _NAME.fullmatch(name)
            if match is not None and _started(int(match["pid"])) != int(match["started"]):
                Namespace(name).close()
                removed.append(name)
    return removed


class NetnsHost:
    """A ``chaos.hosts.Host`` in a namespace. ``address`` is that of the interface which a wire gives it."""

    control_address = "127.0.0.1"

    def __init__(self, name: str, namespace: Namespace, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self._ports = itertools.count(_PORT_FIRST)

    def ports(self, count: int) -> list[int]:
        """The next ports. Nobody else is in the namespace who could take them."""
        return list(itertools.islice(self._ports, count))

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on this host, as the same process."""
        return self.namespace.command(argv)

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A TCP connection made from this host itself: whatever its network is like, 127.0.0.1 answers."""
        return self.namespace.inside(lambda: socket.create_connection(address, timeout_s))

    def close(self) -> None:
        """Kill what runs on this host and remove it. Idempotent."""
        self.namespace.close()


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was: with the id it names a process for good."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    return int(status.rpartition(")")[2].split()[19])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise
