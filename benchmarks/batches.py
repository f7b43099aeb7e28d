"""What batches bring: HAClient.map to a Python worker, beside plain MDP/0.2 with one worker on one broker.

    python benchmarks/batches.py                 windows 1, 10, 100 and 1,000, medians of 5 rounds
    python benchmarks/batches.py --rounds 9 --seconds 1 --windows 100 1000

Bodies have 16 octets. Four ways take turns on the broker, round by round, so that their ratios hold on a
noisy machine:

    MDP/0.2     a raw DEALER and an echo worker on a raw socket: every message is one request
    batches     a raw DEALER that says REQUESTS and reads FINALS, as many rows as have just been answered
    HAClient    ``map`` (with a window of 1 ``request``)
    Async       ``AsyncHAClient.map``

The last three ask a ``Worker`` of one thread in a process of its own, whose credit is the window. CPU is what
the kernel counted for all threads of the broker's process. Status 1 if a bound is missed that the broker is
made for: 10 µs of CPU per request with a window of 100, 5 µs with 1,000, five times plain MDP.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import zmq

from bstar.net.sockets import receive, send
from bstar.wire import native
from bstar.wire.batches import final_rows, pack_requests
from bstar.wire.limits import BATCH_ROWS_MAX
from bstar_client import AsyncHAClient, HAClient
from run import BODY, bstar_server, child, cpu_seconds, echo_workers, measure

CPU_US_MAX = {100: 10.0, 1000: 5.0}
SPEEDUP_MIN = 5.0
WORKER = """
import logging, sys
from bstar_client import Worker
logging.getLogger("bstar_client.endpoints").setLevel(logging.ERROR)  # it asks one node on purpose
with Worker(sys.argv[1], "batched", lambda request: request.body, credit=int(sys.argv[2]), threads=1):
    print("ready", flush=True)
    sys.stdin.read()
"""

clock = time.perf_counter


class Figures(NamedTuple):
    """One turn."""

    rate: float
    cpu_us: float


def main() -> int:
    """Measure and print; the status tells whether the broker is within its bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one turn")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 10, 100, 1000])
    asked = parser.parse_args()
    print(f"{len(BODY)}-octet bodies, {os.cpu_count()} cores, medians of {asked.rounds} rounds")
    print(f"{'window':>6} {'':10}{'req/s':>12}{'broker CPU µs/req':>20}{'times MDP/0.2':>15}", flush=True)
    is_good = True
    for window in asked.windows:
        is_good = case(window, asked.rounds, asked.seconds) and is_good
    return 0 if is_good else 1


