"""The demo's client: a process that calls a service at a steady rate until its standard input ends.

Every request carries a number of its own, and a reply with another number is a crossed one. It prints a line
of progress ten times a second. When told to stop it waits for what is outstanding and writes when each call
was sent and answered, on the monotonic clock, which all processes of a machine share.
"""

import os
import select
import sys
import threading
import time
from pathlib import Path

import msgspec

from bstar.errors import BstarError
from bstar_client import HAClient

__all__ = ["CALL_TIMEOUT_S", "Outcome", "Progress", "main"]

PROGRESS_S = 0.1
# Requests outstanding at most: when nobody answers, the load waits instead of piling up.
WINDOW = 64
# Far longer than any failover, so that a call fails only if its request is lost.
CALL_TIMEOUT_S = 15.0


class Progress(msgspec.Struct, frozen=True):
    """How far the load is."""

    sent: int
    answered: int
    failed: int
    crossed: int


class Outcome(msgspec.Struct, frozen=True):
    """All that happened. ``calls`` are the times of sending and of the reply, of those that were answered."""

    sent: int
    crossed: int
    calls: list[tuple[float, float]]
    failures: list[str]
    resends: int
    failovers: int


class _Load:
    def __init__(self, client: HAClient, service: str, rate: float) -> None:
        self._client = client
        self._service = service
        self._rate = rate
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._ticks = 0
        self.sent = 0
        self.crossed = 0
        self.calls: list[tuple[float, float]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(WINDOW)]
        for thread in self._threads:
            thread.start()

    def progress(self) -> Progress:
        with self._lock:
            return Progress(self.sent, len(self.calls), len(self.failures), self.crossed)

    def finish(self) -> None:
        """Send nothing more, and wait until every call has ended."""
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
                self.sent += 1
                number = self.sent
            self._call(b"%d" % number)

    def _call(self, body: bytes) -> None:
        sent = time.monotonic()
        try:
            reply = self._client.request(self._service, body)
        except BstarError as error:
            with self._lock:
                self.failures.append(f"request {body.decode()}: {type(error).__name__}: {error}")
            return
        answered = time.monotonic()
        with self._lock:
            self.calls.append((sent, answered))
            self.crossed += reply.frames != (body,)


def main(arguments: list[str]) -> int:
    """``ENDPOINTS SERVICE RATE FILE``: the outcome goes to the file."""
    endpoints, service, rate, file = arguments
    with HAClient(endpoints.split(","), timeout=CALL_TIMEOUT_S) as client:
        load = _Load(client, service, float(rate))
        while not select.select([sys.stdin], [], [], PROGRESS_S)[0] or os.read(0, 1024):
            _tell(load.progress())
        load.finish()
        _tell(load.progress())
        outcome = Outcome(
            load.sent,
            load.crossed,
            load.calls,
            load.failures,
            client.counters.resends,
            client.counters.failovers,
        )
    Path(file).write_bytes(msgspec.json.encode(outcome))
    return 0


def _tell(progress: Progress) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(progress) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
