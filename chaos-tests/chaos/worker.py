"""A worker process that writes its history: ``python -m chaos.worker --help``.

It echoes each body with its own name and the number of the execution, so that a reply tells where it was
made. Begins are noted when a handler's thread claims the request, and epochs as they are read from the bytes
that reach the worker, before the product has looked at them: what the worker should have known is not taken
from what it says it knew. Neither happens during the other.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bstar.errors import RemoteProtocolError
from bstar.security import Security
from bstar.wire import native
from bstar_client import JournalSettings, Request, Worker, WorkerHooks
from bstar_client.core.worker.dialects import Job
from chaos.history import PAIR, Begin, End, EpochSeen, Lost, Refused, Registered, Started, Stopped, Writer


class _Hooks(WorkerHooks):
    def __init__(self, history: Writer) -> None:
        self._history = history

    def registered(self, worker: Worker, endpoint: str) -> None:
        self._history.write(Registered(at=0.0, endpoint=endpoint))

    def lost(self, worker: Worker, endpoint: str, reason: str) -> None:
        self._history.write(Lost(at=0.0, endpoint=endpoint, reason=reason))


def _watch(worker: Worker, history: Writer) -> dict[bytes, int]:
    """Note the epochs that arrive, the requests that are begun and those that are refused.

    The dict that it returns has the number of the last execution of each body.
    """
    core = worker._core
    receive, refuse, claim = core.receive, core._refuse, core.claim
    highest = 0
    numbers = itertools.count(1)
    executions: dict[bytes, int] = {}
    # A request is begun before a higher epoch was seen, or, if it is claimed at all, after it was looked at.
    one_at_a_time = threading.Lock()

    def noting_claim(job: Job) -> bool:
        with one_at_a_time:
            if not claim(job):
                return False
            number = next(numbers)
            executions[bytes(job.body[0])] = number
            history.write(
                Begin(
                    at=0.0,
                    number=number,
                    identity=job.identity.hex(),
                    epoch=job.epoch,
                    endpoint=worker.endpoints[job.node],
                    body=job.body[0].decode("utf-8", "replace"),
                    is_redelivered=job.is_redelivered,
                )
            )
            return True

    def noting_receive(node: int, frames: list[bytes], now: float) -> Any:
        nonlocal highest
        try:
            epoch = native.decode(frames).epoch
        except RemoteProtocolError:
            epoch = 0
        with one_at_a_time:
            if epoch > highest:
                highest = epoch
                history.write(EpochSeen(at=0.0, epoch=epoch, endpoint=worker.endpoints[node]))
            return receive(node, frames, now)

    def noting_refuse(job: Job, outputs: Any, now: float) -> None:
        history.write(Refused(at=0.0, identity=job.identity.hex(), epoch=job.epoch, epoch_seen=core.epoch))
        refuse(job, outputs, now)

    core.receive = noting_receive  # type: ignore[method-assign]
    core._refuse = noting_refuse  # type: ignore[method-assign]
    core.claim = noting_claim
    return executions


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
        executions: dict[bytes, int] = {}

        def handle(request: Request) -> bytes:
            body = request.frames[0]
            number = executions[body]
            # The work itself. Of different lengths, so that replies come in another order than requests.
            time.sleep(lengths.uniform(0.2, 1.8) * options.work_ms / 1000)
            history.write(End(at=0.0, number=number))
            return body + f"|{options.name}|{number}".encode()

        worker = Worker(
            list(endpoints),
            options.service,
            handle,
            credit=options.credit,
            hooks=_Hooks(history),
            security=Security.from_environment(),
            journal=options.journal and JournalSettings(options.journal, pair=PAIR, name=options.name),
        )
        executions = _watch(worker, history)
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
