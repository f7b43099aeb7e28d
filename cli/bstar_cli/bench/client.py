"""One client of ``bstar bench``: a process that sends requests as ordered and counts the replies.

    python -m bstar_cli.bench.client

It reads lines of JSON from its standard input (``plan.ToClient``): first what it is for, then one line for
each turn; and it writes lines (``plan.FromClient``): that it is ready, how far it is, and what it saw. It
ends at once when its standard input closes. A process and not a thread, because one interpreter fills one
core: clients in threads of one process would measure each other.

Latencies are those of the client's own clock: in a closed loop from the call to the reply, with a rate from
the moment that the request was due (``plan``). Replies are counted, their bodies are not looked at.
"""

import asyncio
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from bstar.errors import BstarError
from bstar.security import Security
from bstar_cli import exits
from bstar_cli.bench.plan import (
    FromClient,
    Job,
    Progress,
    Ready,
    Stop,
    Tally,
    ToClient,
    Trouble,
    Turn,
    bucket_of,
    due_at,
    due_count,
)
from bstar_cli.engine import Paced
from bstar_client import AsyncHAClient, CallFailed, HAClient, Reply

_PROGRESS_S = 0.2

_clock = time.monotonic
_decode = msgspec.json.Decoder(ToClient).decode
_speaking = threading.Lock()


def main() -> None:
    """Be a client until the standard input closes."""
    turns: queue.SimpleQueue[Job | Turn] = queue.SimpleQueue()
    run = _Run()
    threading.Thread(target=_listen, args=(turns, run), daemon=True).start()
    job = turns.get()
    assert isinstance(job, Job)
    try:
        if job.side.client == "sync":
            _be_sync(job, turns, run)
        else:
            asyncio.run(_be_async(job, turns, run))
    except BstarError as error:
        _tell(Trouble(type(error).__name__, str(error), exits.code_of(error)))


def _listen(turns: "queue.SimpleQueue[Job | Turn]", run: "_Run") -> None:
    for line in sys.stdin.buffer:
        message = _decode(line)
        if isinstance(message, Stop):
            run.stop.set()
        else:
            turns.put(message)
    # Whoever wanted the figures is gone, or has them.
    os._exit(0)


def _tell(message: FromClient) -> None:
    with _speaking:
        try:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            os._exit(0)  # as when the standard input closes


class _Run:
    """What one turn sees; made anew for each. ``stop`` is set when the turn is to end early."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.begin()

    def begin(self) -> None:
        self.stop.clear()
        self.buckets: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()
        self.answered = 0
        self.began_at = self.last_at = _clock()

    def reply(self, latency_s: float) -> None:
        self.buckets[bucket_of(latency_s)] += 1
        self.answered += 1

    def failure(self, error: BstarError) -> None:
        self.failed[type(error).__name__] += 1

    def tally(self, unsent: int = 0) -> Tally:
        return Tally(self.last_at - self.began_at, dict(self.buckets), dict(self.failed), unsent)

    def bodies(self, turn: Turn) -> Iterator[bytes]:
        """The bodies of a closed loop: as many as were asked for, or until the time is over."""
        body = b"x" * turn.size
        stop = self.stop
        if turn.count is not None:
            for _ in range(turn.count):
                if stop.is_set():
                    return
                yield body
            return
        assert turn.seconds is not None
        until = self.began_at + turn.seconds
        while _clock() < until and not stop.is_set():
            yield body


@contextmanager
def _reported(run: _Run) -> Iterator[None]:
    """Tell the progress while a turn lasts."""
    is_over = threading.Event()

    def report() -> None:
        while not is_over.wait(_PROGRESS_S):
            _tell(Progress(run.answered))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# --- with threads -----------------------------------------------------------------------------------------


def _be_sync(job: Job, turns: "queue.SimpleQueue[Job | Turn]", run: _Run) -> None:
    with HAClient(
        job.side.fleet, dialect=job.side.dialect, timeout=job.timeout_s, security=Security.from_environment()
    ) as client:
        client.request(job.service, b"ready?")
        _tell(Ready())
        while True:
            turn = turns.get()
            assert isinstance(turn, Turn)
            run.begin()
            with _reported(run):
                if turn.rate is not None:
                    unsent = _open_sync(client, job, turn, run)
                else:
                    unsent = 0
                    (_map_sync if job.means == "map" else _request_sync)(client, job, turn, run)
            _tell(run.tally(unsent))


def _map_sync(client: HAClient, job: Job, turn: Turn, run: _Run) -> None:
    outcomes = client.map(job.service, run.bodies(turn), window=turn.window, ordered=False, errors="return")
    for outcome in outcomes:
        _note(outcome, run)
    run.last_at = _clock()


def _note(outcome: Reply | CallFailed, run: _Run) -> None:
    if type(outcome) is Reply:
        run.reply(outcome.elapsed_s)
    else:
        assert isinstance(outcome, CallFailed)
        run.failure(outcome.error)


def _request_sync(client: HAClient, job: Job, turn: Turn, run: _Run) -> None:
    # The next body is due as soon as a thread is free for it.
    _pace(client, job, turn, run, (_clock() for _ in run.bodies(turn)))


def _open_sync(client: HAClient, job: Job, turn: Turn, run: _Run) -> int:
    """Send at the schedule's moments; how many were due and never sent."""
    total = due_count(turn)
    # Those that are late are still sent, for as long as a request may take.
    gives_up_at = run.began_at + due_at(turn, max(0, total - 1)) + job.timeout_s
    moments = (run.began_at + due_at(turn, index) for index in range(total))
    sent = _pace(client, job, turn, run, moments, gives_up_at)
    return 0 if run.stop.is_set() else total - sent


