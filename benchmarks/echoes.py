"""Many echo workers in one process: a socket each, woken by epoll, so that their number costs them nothing.

    python benchmarks/echoes.py ENDPOINT DIALECT COUNT SERVICES

DIALECT is mdp02 or native (one request at a time, no batches); worker N offers service ``echo`` followed by
N modulo SERVICES. It prints ``ready`` when all have registered; ends when its standard input closes.
"""

import select
import sys
import time

import zmq

from bstar.net.sockets import is_readable, receive, send
from bstar.wire import native

HEARTBEAT_S = 1.0


def main(endpoint: str, dialect: str, count: int, services: int) -> None:
    """Echo every request; heartbeat; never leave."""
    is_native = dialect == "native"
    context = zmq.Context()
    context.max_sockets = max(1023, count + 16)
    events = select.epoll()
    events.register(sys.stdin.fileno(), select.EPOLLIN)
    workers = {}
    for number in range(count):
        worker = context.socket(zmq.DEALER)
        worker.linger = 0
        worker.connect(endpoint)
        service = b"echo%d" % (number % services)
        send(worker, native.encode_ready(service) if is_native else [b"MDPW02", b"\x01", service])
        events.register(worker.fd, select.EPOLLIN)
        workers[worker.fd] = worker
    print("ready", flush=True)
    beat_at = time.monotonic() + HEARTBEAT_S
    epoch = 0
    while True:
        for descriptor, _ in events.poll(max(0.0, beat_at - time.monotonic())):
            if descriptor == sys.stdin.fileno():
                context.destroy(linger=0)
                return
            worker = workers[descriptor]
            # Its descriptor says so once: what is there has to be taken until nothing is.
            while is_readable(worker):
                frames = receive(worker)
                if is_native:
                    head = frames[0]
                    epoch = int.from_bytes(head[28:36], "big")
                    if head[2] == native.REQUEST:
                        send(worker, native.encode_final(head[4:28], epoch, 0, frames[1:]))
                elif frames[1] == b"\x02":
                    send(worker, [b"MDPW02", b"\x04", frames[2], b"", *frames[4:]])
        if time.monotonic() >= beat_at:
            beat_at += HEARTBEAT_S
            for worker in workers.values():
                send(worker, native.encode_heartbeat(epoch) if is_native else [b"MDPW02", b"\x05"])
                # Sending may have swallowed the descriptor's word.
                while is_readable(worker):
                    frames = receive(worker)
                    if is_native and frames[0][2] == native.REQUEST:
                        head = frames[0]
                        send(worker, native.encode_final(head[4:28], epoch, 0, frames[1:]))
                    elif not is_native and frames[1] == b"\x02":
                        send(worker, [b"MDPW02", b"\x04", frames[2], b"", *frames[4:]])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
