"""Echo workers that cost as little as they can: plain MDP by hand on raw sockets, all in one thread.

Usage: workers.py ENDPOINT COUNT [mdp01|mdp02]. Prints ``ready`` when all have registered; ends when its
standard input closes.
"""

import sys
import time

import zmq

from bstar.net.sockets import receive, send

HEARTBEAT_INTERVAL_S = 1.0
# What stands before the command, then READY, REQUEST, REPLY or FINAL, HEARTBEAT, DISCONNECT.
DIALECTS = {
    "mdp01": ([b"", b"MDPW01"], b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"),
    "mdp02": ([b"MDPW02"], b"\x01", b"\x02", b"\x04", b"\x05", b"\x06"),
}


def main(endpoint: str, count: int, dialect: str) -> None:
    """Echo every request; heartbeat; never leave."""
    head, ready_command, request, final, heartbeat, disconnect = DIALECTS[dialect]
    at = len(head)
    context = zmq.Context()
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    ready = [*head, ready_command, b"echo"]
    beat = [*head, heartbeat]
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
                worker.send_multipart(beat)
        for worker, _ in events:
            if isinstance(worker, int):
                context.destroy(linger=0)
                return
            frames = receive(worker)
            if frames[at] == request:
                send(worker, [*head, final, *frames[at + 1 :]])
            elif frames[at] == disconnect:
                # A process that was kept from running for longer than its expiry is to register anew.
                worker.send_multipart(ready)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(sys.argv[3:] or ["mdp02"]))
