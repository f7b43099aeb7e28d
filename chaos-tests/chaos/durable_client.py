"""A client of the durable store that writes its history: ``python -m chaos.durable_client --help``.

Each thread submits requests, singly and in batches, and then draws what becomes of each: its answer is
fetched, fetched again, closed; or it is cancelled or closed while it is pending; or nobody asks for it. A
call that failed is made again until it succeeds or the client is told to end: a submit under the same key, so
it is the same request.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from bstar.errors import DeadLetterError, RequestCancelledError, UnknownRequestError
from bstar.security import Security
from bstar.wire.durable import keyed_id
from bstar_client import BstarError, HAClient, Task
from chaos.history import Asked, Operation, Started, Stopped, Told, Writer

T = TypeVar("T")

_RETRY_S = 0.05
_WAIT_S = 1.0
_BATCH = 8
# What becomes of a request, and how often.
_FATES = {"fetch": 40, "fetch, close": 25, "leave": 15, "cancel": 10, "close": 10}


def id_of(service: str, body: str) -> str:
    """The id of the request with this body, which is its key, too."""
    return keyed_id(service.encode(), body.encode()).hex()


class Caller:
    """Calls the store, and notes what it asked and was told. Any thread may use it."""

    def __init__(self, client: HAClient, history: Writer, service: str) -> None:
        self._client = client
        self._history = history
        self._service = service
        self._numbers = itertools.count(1)

    def submit(self, body: str, delay_s: float | None) -> bool:
        """True if it was acknowledged."""
        task = self._client.submit
        return self._ask(
            Operation.SUBMIT, body,
            lambda: (task(self._service, body.encode(), key=body, delay=delay_s) and "stored", ""),
        ) == "stored"  # fmt: skip

    def submit_many(self, bodies: Sequence[str]) -> bool:
        """True if all of them were acknowledged."""
        numbers = [next(self._numbers) for _ in bodies]
        for number, body in zip(numbers, bodies, strict=True):
            self._history.write(Asked(at=0.0, id=number, operation=Operation.SUBMIT, body=body))
        left = list(numbers)
        tasks = [Task(body.encode(), key=body) for body in bodies]
        try:
            for _ in self._client.submit_many(self._service, tasks):
                self._history.write(Told(at=0.0, id=left.pop(0), outcome="stored"))
        except BstarError as error:
            for number in left:
                self._history.write(Told(at=0.0, id=number, outcome="failed", text=_text(error)))
        return not left

    def result(self, body: str, wait_s: float = _WAIT_S) -> str:
        """What was told: an answer, pending, cancelled, dead, unknown, or failed."""

        def fetch() -> tuple[str, str]:
            try:
                found = self._client.result(id_of(self._service, body), wait=wait_s)
            except RequestCancelledError:
                return "cancelled", ""
            except DeadLetterError as error:
                return "dead", _text(error)
            except UnknownRequestError:
                return "unknown", ""
            return ("pending", "") if found is None else ("answer", found.body.decode("utf-8", "replace"))

        return self._ask(Operation.RESULT, body, fetch)

    def close(self, body: str) -> str:
        """The state before it, or failed."""
        return self._ask(
            Operation.CLOSE, body,
            lambda: (self._client.close_result(id_of(self._service, body)).state, ""),
        )  # fmt: skip

    def cancel(self, body: str) -> str:
        """The state after it, or failed."""
        return self._ask(
            Operation.CANCEL, body, lambda: (self._client.cancel(id_of(self._service, body)).state, "")
        )

    def _ask(self, operation: Operation, body: str, call: Callable[[], tuple[str, str]]) -> str:
        number = next(self._numbers)
        self._history.write(Asked(at=0.0, id=number, operation=operation, body=body))
        try:
            outcome, text = call()
        except BstarError as error:
            outcome, text = "failed", _text(error)
        self._history.write(Told(at=0.0, id=number, outcome=outcome, text=text))
        return outcome


def _text(error: BstarError) -> str:
    return f"{type(error).__name__}: {error}"


class _Lives:
    """Requests from their submit to their end, until ``stopping``."""

    def __init__(self, caller: Caller, name: str, stopping: threading.Event) -> None:
        self._caller = caller
        self._name = name
        self._stopping = stopping
        self._numbers = itertools.count(1)

    def run(self, number: int, pause_s: float) -> None:
        """One after the other."""
        chance = random.Random(f"{self._name} {number}")
        while not self._stopping.wait(chance.uniform(0, 2 * pause_s)):
            count = _BATCH if chance.random() < 0.2 else 1
            bodies = [f"{self._name}-{os.getpid()}-{next(self._numbers)}" for _ in range(count)]
            delay_s = 0.5 if chance.random() < 0.1 else None
            if count > 1:
                submitted = self._until(lambda: self._caller.submit_many(bodies), bool)  # noqa: B023 - at once
            else:
                submitted = self._until(lambda: self._caller.submit(bodies[0], delay_s), bool)  # noqa: B023
            for body in bodies if submitted else ():
                self._end(body, chance.choices(list(_FATES), list(_FATES.values()))[0])

    def _end(self, body: str, fate: str) -> None:
        caller = self._caller
        if fate == "cancel":
            self._until(functools.partial(caller.cancel, body), _is_told)
            self._until(functools.partial(caller.result, body), _is_told)
        if fate in ("fetch", "fetch, close"):
            self._until(functools.partial(caller.result, body), _is_ended)
            self._until(functools.partial(caller.result, body), _is_ended)
        if fate in ("close", "fetch, close"):
            self._until(functools.partial(caller.close, body), _is_told)

    def _until(self, call: Callable[[], T], is_enough: Callable[[T], bool]) -> T | None:
        while not self._stopping.is_set():
            told = call()
            if is_enough(told):
                return told
            self._stopping.wait(_RETRY_S)
        return None


def _is_told(outcome: str) -> bool:
    return outcome != "failed"


def _is_ended(outcome: str) -> bool:
    return outcome not in ("failed", "pending")


def check(client: HAClient, path: Path, service: str, bodies: Sequence[str], limit_s: float) -> None:
    """Ask for every one of these requests until it has ended, and note what was told in a history.

    After the limit each is asked for once more, and stays as it is.
    """
    until = time.monotonic() + limit_s
    with Writer(path) as history:
        caller = Caller(client, history, service)

        def ask(body: str) -> None:
            while not _is_ended(caller.result(body)) and time.monotonic() < until:
                time.sleep(_RETRY_S)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, bodies))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos.durable_client", description=__doc__)
    parser.add_argument("--name", required=True, help="unique in the run; bodies begin with it")
    parser.add_argument("--endpoints", required=True, help="comma-separated, in order of preference")
    parser.add_argument("--service", default="work")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--rate", type=float, default=60.0, help="submits a second, of all threads, about")
    parser.add_argument("--deadline", type=float, default=3.0, help="seconds for each call")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Call until told to stop."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    endpoints = tuple(options.endpoints.split(","))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    with Writer(options.history) as history:
        history.write(Started(at=0.0, name=options.name, pid=os.getpid(), endpoints=endpoints))
        with HAClient(
            list(endpoints), timeout=options.deadline, security=Security.from_environment()
        ) as client:
            caller = Caller(client, history, options.service)
            lives = _Lives(caller, options.name, stopping)
            pause_s = options.threads / options.rate
            numbers = range(options.threads)
            threads = [threading.Thread(target=lives.run, args=(number, pause_s)) for number in numbers]
            threading.Thread(target=_watch_stdin, args=(stopping,), daemon=True).start()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        history.write(Stopped(at=0.0))
    return 0


def _watch_stdin(stopping: threading.Event) -> None:
    """Whoever started this process is gone when its end of the pipe is."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
