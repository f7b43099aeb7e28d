"""The process of a node's HTTP front: it serves as its first line of standard input says, until that ends.

It writes its state to standard output, a line each second.
"""

import asyncio
import contextlib
import os
import socket
import sys
import threading

import msgspec

from bstar.errors import BstarError, ConfigurationError
from bstar.fleet import Fleet
from bstar_broker.core.snapshot import FrontState
from bstar_cli import exits
from bstar_cli.http_front.plan import ChildPlan
from bstar_cli.http_front.server import Stopper, serve_http
from bstar_cli.logs import configure_logs


def main() -> int:
    """The exit code: 2 if it cannot serve so, 1 if it ended by an error."""
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildPlan)
    configure_logs(told.log_level, told.log_format, process="http")
    os.set_blocking(1, False)
    stopper = Stopper()
    threading.Thread(target=_stop_with_node, args=(stopper,), daemon=True).start()
    try:
        with socket.socket(fileno=told.descriptor) as listener:
            fleet = Fleet.of(told.endpoints)
            asyncio.run(serve_http(told.plan, fleet, told.security(), listener, stopper, _report))
    except ConfigurationError as error:
        sys.stderr.write(f"bstar serve: fronts.http: {error}\n")
        return exits.USAGE
    except BstarError as error:
        sys.stderr.write(f"bstar serve: fronts.http: {type(error).__name__}: {error}\n")
        return exits.FAILED
    return exits.OK


def _report(state: FrontState) -> None:
    # A line is shorter than PIPE_BUF, so it is written whole or not at all: a node that hangs reads none.
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(1, msgspec.json.encode(state) + b"\n")


def _stop_with_node(stopper: Stopper) -> None:
    """The node's end of the pipe closes when the node ends, in whatever way."""
    while os.read(0, 1024):
        pass
    stopper.stop()


if __name__ == "__main__":
    sys.exit(main())
