"""What a quiet client feels of a greedy one: its latencies on an idle broker, and while the other floods.

    python benchmarks/fairness.py                       5 rounds of 1,000 calls each
    python benchmarks/fairness.py --work-ms 0 --window 5000

The quiet client calls at a steady rate, one request at a time, and latencies count from when a call was
due. The greedy one keeps ``window`` requests in flight through ``HAClient.map`` to the same service, whose
workers take ``work-ms`` for each. Everybody is a process of its own. There are three ways: *idle*; *flooded*;
and *beside*, where the greedy one floods another broker with other workers on the same machine, so that it
takes processors from the quiet one and nothing else. They take turns in each round; what counts is the
medians of the rounds' ratios. What beside costs is the machine's, what flooded costs beyond it the broker's.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat

from bstar_client import HAClient, Request, Worker, WorkerHooks
from run import BODY, bstar_server, child

SERVICE = "echo"
RATE_PER_S = 200.0
SETTLE_CALLS = 200
TIMEOUT_S = 30.0
WAYS = ("idle", "beside", "flooded")


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
    parser.add_argument("--credit", type=int, default=1, help="of a worker, which has one thread")
    parser.add_argument("--greedy", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--worker", metavar="ENDPOINT", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return work(asked.worker, asked.work_ms / 1e3, asked.credit)
    if asked.greedy:
        return flood(asked.greedy, asked.window)
    with ExitStack() as stack:
        _, endpoint = stack.enter_context(bstar_server())
        _, elsewhere = stack.enter_context(bstar_server())
        for broker in (endpoint, elsewhere):
            for _ in range(asked.workers):
                stack.enter_context(worker(broker, asked))
        client = stack.enter_context(HAClient([endpoint]))
        measure(client, asked.calls)  # warm
        print(
            f"quiet: {RATE_PER_S:g} calls/s, {asked.calls} a round; greedy: {asked.window} in flight; "
            f"{asked.workers} workers of {asked.work_ms:g} ms, credit {asked.credit}\n"
            + " " * 5
            + "".join(f"{way + ' p50 ms':>16}{'p99 ms':>8}{'greedy/s':>10}" for way in WAYS),
            flush=True,
        )
        ratios: dict[str, list[float]] = {}
        for number in range(1, asked.rounds + 1):
            measure(client, SETTLE_CALLS)  # until nothing of the last flood is left
            seen = {"idle": measure(client, asked.calls)}
            cells = [(*seen["idle"], 0.0)]
            for way, broker in (("beside", elsewhere), ("flooded", endpoint)):
                with greedy(broker, asked.window) as told:
                    seen[way] = measure(client, asked.calls)
                cells.append((*seen[way], told[0]))
            for way, base in (("flooded", "idle"), ("beside", "idle"), ("flooded", "beside")):
                for name, loud, quiet in zip(("p50", "p99"), seen[way], seen[base], strict=True):
                    ratios.setdefault(f"{way}/{base} {name}", []).append(loud / quiet)
            row = "".join(f"{p50 * 1e3:>16.2f}{p99 * 1e3:>8.2f}{rate:>10,.0f}" for p50, p99, rate in cells)
            print(f"{number:>5}{row}", flush=True)
    medians = (f"{name} {statistics.median(values):.2f}" for name, values in ratios.items())
    print("medians: " + ", ".join(medians))
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
def worker(endpoint: str, asked: argparse.Namespace) -> Iterator[None]:
    """An echo worker in a process of its own, registered."""
    command = [sys.executable, __file__, "--worker", endpoint]
    with child([*command, "--work-ms", str(asked.work_ms), "--credit", str(asked.credit)]) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("a worker did not start")
        yield


def work(endpoint: str, work_s: float, credit: int) -> int:
    """Echo until standard input ends; the work is a sleep: it shall cost time and no processor."""

    def handle(request: Request) -> bytes:
        if work_s:
            time.sleep(work_s)
        return request.body

    class Hooks(WorkerHooks):
        """Tells when it is registered."""

        def registered(self, worker: Worker, endpoint: str) -> None:
            print("ready", flush=True)

    with Worker([endpoint], SERVICE, handle, credit=credit, threads=1, hooks=Hooks()):
        sys.stdin.read()
    return 0


@contextmanager
def greedy(endpoint: str, window: int) -> Iterator[list[float]]:
    """The other client's process while it floods; its requests per second, once it has ended."""
    told = [0.0]
    command = [sys.executable, __file__, "--greedy", endpoint, "--window", str(window)]
    with child(command) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline() != b"floods\n":
            raise SystemExit("the greedy client did not start")
        yield told
        process.stdin.close()
        told[0] = float(process.stdout.readline())


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
