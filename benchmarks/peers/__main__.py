"""bstar beside NATS and RabbitMQ as a Python user meets them: ``make bench-peers``.

    make bench-peers                                 windows 1, 100, 1,000, medians of 5 rounds; 8 minutes
    make bench-peers ROUNDS=1 WINDOWS=100            quicker
    PYTHONPATH=benchmarks python -m peers --help

Each contestant is one client process, one server and one worker process, all on this machine's loopback
interface, with the same body and the same number of requests in flight. All servers run the whole time; the
clients take turns, round by round, so that the ratios hold on a machine that does other things as well: a
ratio is formed within each round, and the median of the rounds is printed. CPU is what the kernel counted
for all threads of the server's process. Latencies are those that the client sees.

The servers of others are Debian's packages, installed if they are missing and this is root; their clients
come from the package index into a venv of their own. What cannot be had is said and left out. Status 0:
bstar and at least one other, or anything of what ONLY names, could be measured; 1: not so.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from peers.contestants import Contestant, Figures, all_of
from peers.install import find_or_install

COLUMNS = ("req/s", "p50 µs", "p99 µs", "CPU µs/req", "map ÷ this", "async ÷ this", "p50: this ÷ ours")
# What requests per second, and at a window of 1 the medians, are divided by.
SYNC, ASYNC = "bstar HAClient", "bstar AsyncHAClient"


def main() -> int:
    """Measure every contestant with every window, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, choices=range(1, 101), default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one turn, at most 60")
    parser.add_argument("--windows", default="1,100,1000", help="requests in flight, each at most 10,000")
    parser.add_argument("--size", type=int, default=16, help="bytes of a body, at most 1,000,000")
    parser.add_argument("--only", default="", help="contestants whose name contains one of these words: a,b")
    parser.add_argument("--venv", type=Path, default=Path("build/peers"), help="for the others' clients")
    asked = parser.parse_args()
    windows = [int(text) for text in asked.windows.split(",")]
    if not (0.1 <= asked.seconds <= 60 and 0 <= asked.size <= 1_000_000):
        parser.error("--seconds from 0.1 to 60, --size from 0 to 1,000,000")
    if not all(1 <= window <= 10_000 for window in windows):
        parser.error("--windows from 1 to 10,000")
    peers = find_or_install(asked.venv)
    for lack in peers.lacks:
        print(f"left out: {lack}", flush=True)
    words = [word for word in asked.only.split(",") if word]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-peers-")))
        contestants = all_of(stack, folder, peers, [w.casefold() for w in words], max(windows))
        if not contestants:
            print("nothing is left to measure", flush=True)
            return 1
        print(
            f"{asked.size}-octet bodies, medians of {asked.rounds} rounds of {asked.seconds:g} s; "
            f"{peers.told}",
            flush=True,
        )
        print(f"{'':34}" + "".join(f"{name:>17}" for name in COLUMNS), flush=True)
        for window in windows:
            print(f"window {window:,}", flush=True)
            _print(window, _measure(contestants, window, asked))
    names = {contestant.name.split()[0] for contestant in contestants}
    return 0 if words or ("bstar" in names and len(names - {"floor"}) > 1) else 1


def _measure(
    contestants: Sequence[Contestant], window: int, asked: argparse.Namespace
) -> dict[str, list[Figures]]:
    """Figures of each contestant, one for each round."""
    taking_part = [each for each in contestants if each.takes_part(window)]
    rows: dict[str, list[Figures]] = {each.name: [] for each in taking_part}
    for contestant in taking_part:
        contestant.turn(window, min(0.3, asked.seconds), asked.size)  # warm
    for _ in range(asked.rounds):
        for contestant in taking_part:
            rows[contestant.name].append(contestant.turn(window, asked.seconds, asked.size))
    return rows


def _print(window: int, rows: dict[str, list[Figures]]) -> None:
    for name, figures in rows.items():
        ratios = [
            ratio_of([each.per_second for each in rows.get(ours, [])], [each.per_second for each in figures])
            for ours in (SYNC, ASYNC)
        ]
        p50s = [each.p50_us for each in rows.get(SYNC, [])]
        ratios.append(ratio_of([each.p50_us for each in figures], p50s))
        cells = [
            f"{statistics.median(column):17,.1f}"
            for column in (
                [each.per_second for each in figures],
                [each.p50_us for each in figures],
                [each.p99_us for each in figures],
                [each.cpu_us for each in figures],
            )
        ]
        print(
            f"  {name:32}" + "".join(cells) + "".join(f"{_shown(ratio):>17}" for ratio in ratios), flush=True
        )


def ratio_of(figures: Sequence[float], by: Sequence[float]) -> float | None:
    """The median of the rounds' ratios; None if one of the two was not measured."""
    ratios = [figure / other for figure, other in zip(figures, by, strict=False) if other]
    return statistics.median(ratios) if ratios else None


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what was measured is printed, and what was started has ended
