"""A worker process that writes down every execution before and after it does the work, and echoes the body.

    recording_worker.py SERVICE RECORD_FILE WORK_S WORKERS ENDPOINT…

A line is written with one system call, so a kill leaves whole lines only, in the order of what happened.
A body that begins with `hang` is never finished at its first delivery; one that begins with `slow` takes a
second. `hold 3` holds the GIL for three seconds. `until FILE NUMBER` ends when that file is there.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bstar_client import Request, Worker

HANG_S = 3_600.0
SLOW_S = 1.0
LOOK_S = 0.02


def main(service: str, path: str, work_s: str, workers: str, *endpoints: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(phase: str, request: Request) -> None:
        line = {
            "phase": phase,
            "at": time.monotonic(),
            "epoch": request.epoch,
            "identity": request.identity.hex(),
            "is_redelivered": request.is_redelivered,
            "body": request.body.decode(),
        }
        os.write(record, json.dumps(line).encode() + b"\n")

    def handle(request: Request) -> bytes:
        note("begin", request)
        if request.body.startswith(b"hang") and not request.is_redelivered:
            time.sleep(HANG_S)
        if request.body.startswith(b"hold"):
            # Of the C library, called as a function of Python's own: the GIL is not released.
            ctypes.PyDLL(None).sleep(int(request.body.split()[1]))
        if request.body.startswith(b"until"):
            file = Path(request.body.decode().split()[1])
            while not file.exists():
                time.sleep(LOOK_S)
        time.sleep(SLOW_S if request.body.startswith(b"slow") else float(work_s))
        note("end", request)
        return request.body

    with ExitStack() as others:
        for _ in range(int(workers) - 1):
            others.enter_context(Worker(endpoints, service, handle))
        Worker(endpoints, service, handle).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
