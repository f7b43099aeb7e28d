"""What the durable store costs others, and what many pending requests cost it.

    python benchmarks/durable.py plain       plain requests: without a store, beside one, beside submits
    python benchmarks/durable.py growth      1,000,000 pending requests: memory, restart, catch-up
    python benchmarks/durable.py growth --pending 100000 --size 1000

``plain``: two pairs, one with a store, take turns with the same plain MDP/0.2 client and worker; the pair
with a store once at rest and once while a client submits 100-octet bodies as fast as it can. A ratio is the
median of the rounds' ratios to the pair without a store. On a small machine the submits compete for its
cores.

``growth``: submits requests that nobody takes. Then it prints the memory (VmRSS) of both nodes, restarts the
follower with kill -9 and waits until it is in sync, restarts both, and at last deletes the follower's store
and lets it copy the leader's, with a plain client beside it. Everything lies in --directory, on the disk to
measure; it needs about 2 KiB for each request.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bstar_client import HAClient
from bstar_testing import Pair
from bstar_testing.nodes import Node
from bstar_testing.processes import wait_until
from peers.durable import START_S_MAX, store_pair, sync_times, wait_for_copies
from plain import PlainClient
from run import child, echo_workers, measure

HERE = Path(__file__).parent
BODY = b"x" * 100
COLUMNS = ("req/s", "p50 µs", "p99 µs", "CPU µs/req")
WAYS = ("no store", "store at rest", "store, submits")
SERVICE = "nobody"
# The work of a turn of the submitter is over before the next turn of a plain client begins.
_LOAD_MARGIN_S = 0.3
_COPY_S_MAX = 1_800.0


def main() -> int:
    """Measure, print; 0 if all could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["plain", "growth"])
    parser.add_argument("--rounds", type=int, default=7, help="of plain")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one turn of plain")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 100], help="of plain")
    parser.add_argument("--pending", type=int, default=1_000_000, help="of growth")
    parser.add_argument("--size", type=int, default=len(BODY), help="bytes of a body of growth")
    parser.add_argument("--directory", type=Path, default=Path("build/durable"))
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory.resolve()) as folder:
        syncs = sorted(sync_times(Path(folder) / "sync"))
        print(
            f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, write and fdatasync of 4 KiB: "
            f"p50 {syncs[len(syncs) // 2] * 1e3:.1f} ms",
            flush=True,
        )
        (plain if asked.what == "plain" else growth)(Path(folder), asked)
    return 0


# --- plain requests -----------------------------------------------------------------------------------------


def plain(folder: Path, asked: argparse.Namespace) -> None:
    """Plain requests at both pairs, in turns."""
    with ExitStack() as stack:
        without = stack.enter_context(
            Pair(folder / "without", name="bench", settings={"log.level": "warning"})
        )
        beside = stack.enter_context(store_pair(folder / "beside"))
        for pair in (without, beside):
            pair.start()
            stack.enter_context(echo_workers(pair.primary.endpoint, 1))
        wait_for_copies(beside)
        submitter = stack.enter_context(
            child([sys.executable, str(HERE / "peers/submit_bstar.py"), "submit", *_where(beside)])
        )
        assert submitter.stdout is not None
        assert submitter.stdout.readline() == b"ready\n"
        print(f"{'':8}{'':16}" + "".join(f"{name:>12}" for name in COLUMNS), flush=True)
        for window in asked.windows:
            rows: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
            submitted: list[float] = []
            for number in range(asked.rounds):
                for way in WAYS if number % 2 == 0 else reversed(WAYS):
                    pair = without if way == WAYS[0] else beside
                    node = pair.primary
                    if way != WAYS[2]:
                        rows[way].append(measure(node.pid, node.endpoint, window, asked.seconds))
                        continue
                    with load(submitter, asked.seconds + 2 * _LOAD_MARGIN_S, submitted):
                        time.sleep(_LOAD_MARGIN_S)
                        rows[way].append(measure(node.pid, node.endpoint, window, asked.seconds))
            _print_plain(window, rows, submitted)


def _where(pair: Pair) -> tuple[str, str]:
    return ",".join(pair.endpoints), SERVICE


@contextmanager
def load(submitter: "subprocess.Popen[bytes]", seconds: float, submitted: list[float]) -> Iterator[None]:
    """Submits meanwhile; ``submitted`` gets how many per second. It waits until they are removed."""
    assert submitter.stdin is not None
    assert submitter.stdout is not None
    submitter.stdin.write(
        json.dumps({"window": 1_000, "seconds": seconds, "size": len(BODY)}).encode() + b"\n"
    )
    submitter.stdin.flush()
    yield
    submitted.append(json.loads(submitter.stdout.readline())["per_second"])
    assert submitter.stdout.readline() == b"clean\n"


