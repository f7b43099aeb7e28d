"""A client of the echo server, as the published pattern describes it: one socket, two addresses in turn.

    python examples/echo_client.py [PRIMARY BACKUP]

It waits a second for each answer. If none comes it goes to the other server, gives that one the time to
notice that its peer is gone, and sends the same request again. (bstar_client needs none of this: the nodes
tell it which of them serves.)
"""

import itertools
import sys
import time

import zmq

ANSWER_TIMEOUT_MS = 1_000
SETTLE_DELAY_S = 2.0  # at least the servers' failover timeout
PERIOD_S = 1.0


def main(servers: list[str]) -> None:
    """Ask once a second and print who answered."""
    context = zmq.Context()
    turns = itertools.cycle(servers)
    server = next(turns)
    socket = connect(context, server)
    for number in itertools.count(1):
        request = b"%d" % number
        socket.send(request)
        while not socket.poll(ANSWER_TIMEOUT_MS):
            # A REQ that was not answered cannot send again: it is closed, and another one made.
            socket.close()
            server = next(turns)
            print(f"no answer to {number}, trying {server}", flush=True)
            time.sleep(SETTLE_DELAY_S)
            socket = connect(context, server)
            socket.send(request)
        print(f"{socket.recv().decode()} from {server}", flush=True)
        time.sleep(PERIOD_S)


def connect(context: "zmq.Context[zmq.Socket[bytes]]", server: str) -> "zmq.Socket[bytes]":
    """A socket that asks ``server``."""
    socket = context.socket(zmq.REQ)
    socket.linger = 0
    socket.connect(server)
    return socket


if __name__ == "__main__":
    main(sys.argv[1:] or ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"])
