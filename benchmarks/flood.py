"""What a flood of strangers costs the clients of a pair with keys: their latency with and without it.

    python benchmarks/flood.py [--seconds 10] [--rate 2000] [--rounds 3]

A client asks all the time, one request at a time. Meanwhile another process opens connections at a fixed
rate, from an address of its own: to a listener of its own that does nothing (the control: the flooder takes
CPU time, too), and to the node, in turns. Strangers of each kind: silent ones, half a handshake, a HELLO for
another key, garbage, and whole handshakes with a key that is not listed. The table has the medians of the
rounds. Nothing leaves loopback; rate and time are bounded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket as tcp
import statistics
import tempfile
import time
from pathlib import Path

import zmq
from rich.console import Console
from rich.table import Table

from bstar.net.descriptors import raise_limit
from bstar_client import HAClient
from bstar_testing import Pair
from bstar_testing.strangers import KINDS, Flood

KEY = "key not listed"
# Each flood comes from an address of its own, whose budget is whole.
SOURCES = (f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(10_000))
# So long a stranger stays if the node does not end its connection.
STAY_S = 1.0
RATE_MAX, SECONDS_MAX = 5_000, 60.0
WARM_UP_S = 1.0
# A handshake costs the stranger CPU time, too.
KEYS_RATE_MAX = 500


def flood(kind: str, source: str, port: int, server_key: bytes, rate: int, seconds: float) -> None:
    """Open connections at this rate; run in a process of its own."""
    raise_limit()
    if kind == KEY:
        _flood_with_keys(source, port, server_key, min(rate, KEYS_RATE_MAX), seconds)
        return
    strangers = Flood(port, KINDS[kind], source=source)
    began = time.monotonic()
    while (passed_s := time.monotonic() - began) < seconds:
        strangers.open(int(passed_s * rate) - strangers.attempts)
        strangers.turn(STAY_S)
    strangers.close()


def _flood_with_keys(source: str, port: int, server_key: bytes, rate: int, seconds: float) -> None:
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 2 * rate + 16)
        open_: list[tuple[float, zmq.Socket[bytes]]] = []
        began, count = time.monotonic(), 0
        while (passed_s := time.monotonic() - began) < seconds:
            for _ in range(int(passed_s * rate) - count):
                stranger = context.socket(zmq.DEALER)
                stranger.linger, stranger.reconnect_ivl = 0, -1
                stranger.curve_publickey, stranger.curve_secretkey = public, secret
                stranger.curve_serverkey = server_key
                stranger.connect(f"tcp://{source}:0;127.0.0.1:{port}")
                open_.append((passed_s, stranger))
                count += 1
            while open_ and open_[0][0] < passed_s - STAY_S:
                open_.pop(0)[1].close()
            time.sleep(0.005)
        for _, stranger in open_:
            stranger.close()


def latencies_us(client: HAClient, seconds: float) -> list[float]:
    """Of requests one after the other."""
    times = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        client.request("echo", b"x", timeout=30.0)
        times.append((time.perf_counter() - began) * 1e6)
    return times


def measure(
    client: HAClient, arguments: tuple[str, str, int, bytes, int, float] | None, seconds: float
) -> list[float]:
    """p50 and p99 of a client while such a flood runs, or none."""
    process = None
    if arguments is not None:
        process = multiprocessing.get_context("spawn").Process(target=flood, args=arguments)
        process.start()
        latencies_us(client, WARM_UP_S)
    times = sorted(latencies_us(client, seconds))
    if process is not None:
        process.join()
        if process.exitcode:
            raise SystemExit(f"the flooder ended with {process.exitcode}")
    return [times[len(times) // 2], times[len(times) * 99 // 100]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rate", type=int, default=2_000, help="connections a second")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rate, seconds = min(asked.rate, RATE_MAX), min(asked.seconds, SECONDS_MAX)
    kinds = [*KINDS, KEY]
    seen: dict[str, list[list[float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder), is_secure=True) as pair,
        tcp.create_server(("127.0.0.1", 0), backlog=4_096) as nobody,
    ):
        pair.start()
        pair.start_workers(1, "echo", service="echo", credit=100)
        node = pair.active()
        assert pair.keys is not None
        server_key = pair.keys.security("client").servers[pair.nodes.index(node)]
        ports = {"control": nobody.getsockname()[1], "node": int(node.endpoint.rpartition(":")[2])}
        with pair.client() as client:
            latencies_us(client, WARM_UP_S)
            for number in range(asked.rounds):
                seen.setdefault("quiet", []).append(measure(client, None, seconds))
                for kind in kinds:
                    for target, port in ports.items():
                        arguments = (kind, next(SOURCES), port, server_key, rate, seconds + 2 * WARM_UP_S)
                        seen.setdefault(f"{kind} {target}", []).append(measure(client, arguments, seconds))
                Console(stderr=True).print(f"round {number + 1} of {asked.rounds}")
    found = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)]
        for name, rounds in seen.items()
    }
    table = Table("strangers", "p50 control, us", "p50, us", "p99 control, us", "p99, us", "p99 / control")
    table.add_row("none", "", f"{found['quiet'][0]:,.0f}", "", f"{found['quiet'][1]:,.0f}", "")
    for kind in kinds:
        (p50, p99), (p50_control, p99_control) = found[f"{kind} node"], found[f"{kind} control"]
        figures = (p50_control, p50, p99_control, p99)
        table.add_row(kind, *(f"{figure:,.0f}" for figure in figures), f"{p99 / p99_control:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
