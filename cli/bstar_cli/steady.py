"""Calls at a steady rate from several threads, each counted once; ``bstar load`` and the demo use it.

Every request carries a number of its own, and a reply with another number is a crossed one. When nobody
answers, the calls wait for a free thread instead of piling up, and what was due meanwhile is made up for
afterwards. What became of each call goes to the two functions given, under a lock, so they need none.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from bstar.errors import BstarError
from bstar_client import HAClient

Answered = Callable[[float, float, str], None]
Failed = Callable[[int, BstarError], None]


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
    monotonic clock and the node that answered, ``on_failure`` the request's number and its error.
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
        self._rate = rate
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._ticks = 0
        self._sent = self._answered = self._failed = self._crossed = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(window)]
        for thread in self._threads:
            thread.start()

    def counts(self) -> Counts:
        """How far the calls are now."""
        with self._lock:
            return Counts(self._sent, self._answered, self._failed, self._crossed)

    def finish(self) -> None:
        """Send nothing more, and wait until every call has ended. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                due = self._started + self._ticks / self._rate
                self._ticks += 1
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            with self._lock:
                self._sent += 1
                number = self._sent
            self._call(number)

    def _call(self, number: int) -> None:
        body = b"%d" % number
        sent_at = time.monotonic()
        try:
            reply = self._client.request(self._service, body)
        except BstarError as error:
            with self._lock:
                self._failed += 1
                self._on_failure(number, error)
            return
        answered_at = time.monotonic()
        with self._lock:
            self._answered += 1
            self._crossed += reply.frames != (body,)
            self._on_answer(sent_at, answered_at, reply.endpoint)
