"""What a journal costs: the same load on two brokers, one with a journal and one without, in turns.

    python benchmarks/journal.py                    medians over 15 pairs of rounds
    python benchmarks/journal.py --rounds 31 --seconds 2 --sample 0.1

The worst case for a journal is a broker that does nothing else: one client keeps 1000 requests of 16 bytes
in flight through ``HAClient.map``, and native workers echo them. Every request has a record of its own. A
machine is noisy from one second to the next, so each round measures both, in an order that alternates, and
what counts is the median of the rounds' ratios.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from bstar_client import HAClient
from run import BODY, bstar_server, child, cpu_seconds

HERE = Path(__file__).parent
WINDOW = 1_000
WARM_REQUESTS = 3_000
# Small files, so that each round packs some of them.
_PACKING = {"journal.rotate_bytes": 1 << 20}


class Server(NamedTuple):
    """A broker under test and a client of its own."""

    pid: int
    client: HAClient
    journal: Path


class Round(NamedTuple):
    """What one broker did in one round."""

    rate: float
    cpu_us: float


def main() -> int:
    """Measure and print; status 1 if throughput with the journal is below 0.9 of that without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="pairs of rounds")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=float, default=1.0, help="share of requests that are recorded")
    parser.add_argument("--gzip", choices=("true", "false"), default="true")
    asked = parser.parse_args()
    with ExitStack() as stack:
        journal = stack.enter_context(
            server(
                asked.workers,
                {"journal.sample": asked.sample, "journal.gzip": asked.gzip == "true", **_PACKING},
            )
        )
        plain = stack.enter_context(server(asked.workers, None))
        for one in (journal, plain):
            measure(one, 1.0)
        pairs = []
        for index in range(asked.rounds):
            if index % 2:
                with_journal = measure(journal, asked.seconds)
                without = measure(plain, asked.seconds)
            else:
                without = measure(plain, asked.seconds)
                with_journal = measure(journal, asked.seconds)
            pairs.append((with_journal, without))
        rates = [one.rate / other.rate for one, other in pairs]
        cpus = [one.cpu_us / other.cpu_us for one, other in pairs]
        octets = sum(path.stat().st_size for path in journal.journal.iterdir())
    print(
        f"HAClient.map, window {WINDOW}, {len(BODY)}-octet bodies, {asked.workers} native workers, "
        f"{os.cpu_count()} cores, sample {asked.sample:g}, medians of {asked.rounds} pairs of rounds"
    )
    print(f"{'':12}{'req/s':>12}{'CPU µs/req':>12}")
    for name, index in (("no journal", 1), ("journal", 0)):
        rate = statistics.median(pair[index].rate for pair in pairs)
        cpu_us = statistics.median(pair[index].cpu_us for pair in pairs)
        print(f"{name:12}{rate:>12,.0f}{cpu_us:>12.1f}")
    ratio = statistics.median(rates)
    print(f"{'ratio':12}{ratio:>12.3f}{statistics.median(cpus):>12.3f}")
    low, high = quartiles(rates)
    print(
        f"the middle half of the throughput ratios: {low:.3f} to {high:.3f}; journal files: {octets:,} bytes"
    )
    return 0 if ratio >= 0.9 else 1


def measure(server: Server, seconds: float) -> Round:
    """Keep the window full for so long; the rate, and the broker's CPU time per request, all threads."""
    clock = time.perf_counter
    cpu_before = cpu_seconds(server.pid)
    started = clock()
    end = started + seconds
    bodies = iter(lambda: BODY if clock() < end else None, None)
    count = sum(1 for _ in server.client.map("echo", bodies, window=WINDOW))
    elapsed = clock() - started
    return Round(count / elapsed, (cpu_seconds(server.pid) - cpu_before) / count * 1e6)


def quartiles(values: list[float]) -> tuple[float, float]:
    """Where the middle half begins and ends."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


@contextmanager
def server(workers: int, keys: Mapping[str, object] | None) -> Iterator[Server]:
    """A primary alone with native echo workers, warm, and a client."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder) / "journal"
        settings = {} if keys is None else {"journal.directory": str(directory), **keys}
        pid, endpoint = stack.enter_context(bstar_server(settings=settings))
        for _ in range(workers):
            command = [
                sys.executable,
                "-m",
                "bstar_cli",
                "worker",
                "--endpoints",
                endpoint,
                "--service",
                "echo",
            ]
            # Together they take the whole window, each in one thread.
            credit = str(WINDOW // workers)
            stack.enter_context(
                child([*command, "--credit", credit, "--threads", "1", "--log-level", "error", "echo"])
            )
        with HAClient([endpoint], timeout=60) as client:
            for _ in client.map("echo", repeat(BODY, WARM_REQUESTS), window=100):
                pass
            yield Server(pid, client, directory)


if __name__ == "__main__":
    sys.exit(main())
