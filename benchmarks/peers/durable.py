"""Durable submits beside RabbitMQ and NATS JetStream: ``make bench-peers DURABLE=1``.

    PYTHONPATH=benchmarks python -m peers.durable --help

bstar: a pair with a durable store on each node, both on this machine's disk; a submit is acknowledged when it
is synced on both. RabbitMQ: a durable queue and publisher confirms, one node. NATS: a JetStream stream in
files, one copy, synced for each message where the server's version can. So bstar writes twice what the others
write, to the same disk.

The servers run the whole time; the clients take turns, round by round, and each removes what it stored after
its turn. A ratio is the median of the rounds' ratios. CPU is what the kernel counted for all threads of each
process. In each round with a window of 1 the disk is measured as well: a block of 4 KiB and fdatasync, in the
same folder. Two of them and a plain request are the bound that bstar's p50 is compared with.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bstar_testing import Pair
from peers import servers
from peers.__main__ import ratio_of
from peers.contestants import Contestant, Figures, leaving_out, wait_for_ready
from peers.install import Peers, find_or_install
from run import child, cpu_seconds, echo_workers

HERE = Path(__file__).parent
COLUMNS = ("submits/s", "p50 µs", "p99 µs", "bstar ÷ this")
OURS, PLAIN = "bstar, two disks", "bstar plain request"
START_S_MAX = 60.0
_SYNCS = 100
_BLOCK = b"\0" * 4096


class Submitter(Contestant):
    """One way to submit. ``processes`` are those whose CPU time counts, by name."""

    def __init__(
        self,
        name: str,
        processes: Mapping[str, int],
        client: "subprocess.Popen[bytes]",
        *,
        is_single: bool = False,
    ) -> None:
        super().__init__(
            name,
            next(iter(processes.values())),
            client,
            (lambda window: window == 1) if is_single else _always,
        )
        self._client = client
        self._processes = {**processes, "client": client.pid}
        self.cpu_us: dict[str, list[float]] = {}

    def turn(self, window: int, seconds: float, size: int) -> Figures:
        """As a contestant's; afterwards what it stored is removed."""
        before = {name: cpu_seconds(pid) for name, pid in self._processes.items()}
        figures = super().turn(window, seconds, size)
        for name, pid in self._processes.items():
            spent_s = cpu_seconds(pid) - before[name]
            count = max(1.0, figures.per_second * seconds)
            self.cpu_us.setdefault(name, []).append(spent_s * 1e6 / count)
        assert self._client.stdout is not None
        if self._client.stdout.readline() != b"clean\n":
            raise SystemExit(f"the client of {self.name} ended with {self._client.wait()}")
        return figures


def _always(window: int) -> bool:
    return True