def _print_plain(window: int, rows: dict[str, list[tuple[float, ...]]], submitted: list[float]) -> None:
    for way, of_way in rows.items():
        figures = [statistics.median(column) for column in zip(*of_way, strict=True)]
        print(f"{window:<8,}{way:16}" + "".join(f"{figure:>12,.1f}" for figure in figures), flush=True)
        ratios = [
            [figure / base for figure, base in zip(of_round, bases, strict=True)]
            for of_round, bases in zip(of_way, rows[WAYS[0]], strict=True)
        ]
        medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
        if way != WAYS[0]:
            print(f"{'':8}{'  ratio':16}" + "".join(f"{median:>12.2f}" for median in medians), flush=True)
    print(f"{'':8}submits per second beside it: {statistics.median(submitted):,.0f}", flush=True)


# --- many pending requests ----------------------------------------------------------------------------------


def growth(folder: Path, asked: argparse.Namespace) -> None:
    """Fill a store, and see what its size costs."""
    count = asked.pending
    with store_pair(folder) as pair:
        pair.start()
        wait_for_copies(pair)
        _print_memory(pair, "empty")
        _fill(pair, count, asked.size)
        _print_memory(pair, f"{count:,} pending")
        pair.backup.kill()
        wait_until_alone(pair.primary)
        with _timed("the follower, killed, starts and is in sync"):
            pair.backup.start()
            wait_for_leader(pair)
        _print_memory(pair, "after that")
        pair.primary.kill()
        pair.backup.kill()
        with _timed("both, killed, start and lead the store with two copies"):
            pair.launch()
            _wake(pair)
            wait_for_leader(pair)
        _print_memory(pair, "after that")
        _catch_up(pair)


def _fill(pair: Pair, count: int, size: int) -> None:
    body = b"x" * size
    with HAClient(pair.endpoints, timeout=START_S_MAX) as client:
        began = before = time.monotonic()
        for number, _ in enumerate(
            client.submit_many(SERVICE, (body for _ in range(count)), window=4_096), 1
        ):
            if number % 100_000 == 0 or number == count:
                now = time.monotonic()
                print(
                    f"  {number:>10,} pending, {min(number, 100_000) / (now - before):,.0f} submits/s",
                    flush=True,
                )
                before = now
        took_s = time.monotonic() - began
    print(f"{count:,} submits in {took_s:,.1f} s: {count / took_s:,.0f} per second", flush=True)


def _wake(pair: Pair) -> None:
    """Send a request, so that a node serves."""
    with HAClient(pair.endpoints, timeout=START_S_MAX) as client:
        client.services()


def wait_for_leader(pair: Pair) -> None:
    """Wait until a node's store leads with two copies."""

    def look() -> bool:
        stores = [state.store for node in pair.nodes if (state := node.look()) is not None]
        return any(store is not None and store.is_leading and store.copies > 1 for store in stores)

    wait_until(look, "a store leads with two copies", limit_s=_COPY_S_MAX)


def wait_until_alone(leader: Node) -> None:
    """Wait until the leader knows that the other copy is away."""
    leader.wait_for("is alone", lambda state: state.store is not None and state.store.copies == 1)


def _catch_up(pair: Pair) -> None:
    """An empty follower copies everything; plain requests before and meanwhile."""
    leader, follower = pair.active(), pair.passive()
    with echo_workers(leader.endpoint, 1), PlainClient(leader.endpoint) as client:
        client.wait_ready()
        calm = client.keep(1, 5.0, BODY).latencies
        follower.kill()
        wait_until_alone(leader)
        shutil.rmtree(pair.folder / f"{'backup' if follower is pair.backup else 'primary'}-store")
        state = leader.state().store
        assert state is not None
        assert state.disk is not None
        octets, file_bytes = state.octets, state.disk.file_bytes
        latencies: list[float] = []
        is_done = threading.Event()

        def ask() -> None:
            while not is_done.is_set():
                latencies.extend(client.keep(1, 0.5, BODY).latencies)

        asking = threading.Thread(target=ask)
        began = time.monotonic()
        follower.start()
        asking.start()
        try:
            wait_for_leader(pair)
            took_s = time.monotonic() - began
        finally:
            is_done.set()
            asking.join()
    print(
        f"an empty follower is in sync after {took_s:,.1f} s: {octets / took_s / 1e6:,.1f} MB/s of bodies, "
        f"{file_bytes / took_s / 1e6:,.1f} MB/s of the leader's file ({file_bytes / 1e6:,.0f} MB)"
    )
    print(
        f"plain requests meanwhile, window 1: p99 {_p99_ms(latencies):,.2f} ms; "
        f"before: {_p99_ms(calm):,.2f} ms; ratio {_p99_ms(latencies) / _p99_ms(calm):.2f}",
        flush=True,
    )


def _p99_ms(latencies: list[float]) -> float:
    ordered = sorted(latencies)
    return ordered[len(ordered) * 99 // 100] * 1e3


def _print_memory(pair: Pair, when: str) -> None:
    told = ", ".join(f"{node.name} {_rss_mib(node.pid):,.0f} MiB" for node in pair.nodes)
    print(f"VmRSS, {when}: {told}", flush=True)


def _rss_mib(pid: int) -> float:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")
    ]
    return int(line.split()[1]) / 1024


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:,.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
