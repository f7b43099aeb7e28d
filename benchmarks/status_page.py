"""How soon a person sees a node's status page: at rest, and while the node is under load.

    PYTHONPATH=tests:benchmarks python benchmarks/status_page.py [--window 100] [--turns 10]

A headless Chromium opens the page of the active node of a pair, by turns without load and while a plain
client keeps ``--window`` requests in flight. The times are the browser's own, in ms from the beginning of the
navigation: the answer has arrived, and the first content is painted (First Contentful Paint). On a small
machine browser, brokers, worker and client share its cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bstar_testing import Pair
from plain import PlainClient
from run import echo_workers
from support.chromium import Browser, chromium

# A paint may come after the page's load event.
PAINTED = """new Promise(done => {
  const look = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    const page = performance.getEntriesByType('navigation')[0];
    if (paint) done([page.responseEnd, paint.startTime, page.decodedBodySize]);
    else requestAnimationFrame(look);
  };
  look();
})"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--window", type=int, default=100, help="requests in flight")
    parser.add_argument("--turns", type=int, default=10)
    asked = parser.parse_args()
    rows: dict[str, list[list[float]]] = {"at rest": [], "under load": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder) / "pair", settings={"log.level": "warning"}) as pair,
        chromium(Path(folder) / "profile") as browser,
    ):
        pair.start()
        node = pair.active()
        with echo_workers(node.endpoint, 1):
            _open(browser, node.http_address)
            for _ in range(asked.turns):
                rows["at rest"].append(_open(browser, node.http_address))
                with load(node.endpoint, asked.window):
                    rows["under load"].append(_open(browser, node.http_address))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {asked.turns} turns")
    print(f"{'':12}{'arrived ms':>12}{'painted ms':>12}{'slowest ms':>12}{'bytes':>10}")
    for way, of_way in rows.items():
        arrived, painted, octets = zip(*of_way, strict=True)
        figures = [statistics.median(arrived), statistics.median(painted), max(painted)]
        print(f"{way:12}" + "".join(f"{figure:>12.0f}" for figure in figures) + f"{max(octets):>10.0f}")


def _open(browser: Browser, address: str) -> list[float]:
    page = browser.open(f"http://{address}/", width=1280, height=844, is_phone=False)
    found: list[float] = page.evaluate(PAINTED)
    return found


@contextmanager
def load(endpoint: str, window: int) -> Iterator[None]:
    """Requests, as many in flight, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    has_begun, is_over = context.Event(), context.Event()
    process = context.Process(target=_ask, args=(endpoint, window, has_begun, is_over))
    process.start()
    try:
        has_begun.wait()
        yield
    finally:
        is_over.set()
        process.join()


def _ask(endpoint: str, window: int, has_begun: threading.Event, is_over: threading.Event) -> None:
    with PlainClient(endpoint) as client:
        client.wait_ready()
        client.keep(window, 0.5, b"x")
        has_begun.set()
        while not is_over.is_set():
            client.keep(window, 0.5, b"x")


if __name__ == "__main__":
    main()
