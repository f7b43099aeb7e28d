"""How long a worker works on after its caller gave up.

    python benchmarks/cancel.py [--rounds 200]

A caller asks a real pair, waits until the handler has begun, and gives up: it cancels the call, leaves a
stream, or its deadline passes. Milliseconds from then until the handler knows it; each beside the round trip
of a request to a handler that returns at once, because both are a message to the node and one to the worker.
"""

import argparse
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from bstar_client import CallTimeoutError, HAClient, Request, Worker
from bstar_testing import pair

_LIMIT_S = 20.0
_DEADLINE_S = 0.1

begun: "queue.SimpleQueue[float]" = queue.SimpleQueue()
idle: "queue.SimpleQueue[float]" = queue.SimpleQueue()


def wait(request: Request) -> Iterator[bytes]:
    """A handler that works until its caller has gone. It notes when it began, and when it knew."""
    gone: queue.SimpleQueue[float] = queue.SimpleQueue()
    request.on_cancel(lambda: gone.put(time.monotonic()))
    begun.put(time.monotonic())
    yield b"begun"
    idle.put(gone.get(timeout=_LIMIT_S))


def by_cancel(client: HAClient) -> float:
    """Give up by ``cancel``. When that was."""
    call = client.begin("wait", b"")
    begun.get(timeout=_LIMIT_S)
    now = time.monotonic()
    call.cancel()
    return now


def by_break(client: HAClient) -> float:
    """Leave a stream."""
    parts = client.stream("wait", b"")
    next(parts)
    begun.get(timeout=_LIMIT_S)
    now = time.monotonic()
    parts.close()
    return now


def by_deadline(client: HAClient) -> float:
    """Let the deadline pass."""
    until = time.monotonic() + _DEADLINE_S
    try:
        client.request("wait", b"", timeout=_DEADLINE_S)
    except CallTimeoutError:
        begun.get(timeout=_LIMIT_S)
    return until


WAYS: dict[str, Callable[[HAClient], float]] = {
    "cancel()": by_cancel,
    "break": by_break,
    "deadline": by_deadline,
}


def main() -> int:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    trips: list[float] = []
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with (
        pair(workers=0) as made,
        Worker(made.endpoints, "wait", wait),
        Worker(made.endpoints, "echo", lambda request: request.body),
        HAClient(made.endpoints, timeout=_LIMIT_S) as client,
    ):
        client.request("echo", b"")
        for _ in range(rounds):
            began = time.monotonic()
            client.request("echo", b"")
            trips.append(time.monotonic() - began)
            for way, give_up in WAYS.items():
                left = give_up(client)
                taken[way].append(idle.get(timeout=_LIMIT_S) - left)
    print(f"{'':10}{'median ms':>10}{'p99 ms':>10}{'÷ a round trip':>16}")
    trip = statistics.median(trips)
    for way, seconds in {"round trip": trips, **taken}.items():
        median, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
        print(f"{way:10}{median * 1e3:10.2f}{p99 * 1e3:10.2f}{median / trip:16.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