def _pace(
    client: HAClient, job: Job, turn: Turn, run: _Run, moments: Iterator[float], gives_up_at: float = math.inf
) -> int:
    """Call at these moments, from as many threads as the window; how many calls there were."""
    body = b"x" * turn.size
    counting = threading.Lock()

    def call(number: int, due: float) -> None:
        try:
            client.request(job.service, body)
        except BstarError as error:
            with counting:
                run.failure(error)
            return
        latency_s = _clock() - due
        with counting:
            run.reply(latency_s)

    paced = Paced(turn.window, moments, run.stop, call, gives_up_at=gives_up_at)
    paced.join()
    run.last_at = _clock()
    return paced.sent


# --- with asyncio -----------------------------------------------------------------------------------------


async def _be_async(job: Job, turns: "queue.SimpleQueue[Job | Turn]", run: _Run) -> None:
    async with AsyncHAClient(
        job.side.fleet, dialect=job.side.dialect, timeout=job.timeout_s, security=Security.from_environment()
    ) as client:
        await client.request(job.service, b"ready?")
        _tell(Ready())
        while True:
            turn = await asyncio.to_thread(turns.get)
            assert isinstance(turn, Turn)
            run.begin()
            with _reported(run):
                if turn.rate is not None:
                    unsent = await _open_async(client, job, turn, run)
                else:
                    unsent = 0
                    await (_map_async if job.means == "map" else _request_async)(client, job, turn, run)
            _tell(run.tally(unsent))


async def _map_async(client: AsyncHAClient, job: Job, turn: Turn, run: _Run) -> None:
    outcomes = client.map(job.service, run.bodies(turn), window=turn.window, ordered=False, errors="return")
    async for outcome in outcomes:
        _note(outcome, run)
    run.last_at = _clock()


async def _request_async(client: AsyncHAClient, job: Job, turn: Turn, run: _Run) -> None:
    bodies = run.bodies(turn)

    async def ask() -> None:
        for body in bodies:
            await _call_async(client, job, body, run, _clock())

    async with asyncio.TaskGroup() as group:
        for _ in range(turn.window):
            group.create_task(ask())
    run.last_at = _clock()


async def _call_async(client: AsyncHAClient, job: Job, body: bytes, run: _Run, since: float) -> None:
    try:
        await client.request(job.service, body)
    except BstarError as error:
        run.failure(error)
        return
    run.reply(_clock() - since)


async def _open_async(client: AsyncHAClient, job: Job, turn: Turn, run: _Run) -> int:
    """As ``_open_sync``. A thread keeps the time: timers of the event loop are up to a millisecond late."""
    body = b"x" * turn.size
    total = due_count(turn)
    gives_up_at = run.began_at + due_at(turn, max(0, total - 1)) + job.timeout_s
    loop = asyncio.get_running_loop()
    due = asyncio.Semaphore(0)
    sent = 0

    def make_due(count: int) -> None:
        for _ in range(count):
            due.release()

    def keep_time() -> None:
        index = 0
        while index < total:
            first, now = index, _clock()
            while index < total and run.began_at + due_at(turn, index) <= now:
                index += 1
            if index > first:
                loop.call_soon_threadsafe(make_due, index - first)
            elif run.stop.wait(run.began_at + due_at(turn, index) - now):
                break
        # Each task finds that nothing is left to send.
        loop.call_soon_threadsafe(make_due, turn.window)

    async def ask() -> None:
        nonlocal sent
        while True:
            await due.acquire()
            if sent >= total or run.stop.is_set() or _clock() >= gives_up_at:
                return
            sent += 1
            await _call_async(client, job, body, run, run.began_at + due_at(turn, sent - 1))

    keeper = threading.Thread(target=keep_time, daemon=True)
    keeper.start()
    async with asyncio.TaskGroup() as group:
        for _ in range(turn.window):
            group.create_task(ask())
    run.last_at = _clock()
    await asyncio.to_thread(keeper.join)
    return 0 if run.stop.is_set() else total - sent


if __name__ == "__main__":
    main()
