"""An echo worker for ``bstar bench --echo``: a process that offers a service until its standard input closes.

    python -m bstar_cli.bench.echo PLAN

PLAN is an ``EchoPlan`` as JSON. It prints ``ready`` when a node has it on its list, once for each node.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from bstar.security import Security
from bstar_cli.bench.plan import EchoPlan
from bstar_client import AsyncWorker, Request, Worker, WorkerHooks


class _Hooks(WorkerHooks):
    def registered(self, worker: Worker, endpoint: str) -> None:
        print("ready", flush=True)


def main(text: str) -> None:
    """Echo until the standard input closes or SIGTERM comes."""
    plan = msgspec.json.decode(text, type=EchoPlan)
    # The client of the load warns of a lone node, and not each of its workers.
    logging.getLogger("bstar_client.endpoints").setLevel(logging.ERROR)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    options: dict[str, Any] = {
        "dialect": plan.dialect,
        "credit": plan.credit,
        "drain_timeout_s": 0.5,
        "hooks": _Hooks(),
        "security": Security.from_environment(),
    }
    if plan.kind == "sync":
        # One thread: echoing is quick, and what several threads hand to each other would be measured.
        Worker(plan.endpoints, plan.service, _echo, threads=1, **options).run()
    else:
        asyncio.run(AsyncWorker(plan.endpoints, plan.service, _echo_async, **options).run())


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _echo(request: Request) -> tuple[bytes, ...]:
    return request.frames


async def _echo_async(request: Request) -> tuple[bytes, ...]:
    return request.frames


if __name__ == "__main__":
    main(sys.argv[1])
