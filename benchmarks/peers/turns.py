"""Turns of a client process: lines of JSON in, figures out. It needs the standard library alone.

A turn is ``{"window": 100, "seconds": 1.5, "size": 16}``; its answer has ``answered``, ``per_second``,
``p50_us`` and ``p99_us``. The process ends when its standard input closes.
"""

import asyncio
import json
import sys
import time

clock = time.perf_counter


def turns():
    """The turns as they come: window, seconds and body."""
    print("ready", flush=True)
    for line in sys.stdin:
        yield _read(line)


async def turns_async():
    """The same in an event loop, which goes on meanwhile (heartbeats)."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield _read(line)


def _read(line):
    turn = json.loads(line)
    return turn["window"], turn["seconds"], b"x" * turn["size"]


def clean():
    """Say, after the figures, that nothing of the turn is left."""
    print("clean", flush=True)


def tell(latencies_s, elapsed_s):
    """Answer a turn."""
    latencies_s.sort()
    count = len(latencies_s)
    figures = {
        "answered": count,
        "per_second": count / elapsed_s,
        "p50_us": latencies_s[count // 2] * 1e6,
        "p99_us": latencies_s[min(count - 1, count * 99 // 100)] * 1e6,
    }
    print(json.dumps(figures), flush=True)