def main() -> int:
    """Measure every contestant with every window, and print the tables. Status 0 if ours was measured."""
    asked = _asked()
    peers = find_or_install(asked.venv)
    for lack in peers.lacks:
        print(f"left out: {lack}", flush=True)
    asked.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory.resolve()))
        )
        contestants = [*ours(stack, folder / "pair"), *_others(stack, folder, peers)]
        print(
            f"{asked.size}-octet bodies, medians of {asked.rounds} rounds of {asked.seconds:g} s; "
            f"{peers.told}; load average {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        print(f"{'':34}" + "".join(f"{name:>15}" for name in COLUMNS) + "   CPU µs per submit", flush=True)
        for window in [int(text) for text in asked.windows.split(",")]:
            print(f"window {window:,}", flush=True)
            _measure(contestants, window, asked, folder)
    return 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, choices=range(1, 101), default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one turn, at most 60")
    parser.add_argument("--windows", default="1,100,1000", help="submits in flight, each at most 10,000")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body, at most 1,000,000")
    parser.add_argument("--venv", type=Path, default=Path("build/peers"), help="for the others' clients")
    parser.add_argument(
        "--directory", type=Path, default=Path("build/durable"), help="on the disk to measure"
    )
    asked = parser.parse_args()
    if not (0.1 <= asked.seconds <= 60 and 0 <= asked.size <= 1_000_000):
        parser.error("--seconds from 0.1 to 60, --size from 0 to 1,000,000")
    if not all(1 <= int(text) <= 10_000 for text in asked.windows.split(",")):
        parser.error("--windows from 1 to 10,000")
    return asked


# --- who takes part -----------------------------------------------------------------------------------------


def store_pair(folder: Path) -> Pair:
    """A pair with a durable store, not started."""
    return Pair(folder, name="bench", settings={"log.level": "warning"}, has_store=True)


def wait_for_copies(pair: Pair, copies: int = 2) -> None:
    """Wait until the primary's store leads with so many copies."""
    pair.primary.wait_for(
        f"leads with {copies} copies",
        lambda state: state.store is not None and state.store.is_leading and state.store.copies >= copies,
    )


def ours(stack: ExitStack, folder: Path) -> list[Submitter]:
    """Plain requests and durable submits at one pair, which lives as long as the stack."""
    pair = stack.enter_context(store_pair(folder))
    pair.start()
    wait_for_copies(pair)
    stack.enter_context(echo_workers(pair.primary.endpoint, 1))
    nodes = {"leader": pair.primary.pid, "follower": pair.backup.pid}
    endpoints = ",".join(pair.endpoints)
    plain = _client(stack, sys.executable, "submit_bstar.py", "request", endpoints, "echo")
    stored = _client(stack, sys.executable, "submit_bstar.py", "submit", endpoints, "stored")
    return [Submitter(PLAIN, nodes, plain, is_single=True), Submitter(OURS, nodes, stored)]


def _others(stack: ExitStack, folder: Path, peers: Peers) -> list[Submitter]:
    found: list[Submitter] = []
    if peers.nats_server and peers.nats_python:
        with leaving_out("NATS JetStream"):
            pid, url, is_synced = stack.enter_context(servers.jetstream(peers.nats_server, folder))
            client = _client(stack, peers.nats_python, "submit_nats.py", url, "stored")
            suffix = "" if is_synced else ", no sync"
            found.append(Submitter(f"NATS JetStream, R1{suffix}", {"server": pid}, client))
    if peers.rabbitmq_server and peers.epmd and peers.pika_python:
        with leaving_out("RabbitMQ"):
            server = servers.rabbitmq(peers.rabbitmq_server, peers.epmd, folder)
            pid, url = stack.enter_context(server)
            client = _client(stack, peers.pika_python, "submit_pika.py", url, "stored")
            found.append(Submitter("RabbitMQ durable, confirms", {"server": pid}, client))
    return found


def _client(stack: ExitStack, python: str, script: str, *arguments: str) -> "subprocess.Popen[bytes]":
    process = stack.enter_context(child([python, str(HERE / script), *arguments]))
    wait_for_ready(process, script)
    return process


# --- rounds -------------------------------------------------------------------------------------------------


def _measure(contestants: Sequence[Submitter], window: int, asked: argparse.Namespace, folder: Path) -> None:
    taking_part = [each for each in contestants if each.takes_part(window)]
    rows: dict[str, list[Figures]] = {each.name: [] for each in taking_part}
    for contestant in taking_part:
        contestant.turn(window, min(0.5, asked.seconds), asked.size)  # warm
        contestant.cpu_us.clear()
    syncs: list[list[float]] = []
    for _ in range(asked.rounds):
        for contestant in taking_part:
            rows[contestant.name].append(contestant.turn(window, asked.seconds, asked.size))
        if window == 1:
            syncs.append(sorted(sync_times(folder / "sync")))
    rates = [each.per_second for each in rows[OURS]]
    for contestant in taking_part:
        _print(contestant, rows[contestant.name], rates)
    if syncs:
        _print_bound(syncs, rows)


def _print(contestant: Submitter, figures: Sequence[Figures], ours: Sequence[float]) -> None:
    columns = ([each.per_second for each in figures], [each.p50_us for each in figures])
    cells = [f"{statistics.median(column):15,.1f}" for column in columns]
    cells.append(f"{statistics.median(each.p99_us for each in figures):15,.1f}")
    ratio = ratio_of(ours, columns[0])
    cpu = ", ".join(f"{name} {statistics.median(spent):.0f}" for name, spent in contestant.cpu_us.items())
    print(
        f"  {contestant.name:32}{''.join(cells)}{'-' if ratio is None else f'{ratio:.2f}':>15}   {cpu}",
        flush=True,
    )


def sync_times(path: Path, count: int = _SYNCS) -> list[float]:
    """How long a block of 4 KiB at the end of a file and fdatasync take, in seconds."""
    times = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(count):
            before = time.perf_counter()
            os.write(descriptor, _BLOCK)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - before)
    finally:
        os.close(descriptor)
        path.unlink()
    return times


def _print_bound(syncs: Sequence[Sequence[float]], rows: Mapping[str, Sequence[Figures]]) -> None:
    p50s = [each[len(each) // 2] * 1e6 for each in syncs]
    p99s = [each[len(each) * 99 // 100] * 1e6 for each in syncs]
    print(
        f"  write and fdatasync of 4 KiB here: p50 {statistics.median(p50s):,.0f} µs, "
        f"p99 {statistics.median(p99s):,.0f} µs",
        flush=True,
    )
    bounds = [2 * p50 + plain.p50_us for p50, plain in zip(p50s, rows[PLAIN], strict=True)]
    ratio = ratio_of([each.p50_us for each in rows[OURS]], bounds)
    print(
        f"  two of them and a plain request: {statistics.median(bounds):,.0f} µs; p50 of {OURS} ÷ that: "
        f"{'-' if ratio is None else f'{ratio:.2f}'}",
        flush=True,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what was measured is printed, and what was started has ended
