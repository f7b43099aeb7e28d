"""Echo workers that cost as little as they can: MDP/0.2 by hand on raw sockets, all in one thread.

Usage: workers.py ENDPOINT COUNT. Prints ``ready`` when all have registered; ends when its standard input
closes.
"""

import sys
import time

import zmq

from bstar.sockets import receive, send

HEARTBEAT_INTERVAL_S = 1.0


def main(endpoint: str, count: int) -> None:
    """Echo every request; heartbeat; never leave."""
    context = zmq.Context()
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    ready = [b"MDPW02", b"\x01", b"echo"]
    workers = []
    for _ in range(count):
        worker = context.socket(zmq.DEALER)
        worker.linger = 0
        worker.connect(endpoint)
        worker.send_multipart(ready)
        poller.register(worker, zmq.POLLIN)
        workers.append(worker)
    print("ready", flush=True)
    beat_at = time.monotonic() + HEARTBEAT_INTERVAL_S
    while True:
        events = poller.poll(max(0, int((beat_at - time.monotonic()) * 1000) + 1))
        if time.monotonic() >= beat_at:
            beat_at = time.monotonic() + HEARTBEAT_INTERVAL_S
            for worker in workers:
                worker.send_multipart([b"MDPW02", b"\x05"])
        for worker, _ in events:
            if isinstance(worker, int):
                context.destroy(linger=0)
                return
            frames = receive(worker)
            if frames[1] == b"\x02":
                send(worker, [b"MDPW02", b"\x04", frames[2], b"", *frames[4:]])
            elif frames[1] == b"\x06":
                # A process that was kept from running for longer than its expiry is to register anew.
                worker.send_multipart(ready)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
