"""The load engine: calls at the moments of a timetable, each counted once, and the time without an answer.

``bstar load``, the demo, ``bstar bench`` and the chaos tests use it. ``Paced`` keeps the timetable,
``SteadyCalls`` pairs replies and counts them, and ``Gaps`` finds out how long each failover took. While no
node answers, calls wait for a free thread instead of piling up.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from bstar.errors import BstarError
from bstar_client import FailedOver, HAClient

Answered = Callable[[float, float, str], None]
Failed = Callable[[int, float, float, BstarError], None]

# A failover, and its gap in seconds; None if the node that took over never answered.
Settled = tuple[FailedOver, float | None]


class Paced:
    """Calls ``call(number, due)`` at each of ``moments`` (monotonic clock), from ``window`` threads.

    Numbers begin with 1. A call that is late begins as soon as a thread is free. It ends with the moments,
    when ``stop`` is set, or at ``gives_up_at``.
    """

    def __init__(
        self,
        window: int,
        moments: Iterator[float],
        stop: threading.Event,
        call: Callable[[int, float], None],
        *,
        gives_up_at: float = math.inf,
    ) -> None:
        self.sent = 0
        self._moments = moments
        self._stop = stop
        self._call = call
        self._gives_up_at = gives_up_at
        # One thread waits for the next moment, the others for it.
        self._next = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(window)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until every call has ended. Raises the first error that one raised."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            while (turn := self._turn()) is not None:
                self._call(*turn)
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self._errors.append(error)

    def _turn(self) -> tuple[int, float] | None:
        """The next call, when its moment has come, or None."""
        with self._next:
            if self._stop.is_set() or time.monotonic() >= self._gives_up_at:
                return None
            due = next(self._moments, None)
            if due is None:
                return None
            if (wait_s := due - time.monotonic()) > 0 and self._stop.wait(wait_s):
                return None
            self.sent += 1
            return self.sent, due


class Counts(msgspec.Struct, frozen=True):
    """How far the calls are. ``crossed`` were answered, with something else than their own body."""

    sent: int
    answered: int
    failed: int
    crossed: int

    @property
    def waiting(self) -> int:
        """Sent, and not ended yet."""
        return self.sent - self.answered - self.failed


class SteadyCalls:
    """``rate`` calls per second of a service that answers with the body, from now until ``finish``.

    At most ``window`` are outstanding. ``on_answer`` gets the times of sending and of the answer on the
    monotonic clock and the node that answered, ``on_failure`` the request's number, the times of sending and
    of its end, and its error; under a lock, so they need none.
    """

    def __init__(
        self,
        client: HAClient,
        service: str,
        *,
        rate: float,
        window: int,
        on_answer: Answered,
        on_failure: Failed,
    ) -> None:
        self._client = client
        self._service = service
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._answered = self._failed = self._crossed = 0
        began = time.monotonic()
        moments = (began + tick / rate for tick in itertools.count())
        self._paced = Paced(window, moments, self._stop, self._call)

    def counts(self) -> Counts:
        """How far the calls are now."""
        with self._lock:
            return Counts(self._paced.sent, self._answered, self._failed, self._crossed)

    def finish(self) -> None:
        """Send nothing more, and wait until every call has ended. Idempotent."""
        self._stop.set()
        self._paced.join()

    def _call(self, number: int, due: float) -> None:
        body = b"%d" % number
        sent_at = time.monotonic()
        try:
            reply = self._client.request(self._service, body)
        except BstarError as error:
            ended_at = time.monotonic()
            with self._lock:
                self._failed += 1
                self._on_failure(number, sent_at, ended_at, error)
            return
        answered_at = time.monotonic()
        with self._lock:
            self._answered += 1
            self._crossed += reply.frames != (body,)
            self._on_answer(sent_at, answered_at, reply.endpoint)


class Gaps:
    """How long nothing was answered, as the caller saw it: the longest time, and the time of each failover.

    A client knows for how long it had no active node, but a node that falls silent is the active one until
    that is noticed. So a failover's gap is the time from the last reply before it to the first reply of the
    node that took over. The event and that reply come from different threads, in either order: each call of a
    method returns the failovers whose gaps are known with it.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._answered_at: float | None = None
        self._endpoint: str | None = None
        # The gap before the first of the latest node's answers.
        self._before_s: float | None = None
        self._open: list[FailedOver] = []

    def answer(self, endpoint: str, answered_at: float) -> list[Settled]:
        """A reply of this node."""
        gap_s = None if self._answered_at is None else max(0.0, answered_at - self._answered_at)
        if gap_s is not None:
            self.longest_s = max(self.longest_s, gap_s)
        if self._answered_at is None or answered_at > self._answered_at:
            self._answered_at = answered_at
        if endpoint != self._endpoint:
            self._endpoint, self._before_s = endpoint, gap_s
        awaited = [number for number, event in enumerate(self._open, 1) if event.to_endpoint == endpoint]
        if not awaited:
            return []
        # The nodes between answered nothing, so all of it was one gap.
        *passed, last = self._open[: awaited[-1]]
        del self._open[: awaited[-1]]
        return [*((event, None) for event in passed), (last, gap_s)]

    def failure(self, ended_at: float) -> None:
        """A call ended without an answer: until then one was waited for."""
        if self._answered_at is not None:
            self.longest_s = max(self.longest_s, ended_at - self._answered_at)

    def failover(self, event: FailedOver) -> list[Settled]:
        """Another node took over."""
        if not self._open and event.to_endpoint == self._endpoint:
            return [(event, self._before_s)]
        self._open.append(event)
        return []

    def close(self) -> list[Settled]:
        """Nothing more comes: the failovers without an answer after them."""
        left: list[Settled] = [(event, None) for event in self._open]
        self._open.clear()
        return left
