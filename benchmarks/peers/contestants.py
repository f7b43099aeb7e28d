"""Who takes part: a client process for each way to send requests, and a worker process that echoes them.

A client process (``ask_….py``, run by the interpreter that has its library) reads a line of JSON for each
turn and answers with the latencies that it saw, as figures. It is bounded by the turn's length.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bstar_cli.bench.plan import EchoPlan
from peers import servers
from peers.install import Peers
from run import bstar_server, child, cpu_seconds, echo_workers, floor_server

HERE = Path(__file__).parent
NATIVE = "echo-native"
# What our worker takes at once; more than one client ever has in flight here.
CREDIT = 10_000


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
    """Every contestant that can take part, with servers and workers, which live as long as the stack."""

    def is_wanted(*names: str) -> bool:
        return not words or any(word in name.casefold() for word in words for name in names)

    def client(python: str, script: str, *arguments: str) -> "subprocess.Popen[bytes]":
        process = stack.enter_context(child([python, str(HERE / script), *arguments]))
        _wait_for_ready(process, script)
        return process

    def ours(*arguments: str) -> "subprocess.Popen[bytes]":
        return client(sys.executable, "ask_bstar.py", *arguments)

    found: list[Contestant] = []
    names = ["HAClient", "AsyncHAClient", "AsyncHAClient.request", "MDP/0.2 on pyzmq"]
    if is_wanted(*(f"bstar {name}" for name in names)):
        pid, endpoint = stack.enter_context(bstar_server())
        plan = EchoPlan([endpoint], NATIVE, "native", "sync", max(CREDIT, window_max))
        text = msgspec.json.encode(plan).decode()
        worker = stack.enter_context(child([sys.executable, "-m", "bstar_cli.bench.echo", text]))
        _wait_for_ready(worker, "our worker")
        stack.enter_context(echo_workers(endpoint, 1))
        # With one in flight map is request with more around it; who has one sends it with request.
        ways: list[tuple[str, Sequence[str], Callable[[int], bool]]] = [
            ("HAClient", ("sync", endpoint, NATIVE), lambda _: True),
            ("AsyncHAClient", ("async", endpoint, NATIVE), lambda _: True),
            ("AsyncHAClient.request", ("async-request", endpoint, NATIVE), lambda window: window > 1),
            ("MDP/0.2 on pyzmq", ("raw", endpoint, "echo"), lambda _: True),
        ]
        found += [
            Contestant(f"bstar {name}", pid, ours(*arguments), takes_part)
            for name, arguments, takes_part in ways
            if is_wanted(f"bstar {name}")
        ]
    if is_wanted("floor: MDP/0.2 on pyzmq"):
        pid, endpoint = stack.enter_context(floor_server())
        stack.enter_context(echo_workers(endpoint, 1))
        found.append(Contestant("floor: MDP/0.2 on pyzmq", pid, ours("raw", endpoint, "echo")))
    if peers.nats_server and peers.nats_python and is_wanted("nats"):
        with _leaving_out("NATS"):
            pid, url = stack.enter_context(servers.nats(peers.nats_server, folder))
            for loop in ("asyncio", "uvloop") if peers.has_uvloop else ("asyncio",):
                client(peers.nats_python, "echo_nats.py", url, f"echo-{loop}", loop)
                for mode in ("request", "inbox"):
                    name = f"NATS nats-py {mode}" + (" uvloop" if loop == "uvloop" else "")
                    process = client(peers.nats_python, "ask_nats.py", url, f"echo-{loop}", loop, mode)
                    found.append(Contestant(name, pid, process))
    if peers.rabbitmq_server and peers.epmd and peers.pika_python and is_wanted("rabbitmq"):
        with _leaving_out("RabbitMQ"):
            pid, url = stack.enter_context(servers.rabbitmq(peers.rabbitmq_server, peers.epmd, folder))
            client(peers.pika_python, "echo_pika.py", url, "echo")
            process = client(peers.pika_python, "ask_pika.py", url, "echo")
            found.append(Contestant("RabbitMQ pika", pid, process))
    return found


@contextmanager
def _leaving_out(name: str) -> Iterator[None]:
    """If this server does not come up, say so and go on without it."""
    try:
        yield
    except servers.NotUp as error:
        print(f"left out: {name} ({error})", flush=True)


def _wait_for_ready(process: "subprocess.Popen[bytes]", name: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise SystemExit(f"{name} did not become ready")