def case(window: int, rounds: int, seconds: float) -> bool:
    """Measure all ways with this window; is the broker within its bounds?"""
    with ExitStack() as stack:
        pid, endpoint = stack.enter_context(bstar_server())
        stack.enter_context(echo_workers(endpoint, 1))
        measure(pid, endpoint, window, 0.3)  # now the node is active
        # Room for the window and for what is under way to it while it is refilled.
        worker = stack.enter_context(child([sys.executable, "-c", WORKER, endpoint, str(max(2, window))]))
        assert worker.stdout is not None
        if worker.stdout.readline() != b"ready\n":
            raise SystemExit("the worker did not start")
        client = stack.enter_context(HAClient(endpoint))
        client.request("batched", BODY)
        ways: dict[str, Callable[[], Figures]] = {
            "MDP/0.2": lambda: plain(pid, endpoint, window, seconds),
            "batches": lambda: of(pid, lambda: bare(endpoint, window, seconds)),
            "HAClient": lambda: of(pid, lambda: threaded(client, window, seconds)),
            "Async": lambda: of(pid, lambda: asyncio.run(in_a_loop(endpoint, window, seconds))),
        }
        turns: dict[str, list[Figures]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                figures = way()
                if turn:  # the first is to get warm
                    turns[name].append(figures)
    ratios = {
        name: statistics.median(
            one.rate / other.rate for one, other in zip(figures, turns["MDP/0.2"], strict=True)
        )
        for name, figures in turns.items()
    }
    cpus_us = {name: statistics.median(each.cpu_us for each in figures) for name, figures in turns.items()}
    for name, figures in turns.items():
        rate = statistics.median(each.rate for each in figures)
        print(f"{window:>6} {name:10}{rate:>12,.0f}{cpus_us[name]:>20.1f}{ratios[name]:>15.2f}", flush=True)
    bare_rate = statistics.median(
        one.rate / other.rate for one, other in zip(turns["HAClient"], turns["batches"], strict=True)
    )
    print(f"{window:>6} HAClient reaches {bare_rate:.2f} of the raw DEALER with batches", flush=True)
    is_slow = window >= 1_000 and ratios["HAClient"] < SPEEDUP_MIN
    return cpus_us["HAClient"] <= CPU_US_MAX.get(window, float("inf")) and not is_slow


def plain(pid: int, endpoint: str, window: int, seconds: float) -> Figures:
    """``run.py``'s client."""
    rate, _, _, cpu_us = measure(pid, endpoint, window, seconds)
    return Figures(rate, cpu_us)


def of(pid: int, way: Callable[[], tuple[int, float]]) -> Figures:
    """What a way that returns (requests, seconds) costs the broker."""
    before = cpu_seconds(pid)
    count, elapsed = way()
    return Figures(count / elapsed, (cpu_seconds(pid) - before) / count * 1e6)


def bodies(end: float) -> Iterator[bytes]:
    """The body, until the time is over."""
    return iter(lambda: BODY if clock() < end else None, None)


def threaded(client: HAClient, window: int, seconds: float) -> tuple[int, float]:
    """HAClient."""
    began = clock()
    end = began + seconds
    if window > 1:
        count = sum(1 for _ in client.map("batched", bodies(end), window=window, ordered=False))
    else:
        count = 0
        while clock() < end:
            client.request("batched", BODY)
            count += 1
    return count, clock() - began


async def in_a_loop(endpoint: str, window: int, seconds: float) -> tuple[int, float]:
    """AsyncHAClient."""
    async with AsyncHAClient(endpoint) as client:
        await client.request("batched", BODY)
        began = clock()
        end = began + seconds
        count = 0
        if window > 1:
            async for _ in client.map("batched", bodies(end), window=window, ordered=False):
                count += 1
        else:
            while clock() < end:
                await client.request("batched", BODY)
                count += 1
        return count, clock() - began


def bare(endpoint: str, window: int, seconds: float) -> tuple[int, float]:
    """A raw DEALER: for every row that was answered a new one, in one message."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(endpoint)
    client_id = os.urandom(16)
    head = native.encode_requests(client_id, b"batched", [1], [0], [b""])[0]
    number = 1

    def ask(rows: int) -> None:
        nonlocal number
        while rows:
            count = min(rows, BATCH_ROWS_MAX)
            send(socket, [head, *pack_requests(range(number, number + count), [0] * count, [BODY] * count)])
            number += count
            rows -= count

    count = 0
    under_way = window
    began = clock()
    end = began + seconds
    ask(window)
    while under_way:
        if not socket.poll(5_000):
            raise SystemExit(f"{endpoint} owes {under_way} replies and is silent")
        answered = 0
        while socket.get(zmq.EVENTS) & zmq.POLLIN:
            frames = receive(socket)
            command = frames[0][2]
            if command not in (native.FINAL, native.FINALS):
                # Most likely NOT_ACTIVE: the node was kept from running and stepped down. No figure is right.
                raise SystemExit(f"{endpoint} answered a request with command {command:#04x}: measure again")
            answered += len(final_rows(frames, 1)[0]) if command == native.FINALS else 1
        count += answered
        under_way -= answered
        if clock() < end:
            ask(answered)
            under_way += answered
    elapsed = clock() - began
    context.destroy(linger=0)
    return count, elapsed


if __name__ == "__main__":
    sys.exit(main())
