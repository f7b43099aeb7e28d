"""What CURVE costs: the same pair with and without keys, in turns, in one run.

    python benchmarks/security.py [--rounds 5] [--storms 3] [--clients 1000]

In each round, of each side: one request at a time (median microseconds), a ``map`` with windows of 100 and
1,000 (requests a second, and the broker's CPU time a request), then kill -9 of the active node (how long the
client waits for its next reply).

Then storms, of each side in turns. *clients*: so many clients, each with a connection of its own to both
nodes, ask in the moment of a kill -9 of the active node; the time until half of them and all of them are
served. *connections*: so many connections that the other node does not know yet come to it after a kill -9;
the time until it has answered each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq
from rich.console import Console
from rich.table import Table

from bstar.security import Security
from bstar.wire import native
from bstar_testing import Node, Pair
from run import child

SINGLES = 2_000
ROWS = 100_000
STORM_S_MAX = 60.0
# Those of the storm of clients: one alone would be slower than the node that it asks.
PROCESSES = 4
_TICKS_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(is_secure: bool) -> Iterator[Pair]:
    """A pair with one worker that echoes."""
    # A busy machine must not look like a dead peer; a killed process is refused, which takes no timeout.
    patient = {"timing.failover_timeout_s": 1.0, "timing.worker_heartbeat_interval_s": 0.3}
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder), settings=patient, is_secure=is_secure) as pair,
    ):
        pair.start()
        pair.start_workers(1, "echo", service="echo", credit=1_000)
        yield pair


def cpu_s(node: Node) -> float:
    """CPU seconds of the node's process so far."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def measure(pair: Pair) -> dict[str, float]:
    """One round of one side."""
    found: dict[str, float] = {}
    active = pair.active()
    with pair.client() as client:
        client.request("echo", b"x")
        times = []
        for _ in range(SINGLES):
            began = time.perf_counter()
            client.request("echo", b"x")
            times.append(time.perf_counter() - began)
        found["request, median us"] = statistics.median(times) * 1e6
        for window in (100, 1_000):
            used, began = cpu_s(active), time.perf_counter()
            for _ in client.map("echo", (b"x" for _ in range(ROWS)), window=window):
                pass
            found[f"map {window}, thousand/s"] = ROWS / (time.perf_counter() - began) / 1e3
            found[f"map {window}, broker us"] = (cpu_s(active) - used) / ROWS * 1e6
        killed = pair.kill_active()
        began = time.perf_counter()
        client.request("echo", b"x")
        found["kill -9, ms"] = (time.perf_counter() - began) * 1e3
    _revive(killed)
    return found


def storm_of_clients(pair: Pair, count: int) -> dict[str, float]:
    """Seconds from kill -9 until half of ``count`` clients, and all of them, have been served."""
    environment = pair.keys.variables("client") if pair.keys is not None else None
    with ExitStack() as stack:
        command = [sys.executable, str(Path(__file__).with_name("storm.py")), ",".join(pair.endpoints)]
        crowds = [
            stack.enter_context(child([*command, str(count // PROCESSES)], environment))
            for _ in range(PROCESSES)
        ]
        for crowd in crowds:
            if _line(crowd) != b"ready\n":
                raise SystemExit("the clients of the storm were not served before it")
        active = pair.active()
        killed_at = time.monotonic()
        active.kill()
        for crowd in crowds:
            assert crowd.stdin is not None
            crowd.stdin.write(b"\n")
            crowd.stdin.flush()
        served_at = sorted(at for crowd in crowds for at in json.loads(_line(crowd)))
    _revive(active)
    assert len(served_at) == count // PROCESSES * PROCESSES
    return {
        f"{count} clients after kill -9: half are served, s": served_at[len(served_at) // 2] - killed_at,
        f"{count} clients after kill -9: all are served, s": served_at[-1] - killed_at,
    }


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _revive(node: Node) -> None:
    node.launch()
    node.wait_for_state("PASSIVE")


def storm_of_connections(pair: Pair, count: int) -> dict[str, float]:
    """Seconds from kill -9 until the other node has answered each of ``count`` new connections."""
    security = pair.keys.security("client") if pair.keys is not None else None
    standby = pair.passive()
    with zmq.Context(io_threads=1) as context:
        context.set(zmq.MAX_SOCKETS, count + 16)
        sockets = [_dealer(context, security, pair) for _ in range(count)]
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        _ask_all(sockets, poller, [pair.active().endpoint] * count)
        killed = pair.kill_active()
        began = time.perf_counter()
        for socket in sockets:
            socket.disconnect(socket.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())
        if security is not None:
            for socket in sockets:
                socket.curve_serverkey = security.servers[pair.nodes.index(standby)]
        _ask_all(sockets, poller, [standby.endpoint] * count)
        took_s = time.perf_counter() - began
        for socket in sockets:
            socket.close(0)
    with pair.client() as client:
        client.request("echo", b"x")  # a PING is no vote: without a request nobody takes over
    _revive(killed)
    return {f"{count} new connections after kill -9: all are answered, s": took_s}


def _dealer(
    context: zmq.Context[zmq.Socket[bytes]], security: Security | None, pair: Pair
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    if security is not None:
        socket.curve_publickey, socket.curve_secretkey = security.key.public, security.key.secret
        socket.curve_serverkey = security.servers[pair.nodes.index(pair.active())]
    return socket


def _ask_all(sockets: list[zmq.Socket[bytes]], poller: zmq.Poller, endpoints: list[str]) -> None:
    for socket, endpoint in zip(sockets, endpoints, strict=True):
        socket.connect(endpoint)
        socket.send_multipart(native.encode_ping())
    waiting = set(sockets)
    until = time.monotonic() + STORM_S_MAX
    while waiting:
        if time.monotonic() > until:
            raise SystemExit(f"{len(waiting)} of {len(sockets)} were not answered in {STORM_S_MAX:g} s")
        for socket, _ in poller.poll(1_000):
            socket.recv_multipart()
            waiting.discard(socket)


def _shown(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storms", type=int, default=3, help="of each kind and side; 0 leaves them out")
    parser.add_argument("--clients", type=int, default=1_000, help="how many a storm has")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load_before = os.getloadavg()[0]
    seen: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    storms: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with running(is_secure=False) as plain, running(is_secure=True) as secure:
        sides = [(False, plain), (True, secure)]
        for number in range(asked.rounds):
            # Who comes second finds another machine, so they come second in turns.
            for is_secure, pair in sides if number % 2 == 0 else sides[::-1]:
                seen[is_secure].append(measure(pair))
            Console(stderr=True).print(f"round {number + 1} of {asked.rounds}")
        for number in range(asked.storms):
            for is_secure, pair in sides if number % 2 == 0 else sides[::-1]:
                found = storm_of_clients(pair, asked.clients) | storm_of_connections(pair, asked.clients)
                storms[is_secure].append(found)
            Console(stderr=True).print(f"storm {number + 1} of {asked.storms}")
    table = Table("medians", "plain", "CURVE", "CURVE / plain")
    for rows in (seen, storms):
        for name in rows[False][0] if rows[False] else ():
            columns = [[each[name] for each in rows[side]] for side in (False, True)]
            # Of the rounds, because a machine that others use is another one in each of them.
            ratio = statistics.median(curve / bare for bare, curve in zip(*columns, strict=True))
            cells = (_shown(statistics.median(column)) for column in columns)
            table.add_row(name, *cells, f"{ratio:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"{os.cpu_count()} cores; load average before: {load_before:.1f}, after: {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
