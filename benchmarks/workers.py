"""Echo workers that cost as little as they can: MDP/0.2 by hand on raw sockets, all in one thread.

Usage: workers.py ENDPOINT COUNT. Prints ``ready`` when all have registered; ends when its standard input
closes.
"""

import sys

import zmq

from bstar.sockets import receive, send

HEARTBEAT_INTERVAL_MS = 1_000


def main(endpoint: str, count: int) -> None:
    """Echo every request; heartbeat; never leave."""
    context = zmq.Context()
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    workers = []
    for _ in range(count):
        worker = context.socket(zmq.DEALER)
        worker.linger = 0
        worker.connect(endpoint)
        worker.send_multipart([b"MDPW02", b"\x01", b"echo"])
        poller.register(worker, zmq.POLLIN)
        workers.append(worker)
    print("ready", flush=True)
    while True:
        events = poller.poll(HEARTBEAT_INTERVAL_MS)
        if not events:
            for worker in workers:
                worker.send_multipart([b"MDPW02", b"\x05"])
        for worker, _ in events:
            if isinstance(worker, int):
                context.destroy(linger=0)
                return
            frames = receive(worker)
            if frames[1] == b"\x02":
                send(worker, [b"MDPW02", b"\x04", frames[2], b"", *frames[4:]])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
