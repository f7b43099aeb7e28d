"""What a quiet client feels of a greedy one: its latencies on an idle broker, and while the other floods.

    python benchmarks/fairness.py                       5 rounds of 1,000 calls each
    python benchmarks/fairness.py --work-ms 0 --window 5000

The quiet client calls at a steady rate, one request at a time, and latencies count from when a call was due.
The greedy one, a process of its own, keeps ``window`` requests in flight through ``HAClient.map`` to the same
service, whose workers take ``work-ms`` for each. Idle and flooded rounds take turns on the same broker; what
counts is the median of the rounds' ratios.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat

from bstar_client import HAClient, Request, Worker
from run import BODY, bstar_server

SERVICE = "echo"
RATE_PER_S = 200.0
TIMEOUT_S = 30.0


def main() -> int:
    """Measure and print; status 0 if every round could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rounds, idle and flooded")
    parser.add_argument("--calls", type=int, default=1_000, help="the quiet client's calls in a round")
    parser.add_argument("--window", type=int, default=1_000, help="the greedy client's requests in flight")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--work-ms", type=float, default=1.0, help="what a worker takes for a request")
    parser.add_argument("--greedy", metavar="ENDPOINT", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.greedy:
        return flood(asked.greedy, asked.window)
    ratios: dict[str, list[float]] = {"p50": [], "p99": []}
    with ExitStack() as stack:
        _, endpoint = stack.enter_context(bstar_server())
        for _ in range(asked.workers):
            stack.enter_context(worker(endpoint, asked.work_ms / 1e3))
        client = stack.enter_context(HAClient([endpoint]))
        measure(client, asked.calls)  # warm
        print(
            f"quiet: {RATE_PER_S:g} calls/s, {asked.calls} a round; greedy: {asked.window} in flight; "
            f"{asked.workers} workers of {asked.work_ms:g} ms\n"
            f"{'round':>5} {'idle p50 ms':>12} {'p99 ms':>8} {'flooded p50 ms':>15} {'p99 ms':>8} "
            f"{'greedy/s':>9}",
            flush=True,
        )
        for number in range(1, asked.rounds + 1):
            idle = measure(client, asked.calls)
            with greedy(endpoint, asked.window) as told:
                flooded = measure(client, asked.calls)
            for name, quiet, loud in zip(ratios, idle, flooded, strict=True):
                ratios[name].append(loud / quiet)
            print(
                f"{number:>5} {idle[0] * 1e3:>12.2f} {idle[1] * 1e3:>8.2f} {flooded[0] * 1e3:>15.2f} "
                f"{flooded[1] * 1e3:>8.2f} {told[0]:>9,.0f}",
                flush=True,
            )
    print("flooded/idle, medians: " + ", ".join(f"{k} {statistics.median(v):.2f}" for k, v in ratios.items()))
    return 0


def measure(client: HAClient, calls: int) -> tuple[float, float]:
    """p50 and p99 in seconds of calls at a steady rate, each counted from when it was due."""
    took = []
    began = time.perf_counter()
    for number in range(calls):
        due = began + number / RATE_PER_S
        if (early_s := due - time.perf_counter()) > 0:
            time.sleep(early_s)  # the load's own rhythm
        else:
            due = max(due, time.perf_counter() - TIMEOUT_S)
        client.request(SERVICE, BODY, timeout=TIMEOUT_S)
        took.append(time.perf_counter() - due)
    took.sort()
    return took[calls // 2], took[min(calls - 1, calls * 99 // 100)]


@contextmanager
def worker(endpoint: str, work_s: float) -> Iterator[None]:
    """An echo worker in a thread, its work a sleep: it shall cost time and no processor."""

    def handle(request: Request) -> list[bytes]:
        if work_s:
            time.sleep(work_s)
        return request.body

    serving = Worker([endpoint], SERVICE, handle)
    thread = threading.Thread(target=serving.run, name="worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        serving.stop()
        thread.join()


@contextmanager
def greedy(endpoint: str, window: int) -> Iterator[list[float]]:
    """The other client's process while it floods; its requests per second, once it has ended."""
    told = [0.0]
    command = [sys.executable, __file__, "--greedy", endpoint, "--window", str(window)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if process.stdout.readline() != b"floods\n":
            raise SystemExit("the greedy client did not start")
        yield told
        process.stdin.close()
        told[0] = float(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def flood(endpoint: str, window: int) -> int:
    """Keep a window of requests in flight until standard input ends; tell how many came back per second."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    count = 0
    began = time.perf_counter()
    with HAClient([endpoint]) as client:
        for _ in client.map(SERVICE, repeat(BODY), window=window, ordered=False, timeout=TIMEOUT_S):
            count += 1
            if count == window:
                print("floods", flush=True)
            if ended.is_set():
                break
        print(count / (time.perf_counter() - began), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
