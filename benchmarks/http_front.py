"""What the HTTP front costs: beside the same ASGI server with an empty handler, and to native calls.

    python benchmarks/http_front.py [--rounds 5] [--seconds 2] [--connections 32] [--slow 1000] [--credit 100]

In each round, in turns: requests a second of an empty handler and of ``POST /call/echo``, over as many
kept connections, and the CPU time of the server's process for each request. Then the p99 of native calls, one
at a time, alone and while so many slow HTTP clients have connections: they send a head byte by byte, or
do not read what they asked for. The worker holds ``--credit`` requests at once: with 1 the nodes and the
worker pass on one request at a time, which costs as much CPU time as the front.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send

from bstar_cli.http_front.plan import HttpPlan, bind
from bstar_cli.http_front.server import config_of
from bstar_client import HAClient
from bstar_client.asgi import FrontSettings
from bstar_testing import Pair, Process, pair, wait_until

HTTP = "fronts.http.bind"
BODY = b"x" * 100
SINGLES = 1_000
# What slow clients ask for is answered then, and waits for its readers.
SETTLE_S = 3.0
_TICKS_S = os.sysconf("SC_CLK_TCK")


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers each request with as many bytes as the echo does, and does nothing else."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
    await send({"type": "http.response.body", "body": BODY})


def serve_empty(port: int) -> None:
    """The same server, in the same way."""
    with bind(f"127.0.0.1:{port}", "--serve") as listener:
        uvicorn.Server(config_of(empty, HttpPlan(FrontSettings(), 2_000), Counter())).run([listener])


class _Connection(asyncio.Protocol):
    """Sends a request, and the next one when its response has come."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._read = b""
        self.count = 0
        self.is_answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(BODY):  # the last of a response
            if not self._read.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"not answered: {self._read!r}")
            self._read = b""
            self.count += 1
            self.is_answered.set()
            self.transport.write(self._message)


def load(port: int, connections: int, seconds: float) -> float:
    """Requests a second."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        head = f"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        made = [
            await loop.create_connection(lambda: _Connection(head + BODY), "127.0.0.1", port)
            for _ in range(connections)
        ]
        for _, each in made:
            await each.is_answered.wait()
        began, before = time.monotonic(), sum(each.count for _, each in made)
        await asyncio.sleep(seconds)
        rate = (sum(each.count for _, each in made) - before) / (time.monotonic() - began)
        for transport, _ in made:
            transport.abort()
        return rate

    return asyncio.run(run())


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def p99_us(client: HAClient) -> float:
    """Of calls one at a time."""
    taken = []
    for _ in range(SINGLES):
        began = time.perf_counter()
        client.request("echo", BODY)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[int(0.99 * SINGLES)] * 1e6


def be_slow(port: int, count: int) -> None:
    """Half of them send a head byte by byte; half ask for much and do not read. It says when they do."""
    with ExitStack() as open_sockets:
        sockets = []
        for number in range(count):
            each = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            head = b"POST /call/echo HTTP/1.1\r\nHost: h\r\n"
            if number % 2:
                each.sendall(head + b"X-Slow: ")
                sockets.append(each)
            else:
                each.sendall(head + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
        time.sleep(SETTLE_S)
        print("slow", flush=True)
        for each in cycle(sockets):
            each.send(b"x")
            time.sleep(0.002)


def compare(running: Pair, arguments: argparse.Namespace) -> None:
    """Print the figures of all rounds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        empty_port = free.getsockname()[1]
    process: Process = running.start_process("empty", [sys.executable, __file__, "--serve", str(empty_port)])
    port = int(running.http_urls[0].rpartition(":")[2])
    for each in (port, empty_port):
        wait_until(lambda each=each: _answers(each), "the server answers")  # type: ignore[misc]
    front_pid = running.primary.children[0]
    rates: dict[str, list[float]] = {"empty": [], "front": []}
    costs: dict[str, list[float]] = {"empty": [], "front": []}
    quantiles: dict[str, list[float]] = {"alone": [], "slow": []}
    with running.client(timeout=60) as client:
        client.request("echo", BODY)
        for number in range(arguments.rounds):
            for name, at, pid in (("empty", empty_port, process.pid), ("front", port, front_pid)):
                before = cpu_s(pid)
                rate = load(at, arguments.connections, arguments.seconds)
                rates[name].append(rate)
                costs[name].append((cpu_s(pid) - before) / (rate * arguments.seconds) * 1e6)
            quantiles["alone"].append(p99_us(client))
            argv = [sys.executable, __file__, "--be-slow", str(port), "--slow", str(arguments.slow)]
            slow = running.start_process(f"slow-{number}", argv)
            slow.wait_for_log("slow")
            quantiles["slow"].append(p99_us(client))
            slow.kill()
            last = [table[name][-1] for table in (rates, costs) for name in ("empty", "front")]
            alone, beside = quantiles["alone"][-1], quantiles["slow"][-1]
            print(
                f"round {number + 1}: empty {last[0]:,.0f}/s, front {last[1]:,.0f}/s; CPU {last[2]:.0f} "
                f"and {last[3]:.0f} µs a request; p99 of native calls {alone:,.0f} µs alone, "
                f"{beside:,.0f} µs beside {arguments.slow} slow clients"
            )
    for word, name, base, table in (
        ("requests a second, front/empty", "front", "empty", rates),
        ("CPU a request, front/empty", "front", "empty", costs),
        ("p99 of native calls, slow/alone", "slow", "alone", quantiles),
    ):
        ratios = [one / other for one, other in zip(table[name], table[base], strict=True)]
        print(f"{word}: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def _answers(port: int) -> bool:
    try:
        return load(port, 1, 0.05) >= 0
    except OSError:
        return False


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--credit", type=int, default=100, help="of the worker")
    parser.add_argument("--be-slow", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_slow is not None:
        be_slow(arguments.be_slow, arguments.slow)
    if arguments.serve is not None:
        serve_empty(arguments.serve)
        return
    with pair(workers=0, doors=[HTTP]) as running:
        running.start_workers(1, "echo", service="echo", credit=arguments.credit)
        compare(running, arguments)


if __name__ == "__main__":
    main()
