"""A client process that writes its history: ``python -m chaos.client --help``.

Some threads call a service through one HAClient, each call with a body of its own, until SIGTERM or the end
of standard input; then it waits for what is outstanding and ends with status 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bstar.security import Security
from bstar_cli.engine import Paced
from bstar_client import BstarError, CallError, ClosedError, Event, FailedOver, HAClient, JournalSettings
from chaos.history import PAIR, ClientSaw, Failed, Invoke, Ok, Started, Stopped, Writer


def _timetable(rate: float) -> Iterator[float]:
    """Moments at this rate. What was missed is not made up for, or an outage would be followed by a burst."""
    due = time.monotonic()
    while True:
        due += (1 + max(0.0, time.monotonic() - due) * rate // 1) / rate
        yield due


class _Caller:
    def __init__(self, options: argparse.Namespace, history: Writer, client: HAClient) -> None:
        self._options = options
        self._history = history
        self._client = client
        self._padding = [bytes(options.padding_bytes)] if options.padding_bytes else []

    def call(self, number: int, due: float) -> None:
        options = self._options
        # Unique in the whole run, also when this client is killed and starts counting anew.
        body = f"{options.name}-{os.getpid()}-{number}"
        is_idempotent = options.bound_every == 0 or number % options.bound_every != 0
        self._history.write(
            Invoke(
                at=0.0,
                id=number,
                service=options.service,
                body=body,
                is_idempotent=is_idempotent,
                deadline_s=options.deadline,
            )
        )
        try:
            reply = self._client.request(
                options.service,
                [body.encode(), *self._padding],
                timeout=options.deadline,
                idempotent=is_idempotent,
            )
        except BstarError as error:
            if isinstance(error, CallError):
                may_have_executed = error.may_have_executed
            else:
                may_have_executed = not isinstance(error, ClosedError)
            self._history.write(
                Failed(
                    at=0.0,
                    id=number,
                    error=type(error).__name__,
                    may_have_executed=may_have_executed,
                    text=str(error),
                )
            )
        else:
            self._history.write(
                Ok(
                    at=0.0,
                    id=number,
                    reply=reply.body.decode("utf-8", "replace"),
                    epoch=reply.epoch,
                    endpoint=reply.endpoint,
                    attempts=reply.attempts,
                )
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos.client", description=__doc__)
    parser.add_argument("--name", required=True, help="unique in the run; bodies begin with it")
    parser.add_argument("--endpoints", required=True, help="comma-separated, in order of preference")
    parser.add_argument("--service", default="work")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--journal", help="directory of the product's journals")
    parser.add_argument("--threads", type=int, default=8, help="calls outstanding at most")
    parser.add_argument("--rate", type=float, default=80.0, help="calls per second at most, of all threads")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds for each call")
    parser.add_argument(
        "--bound-every", type=int, default=5, help="each n-th call is not idempotent; 0: all are"
    )
    parser.add_argument("--padding-bytes", type=int, default=0, help="a second frame of each request")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Call until told to stop."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    endpoints = tuple(options.endpoints.split(","))

    def observe(event: Event) -> None:
        endpoint = event.to_endpoint if isinstance(event, FailedOver) else event.endpoint
        history.write(ClientSaw(at=0.0, event=type(event).__name__, endpoint=endpoint, text=repr(event)))

    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    with Writer(options.history) as history:
        history.write(Started(at=0.0, name=options.name, pid=os.getpid(), endpoints=endpoints))
        with HAClient(
            list(endpoints),
            timeout=options.deadline,
            on_event=observe,
            security=Security.from_environment(),
            outstanding_max=options.threads * 4,
            journal=options.journal and JournalSettings(options.journal, pair=PAIR, name=options.name),
        ) as client:
            threading.Thread(target=_watch_stdin, args=(stopping,), daemon=True).start()
            call = _Caller(options, history, client).call
            Paced(options.threads, _timetable(options.rate), stopping, call).join()
        history.write(Stopped(at=0.0))
    return 0


def _watch_stdin(stopping: threading.Event) -> None:
    """Whoever started this process is gone when its end of the pipe is."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
