"""What CURVE costs: the same pair with and without keys, in turns, in one run.

    python benchmarks/security.py [--rounds 5] [--clients 1000]

For each round and each side: one request at a time (median microseconds), a ``map`` with windows of 100 and
1,000 (requests a second, and the broker's CPU time a request), then kill -9 of the active node (the longest
wait of a client that asks all the time). At the end a storm: so many clients, each with a connection of its
own, lose the active node at once; the time until the other node has answered all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from rich.console import Console
from rich.table import Table

from bstar.security import Security
from bstar.wire import native
from bstar_testing import Node, Pair

SINGLES = 2_000
ROWS = 100_000
STORM_S_MAX = 60.0
_TICKS_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(is_secure: bool) -> Iterator[Pair]:
    """A pair with one worker that echoes."""
    with tempfile.TemporaryDirectory() as folder, Pair(Path(folder), is_secure=is_secure) as pair:
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
        pair.kill_active()
        began = time.perf_counter()
        client.request("echo", b"x")
        found["kill -9, ms"] = (time.perf_counter() - began) * 1e3
    active.launch()
    active.wait_for_state("PASSIVE")
    return found


def storm(pair: Pair, count: int) -> float:
    """Seconds from kill -9 until the other node has answered each of ``count`` connections."""
    security = pair.keys.security("client") if pair.keys is not None else None
    standby = pair.passive()
    with zmq.Context(io_threads=1) as context:
        context.set(zmq.MAX_SOCKETS, count + 16)
        sockets = [_dealer(context, security, pair) for _ in range(count)]
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        _ask_all(sockets, poller, [pair.active().endpoint] * count)
        pair.kill_active()
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
    return took_s


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--clients", type=int, default=1_000, help="connections of the storm; 0 leaves it out"
    )
    asked = parser.parse_args()
    seen: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    storms: dict[bool, float] = {}
    with running(is_secure=False) as plain, running(is_secure=True) as secure:
        for number in range(asked.rounds):
            for is_secure, pair in ((False, plain), (True, secure)):
                seen[is_secure].append(measure(pair))
            Console(stderr=True).print(f"round {number + 1} of {asked.rounds}")
        if asked.clients:
            storms = {
                is_secure: storm(pair, asked.clients) for is_secure, pair in ((False, plain), (True, secure))
            }
    table = Table("medians", "plain", "CURVE", "CURVE / plain")
    for name in seen[False][0]:
        plain_value, secure_value = (
            statistics.median(each[name] for each in seen[side]) for side in (False, True)
        )
        table.add_row(
            name, f"{plain_value:,.1f}", f"{secure_value:,.1f}", f"{secure_value / plain_value:.2f}"
        )
    if storms:
        name = f"storm of {asked.clients}, s"
        table.add_row(
            name, f"{storms[False]:.2f}", f"{storms[True]:.2f}", f"{storms[True] / storms[False]:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
