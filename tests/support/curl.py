"""curl, fronts and workers for tests of the HTTP front."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bstar_client import Worker
from bstar_testing import wait_until

HTTP = "fronts.http.bind"
"""The door of a pair whose nodes serve HTTP."""


def curl(*arguments: str) -> tuple[int, str]:
    """The status, 0 without an answer, and the body."""
    command = ["curl", "--silent", "--max-time", "60", "--write-out", "\n%{http_code}", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    body, _, status = told.rpartition("\n")
    return int(status), body


def wait_ready(url: str) -> None:
    """Wait until a front answers."""
    wait_until(lambda: curl(f"{url}/healthz")[0] == 200, f"{url} serves")


@contextmanager
def working(worker: Worker) -> Iterator[None]:
    """The worker in a thread, registered at both nodes."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: all(worker.figures().registered.values()), "both nodes list the worker")
        yield
    finally:
        worker.stop()
        thread.join()
