"""An echo server that survives the death of its machine: run it twice, once in each role.

    python examples/echo_server.py primary
    python examples/echo_server.py backup
    python examples/echo_client.py

Endpoints other than the published ones: ROLE CLIENTS LOCAL REMOTE, as in the table below.
"""

import logging
import sys

import zmq

from bstar import BinaryStar, PairError

# Where clients connect, where this node publishes its state, and where its peer does.
ENDPOINTS = {
    "primary": ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:5003", "tcp://127.0.0.1:5004"],
    "backup": ["tcp://127.0.0.1:5002", "tcp://127.0.0.1:5004", "tcp://127.0.0.1:5003"],
}


def echo(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
    """Answer one request. Called only while this node serves."""
    socket.send_multipart(frames)


role, *endpoints = sys.argv[1:]
clients, local, remote = endpoints or ENDPOINTS[role]
logging.basicConfig(format=f"{role}: %(message)s")
logging.getLogger("bstar").setLevel(logging.INFO)
with BinaryStar(role, local=local, remote=remote) as star:
    star.voter(clients, zmq.ROUTER, echo)
    try:
        star.start()
    except PairError as error:
        sys.exit(error.exit_code)
