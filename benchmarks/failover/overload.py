"""False failovers: an overloaded machine and a jittery state link must not move the role.

Two busy processes per core compete with a pair under a steady load of requests, which may be large. Each
state message takes 50 ms ± 50 ms longer in either direction (Toxiproxy). Nothing fails, so every change of a
node's state is a false one.

``expire_on_refused`` stays on although the state link leads through a proxy: it takes a broken connection
*and* a refused one, and this proxy delays and does neither. A proxy that may be stopped is another matter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bstar.settings.timing import ProfileName
from bstar_testing.pairs import STATE_LINKS
from bstar_testing.processes import HarnessError, Process, wait_until
from chaos.history import Writer
from chaos.toxics import BOTH, Links
from chaos.toxiproxy import Server
from failover.figures import longest_gap
from failover.stand import Stand

BUSY_PER_CORE = 2
LATENCY_MS, JITTER_MS = 50, 50
RATE = 100.0
# Requests of a mebibyte: what leaves the machine time for other things.
LARGE_RATE = 20.0
_LOOK_S = 5.0
_SAY_S = 60.0

# Ends with whoever started it: then its standard input does.
_BUSY = """
import select, sys
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(1_000_000):
        pass
"""


class Overload(msgspec.Struct):
    """What was seen. Lag is how late a deadline of a node's loop was served, at worst; ``timeout_max_s`` the
    longest failover timeout that a look found.
    """

    profile: str
    padding_bytes: int
    seconds: float
    busy: int
    role_changes: int
    lag_max_s: float
    stalls: int
    calls: int
    failed: int
    lost: int
    longest_gap_s: float
    timeout_max_s: float
    load_average: float


def run(
    folder: Path, profile: ProfileName, padding_bytes: int, seconds: float, say: Callable[[str], None]
) -> Overload:
    """Load the machine for so long, and count. A pair that fails is counted, not raised."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        journal = stack.enter_context(Writer(folder / "toxics.jsonl"))
        server = stack.enter_context(Server(folder, journal))
        links = Links(server, journal)
        stack.callback(links.close)

        def route(link: str, address: str) -> str:
            return links.route(link, address) if link in STATE_LINKS else address

        rate = RATE if not padding_bytes else LARGE_RATE
        stand = stack.enter_context(
            Stand(folder / "pair", profile, rate=rate, seed=1, route=route, padding_bytes=padding_bytes)
        )
        before = _changes(stand)
        for link in STATE_LINKS:
            stack.enter_context(links[link].latency(ms=LATENCY_MS, jitter_ms=JITTER_MS, stream=BOTH))
        count = BUSY_PER_CORE * (os.cpu_count() or 1)
        stack.enter_context(_busy(folder, journal, count))
        stand.follower.wait_for_answers(5)
        began = time.monotonic()
        say(f"overload: {profile}, {count} busy processes and {JITTER_MS} ms jitter for {seconds:.0f} s")
        timeout_max_s = _last(stand, began, seconds, before, say)
        until = time.monotonic()
        load_average = os.getloadavg()[0]
        states = [node.wait_for("any state", lambda _: True) for node in stand.cluster.nodes]
        stand.follower.look()
        gap_s = longest_gap(stand.follower.reply_times, began, until)
        changes = _changes(stand) - before
        stand.mark("overload", began, gap_s)
        losses = stand.losses()["overload"]
    return Overload(
        profile=profile,
        padding_bytes=padding_bytes,
        seconds=until - began,
        busy=count,
        role_changes=changes,
        lag_max_s=max(state.loop.lag_max_s for state in states if state.loop is not None),
        stalls=sum(state.pair.stalls for state in states),
        calls=losses.calls,
        failed=losses.failed,
        lost=losses.lost,
        longest_gap_s=gap_s,
        timeout_max_s=timeout_max_s,
        load_average=load_average,
    )


def _changes(stand: Stand) -> int:
    """How often both nodes together have changed their states."""
    states = [node.wait_for("any state", lambda _: True) for node in stand.cluster.nodes]
    return sum(count for state in states for count in state.pair.transitions.values())


def _last(stand: Stand, began: float, seconds: float, before: int, say: Callable[[str], None]) -> float:
    """Let the time pass that is to be measured; look on meanwhile that there is something to measure. The
    longest failover timeout that was seen.
    """
    said_at = began
    timeout_max_s = 0.0
    while (now := time.monotonic()) < began + seconds:
        time.sleep(min(_LOOK_S, began + seconds - now))
        seen = len(stand.follower.reply_times)
        wait_until(lambda seen=seen: _has_more(stand, seen), "replies under overload")  # type: ignore[misc]
        states = [node.wait_for("any state", lambda _: True) for node in stand.cluster.nodes]
        timeout_max_s = max(timeout_max_s, *(state.pair.failover_timeout_s for state in states))
        if now - said_at >= _SAY_S:
            said_at = now
            changes = _changes(stand) - before
            say(f"overload: {now - began:4.0f} s, {changes} changes of state, timeout {timeout_max_s:g} s")
    return timeout_max_s


def _has_more(stand: Stand, seen: int) -> bool:
    stand.follower.look()
    return len(stand.follower.reply_times) > seen


@contextmanager
def _busy(folder: Path, journal: Writer, count: int) -> Iterator[None]:
    processes = [
        Process(f"busy{number}", (sys.executable, "-c", _BUSY), folder=folder, note=journal.note)
        for number in range(count)
    ]
    try:
        for process in processes:
            process.start()
        yield
        if not all(process.is_running for process in processes):
            raise HarnessError("a busy process has ended, so the machine was not overloaded all the time")
    finally:
        for process in processes:
            process.close()
