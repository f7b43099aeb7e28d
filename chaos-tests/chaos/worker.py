"""A worker process that writes its history: ``python -m chaos.worker --help``.

It echoes each body with its own name and the number of the execution, so that a reply tells where it was
made. Begins are noted in the worker's own thread at the moment of the decision, and epochs as they are read
from the octets that reach it, before the product has looked at them: what the worker should have known is
not taken from what it says it knew.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bstar.errors import RemoteProtocolError
from bstar.wire import native
from bstar_client import JournalSettings, Request, Worker, WorkerHooks
from bstar_client.core.worker_dialects import Job
from chaos.history import PAIR, Begin, End, EpochSeen, Lost, Refused, Registered, Started, Stopped, Writer

__all__ = ["main"]


class _Jobs(queue.SimpleQueue["Job | None"]):
    """The way from the worker's thread to its handlers: what goes in is about to be begun."""

    def __init__(self, history: Writer, endpoints: tuple[str, ...]) -> None:
        super().__init__()
        self._history = history
        self._endpoints = endpoints
        self._numbers = itertools.count(1)
        self.executions: dict[bytes, int] = {}

    def put(self, item: Job | None, *_: Any, **__: Any) -> None:
        if item is not None:
            number = next(self._numbers)
            self.executions[bytes(item.body[0])] = number
            self._history.write(
                Begin(
                    at=0.0,
                    number=number,
                    identity=item.identity.hex(),
                    epoch=item.epoch,
                    endpoint=self._endpoints[item.node],
                    body=item.body[0].decode("utf-8", "replace"),
                    is_redelivered=item.is_redelivered,
                )
            )
        super().put(item)


class _Hooks(WorkerHooks):
    def __init__(self, history: Writer) -> None:
        self._history = history

    def registered(self, worker: Worker, endpoint: str) -> None:
        self._history.write(Registered(at=0.0, endpoint=endpoint))

    def lost(self, worker: Worker, endpoint: str, reason: str) -> None:
        self._history.write(Lost(at=0.0, endpoint=endpoint, reason=reason))


def _watch(worker: Worker, history: Writer) -> None:
    """Note the epochs that arrive and the requests that are refused."""
    core = worker._core
    receive, refuse = core.receive, core._refuse
    highest = 0

    def noting_receive(node: int, frames: list[bytes], now: float) -> Any:
        nonlocal highest
        try:
            epoch = native.decode(frames).epoch
        except RemoteProtocolError:
            epoch = 0
        if epoch > highest:
            highest = epoch
            history.write(EpochSeen(at=0.0, epoch=epoch, endpoint=worker.endpoints[node]))
        return receive(node, frames, now)

    def noting_refuse(job: Job, outputs: Any, now: float) -> None:
        history.write(Refused(at=0.0, identity=job.identity.hex(), epoch=job.epoch, epoch_seen=core.epoch))
        refuse(job, outputs, now)

    core.receive = noting_receive  # type: ignore[method-assign]
    core._refuse = noting_refuse  # type: ignore[method-assign]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos.worker", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--endpoints", required=True, help="comma-separated")
    parser.add_argument("--service", default="work")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--journal", help="directory of the product's journals")
    parser.add_argument("--credit", type=int, default=1)
    parser.add_argument("--work-ms", type=float, default=5.0, help="mean length of an execution")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Work until told to stop."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    endpoints = tuple(options.endpoints.split(","))
    lengths = random.Random(options.name)
    with Writer(options.history) as history:
        jobs = _Jobs(history, endpoints)

        def handle(request: Request) -> bytes:
            number = jobs.executions[request.body]
            # The work itself. Of different lengths, so that replies come in another order than requests.
            time.sleep(lengths.uniform(0.2, 1.8) * options.work_ms / 1000)
            history.write(End(at=0.0, number=number))
            return request.body + f"|{options.name}|{number}".encode()

        worker = Worker(
            list(endpoints),
            options.service,
            handle,
            credit=options.credit,
            hooks=_Hooks(history),
            journal=options.journal and JournalSettings(options.journal, pair=PAIR, name=options.name),
        )
        worker._jobs = jobs
        _watch(worker, history)
        signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())  # until run() takes it over
        history.write(Started(at=0.0, name=options.name, pid=os.getpid(), endpoints=endpoints))
        threading.Thread(target=_watch_stdin, daemon=True).start()
        worker.run()
        history.write(Stopped(at=0.0))
    return 0


def _watch_stdin() -> None:
    """Whoever started this process is gone when its end of the pipe is."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
