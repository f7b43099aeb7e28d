"""Broker CPU per request, throughput and latency under plain MDP, beside the floor in the same run.

    python benchmarks/run.py                 all cases of MDP/0.1 and MDP/0.2, medians of 5 rounds
    python benchmarks/run.py --rounds 3 --seconds 1 --workers 1 --windows 1 100 --dialects mdp02

Machines are shared and noisy, so compare the ratios: floor and broker take turns, round by round, and a ratio
is the median of the rounds' ratios. One client on a raw DEALER keeps WINDOW requests of 16 bytes in flight;
WORKERS echo workers run in one process. CPU is what the kernel counted for all threads of the broker's
process.
"""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bstar.settings import ProfileName
from bstar_testing import LoopbackHost, Pair
from plain import PlainClient

# Clients and workers here ask one node on purpose, so their warning about it says nothing (docs/clients.md).
logging.getLogger("bstar_client.endpoints").setLevel(logging.ERROR)

HERE = Path(__file__).parent
BODY = b"x" * 16
COLUMNS = ("req/s", "p50 µs", "p99 µs", "CPU µs/req")
NAMES = {"mdp01": "MDP/0.1", "mdp02": "MDP/0.2"}

Row = tuple[float, float, float, float]


def main() -> int:
    """Run every case and print the table; status 0 if every case could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median is printed")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement")
    parser.add_argument("--dialects", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 100])
    asked = parser.parse_args()
    print(f"{len(BODY)}-octet bodies, {os.cpu_count()} cores, median of {asked.rounds} rounds", flush=True)
    print(
        f"{'':7} {'workers':>7} {'window':>6} {'':6}" + "".join(f"{name:>12}" for name in COLUMNS), flush=True
    )
    for dialect in asked.dialects:
        for workers in asked.workers:
            for window in asked.windows:
                case(dialect, workers, window, asked.rounds, asked.seconds)
    return 0


def case(dialect: str, workers: int, window: int, rounds: int, seconds: float) -> None:
    """Measure one case on both servers, in turns."""
    rows: dict[str, list[Row]] = {"floor": [], "bstar": []}
    with ExitStack() as stack:
        servers = {
            "floor": stack.enter_context(floor_server(dialect)),
            "bstar": stack.enter_context(bstar_server()),
        }
        for pid, endpoint in servers.values():
            stack.enter_context(echo_workers(endpoint, workers, dialect))
            measure(pid, endpoint, window, 0.3, dialect)  # warm
        for number in range(rounds):
            # Who comes second finds another machine, so they come second in turns.
            for name in list(servers) if number % 2 == 0 else list(reversed(servers)):
                rows[name].append(measure(*servers[name], window, seconds, dialect))
    title = f"{NAMES[dialect]:7} {workers:>7} {window:>6} "
    for name in servers:
        figures = [statistics.median(column) for column in zip(*rows[name], strict=True)]
        print(f"{title}{name:6}" + "".join(f"{figure:>12,.1f}" for figure in figures), flush=True)
    ratios = [
        [bstar / floor for bstar, floor in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(rows["bstar"], rows["floor"], strict=True)
    ]
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print(f"{title}{'ratio':6}" + "".join(f"{median:>12.2f}" for median in medians), flush=True)


def measure(pid: int, endpoint: str, window: int, seconds: float, dialect: str = "mdp02") -> Row:
    """Requests per second, p50 and p99 in microseconds, and the broker's CPU microseconds per request."""
    with PlainClient(endpoint, dialect=dialect) as client:
        client.wait_ready()
        cpu_before = cpu_seconds(pid)
        kept = client.keep(window, seconds, BODY)
        cpu = cpu_seconds(pid) - cpu_before
    latencies = sorted(kept.latencies)
    count = len(latencies)
    return (
        count / kept.elapsed_s,
        latencies[count // 2] * 1e6,
        latencies[min(count - 1, count * 99 // 100)] * 1e6,
        cpu / count * 1e6,
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, from the scheduler's own nanosecond count."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def floor_server(dialect: str = "mdp02") -> Iterator[tuple[int, str]]:
    """The minimal ROUTER loop in a process of its own."""
    with LoopbackHost() as host:
        endpoint = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        with child([sys.executable, str(HERE / "floor.py"), endpoint, dialect]) as process:
            yield process.pid, endpoint


@contextmanager
def bstar_server(
    profile: ProfileName = "lan", settings: Mapping[str, object] | None = None
) -> Iterator[tuple[int, str]]:
    """One primary alone, as ``bstar serve`` runs it; its first request makes it active."""
    with bstar_pair(profile, settings) as pair:
        yield pair.primary.pid, pair.primary.endpoint


@contextmanager
def bstar_pair(
    profile: ProfileName = "lan", settings: Mapping[str, object] | None = None, *, is_secure: bool = False
) -> Iterator[Pair]:
    """The same with all of the pair, of which only the primary runs; ``is_secure``: with ``Pair.keys``."""
    quiet = {"state_dir": None, "log.level": "warning", "timing.mdp_heartbeat_interval_s": 2.5}
    changed = {**quiet, **(settings or {})}
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder), name="bench", profile=profile, settings=changed, is_secure=is_secure) as pair,
    ):
        pair.primary.start()
        yield pair


@contextmanager
def echo_workers(endpoint: str, count: int, dialect: str = "mdp02") -> Iterator[None]:
    """``count`` echo workers in one process, registered."""
    with child([sys.executable, str(HERE / "workers.py"), endpoint, str(count), dialect]) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the echo workers did not start")
        yield


@contextmanager
def child(
    command: list[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives as long as the block; it is ended by its own pid. ``environment`` is added.

    It has a session of its own, as a pair's nodes have. Linux shares busy cores between sessions first
    (autogroup), so servers in sessions of different sizes could not be compared.
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, start_new_session=True
    )
    try:
        yield process
    finally:
        # Most end with their standard input; a second reason to end would cut their end short.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
