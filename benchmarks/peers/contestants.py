"""Who takes part: a client process for each way to send requests, and a worker process that echoes them.

A client process (``ask_….py``, run by the interpreter that has its library) reads a line of JSON for each
turn and answers with the latencies that it saw, as figures. It is bounded by the turn's length.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bstar_cli.bench.plan import EchoPlan
from peers import servers
from peers.install import Peers
from run import bstar_pair, bstar_server, child, cpu_seconds, echo_workers, floor_server

HERE = Path(__file__).parent
NATIVE = "echo-native"
# What our worker takes at once; more than one client ever has in flight here.
CREDIT = 10_000
_NATIVE_WAYS = ("HAClient", "AsyncHAClient")
_PLAIN = "MDP/0.2 on pyzmq"
# A contestant's name, the arguments of its client, and with which windows it takes part.
_Way = tuple[str, Sequence[str], Callable[[int], bool]]


def _always(window: int) -> bool:
    return True


@dataclass(frozen=True)
class Figures:
    """One turn: replies per second, latencies, and the server's CPU time per reply."""

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float


class Contestant:
    """One way to send requests. Its client waits between its turns."""

    def __init__(
        self,
        name: str,
        pid: int,
        process: "subprocess.Popen[bytes]",
        takes_part: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.name = name
        self.takes_part = takes_part
        self._pid = pid
        self._process = process

    def turn(self, window: int, seconds: float, size: int) -> Figures:
        """Let the client send for so long. Raises SystemExit if it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        before = cpu_seconds(self._pid)
        stdin.write(json.dumps({"window": window, "seconds": seconds, "size": size}).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit(f"the client of {self.name} ended with {self._process.wait()}")
        told = json.loads(line)
        cpu_s = cpu_seconds(self._pid) - before
        return Figures(
            told["per_second"], told["p50_us"], told["p99_us"], cpu_s * 1e6 / max(1, told["answered"])
        )


def all_of(
    stack: ExitStack, folder: Path, peers: Peers, words: Sequence[str], window_max: int
) -> list[Contestant]:
    """Every contestant that can take part, with servers and workers, which live as long as the stack.

    Of ``words`` a name must contain one; without any all take part.
    """
    hall = _Hall(stack, folder, peers, words, window_max)
    hall.add_ours()
    hall.add_ours_with_curve()
    hall.add_floor()
    hall.add_nats()
    hall.add_rabbitmq()
    return hall.found


class _Hall:
    """Starts servers, workers and clients. ``found`` are the contestants so far."""

    def __init__(
        self, stack: ExitStack, folder: Path, peers: Peers, words: Sequence[str], window_max: int
    ) -> None:
        self.found: list[Contestant] = []
        self._stack = stack
        self._folder = folder
        self._peers = peers
        self._words = words
        self._credit = max(CREDIT, window_max)

    def _is_wanted(self, *names: str) -> bool:
        return not self._words or any(word in name.casefold() for word in self._words for name in names)

    def _client(
        self, python: str, script: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        process = self._stack.enter_context(child([python, str(HERE / script), *arguments], environment))
        wait_for_ready(process, script)
        return process

    def _add_ours(self, ways: Sequence[_Way], pid: int, environment: Mapping[str, str] | None = None) -> None:
        for name, arguments, takes_part in ways:
            if self._is_wanted(name):
                process = self._client(sys.executable, "ask_bstar.py", *arguments, environment=environment)
                self.found.append(Contestant(name, pid, process, takes_part))

    def _start_worker(self, endpoint: str, environment: Mapping[str, str] | None = None) -> None:
        plan = EchoPlan([endpoint], NATIVE, "native", "sync", self._credit)
        text = msgspec.json.encode(plan).decode()
        command = [sys.executable, "-m", "bstar_cli.bench.echo", text]
        wait_for_ready(self._stack.enter_context(child(command, environment)), "our worker")

    def add_ours(self) -> None:
        """A node without keys, and the ways to ask it."""
        names = [f"bstar {name}" for name in (*_NATIVE_WAYS, "AsyncHAClient.request", _PLAIN)]
        if not self._is_wanted(*names):
            return
        pid, endpoint = self._stack.enter_context(bstar_server())
        self._start_worker(endpoint)
        self._stack.enter_context(echo_workers(endpoint, 1))
        sync, asynchronous, by_request, plain = names
        # With one in flight map is request with more around it; who has one sends it with request.
        ways: list[_Way] = [
            (sync, ("sync", endpoint, NATIVE), _always),
            (asynchronous, ("async", endpoint, NATIVE), _always),
            (by_request, ("async-request", endpoint, NATIVE), lambda window: window > 1),
            (plain, ("raw", endpoint, "echo"), _always),
        ]
        self._add_ours(ways, pid)

    def add_ours_with_curve(self) -> None:
        """The same native ways with a node that has keys."""
        names = [f"bstar {name}, CURVE" for name in _NATIVE_WAYS]
        if not self._is_wanted(*names):
            return
        pair = self._stack.enter_context(bstar_pair(is_secure=True))
        assert pair.keys is not None
        endpoint = pair.primary.endpoint
        self._start_worker(endpoint, pair.keys.variables("worker"))
        ways: list[_Way] = [
            (name, (way, endpoint, NATIVE), _always)
            for name, way in zip(names, ("sync", "async"), strict=True)
        ]
        self._add_ours(ways, pair.primary.pid, pair.keys.variables("client"))

    def add_floor(self) -> None:
        """The least that a broker does."""
        name = f"floor: {_PLAIN}"
        if self._is_wanted(name):
            pid, endpoint = self._stack.enter_context(floor_server())
            self._stack.enter_context(echo_workers(endpoint, 1))
            self._add_ours([(name, ("raw", endpoint, "echo"), _always)], pid)

    def add_nats(self) -> None:
        """NATS, without and with TLS."""
        peers = self._peers
        if not (peers.nats_server and peers.nats_python and self._is_wanted("nats")):
            return
        loops = ("asyncio", "uvloop") if peers.has_uvloop else ("asyncio",)
        with leaving_out("NATS"):
            pid, url = self._stack.enter_context(servers.nats(peers.nats_server, self._folder))
            self._add_nats(peers.nats_python, pid, (url,), loops, "")
        with leaving_out("NATS with TLS"):
            certificate = servers.make_certificate(self._folder)
            secure = servers.nats(peers.nats_server, self._folder, certificate)
            pid, url = self._stack.enter_context(secure)
            self._add_nats(peers.nats_python, pid, (url, str(certificate.path)), loops, ", TLS")

    def _add_nats(
        self, python: str, pid: int, server: Sequence[str], loops: Sequence[str], suffix: str
    ) -> None:
        url, *trusted = server
        for loop in loops:
            self._client(python, "echo_nats.py", url, f"echo-{loop}", loop, *trusted)
            for mode in ("request", "inbox"):
                name = f"NATS nats-py {mode}{' uvloop' if loop == 'uvloop' else ''}{suffix}"
                process = self._client(python, "ask_nats.py", url, f"echo-{loop}", loop, mode, *trusted)
                self.found.append(Contestant(name, pid, process))

    def add_rabbitmq(self) -> None:
        """RabbitMQ, direct reply-to."""
        peers = self._peers
        if not (peers.rabbitmq_server and peers.epmd and peers.pika_python and self._is_wanted("rabbitmq")):
            return
        with leaving_out("RabbitMQ"):
            server = servers.rabbitmq(peers.rabbitmq_server, peers.epmd, self._folder)
            pid, url = self._stack.enter_context(server)
            self._client(peers.pika_python, "echo_pika.py", url, "echo")
            process = self._client(peers.pika_python, "ask_pika.py", url, "echo")
            self.found.append(Contestant("RabbitMQ pika", pid, process))


@contextmanager
def leaving_out(name: str) -> Iterator[None]:
    """If this server does not come up, say so and go on without it."""
    try:
        yield
    except servers.NotUp as error:
        print(f"left out: {name} ({error})", flush=True)


def wait_for_ready(process: "subprocess.Popen[bytes]", name: str) -> None:
    """Wait until a child says that it is ready. Raises SystemExit if it does not."""
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise SystemExit(f"{name} did not become ready")
