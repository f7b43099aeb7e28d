"""The demos' handlers: a little work, an answer, and a note of every execution.

Run by ``bstar worker … bstar_cli.demo_worker:handle``. Before each execution it appends the request's number
to the file in DEMO_EXECUTIONS. So a second execution shows even if its worker dies.
"""

import os
import time
from functools import cache

from bstar_client import Request

# Long enough that requests are always being executed when a broker is killed.
WORK_S = 0.02


def handle(request: Request) -> bytes:
    """Note the execution, work, and send the body back."""
    os.write(_notes(), request.body + b"\n")
    time.sleep(WORK_S)
    return request.body


def handle_once(request: Request) -> bytes:
    """The same with an answer that no other execution gives."""
    return handle(request) + b" " + os.urandom(8).hex().encode()


@cache
def _notes() -> int:
    # Appending less than a page is one step, so the threads of a worker do not mix their lines.
    return os.open(os.environ["DEMO_EXECUTIONS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
