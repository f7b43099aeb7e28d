"""What one message costs here: bstar.net.sockets beside pyzmq, in CPU time of one thread.

python benchmarks/sockets.py [--messages 20000]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import zmq

from bstar.net.sockets import receive, send

ROUNDS = 5


def main() -> None:
    """Print both costs and their ratio, for sending and for receiving a message of five frames."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    dealer = context.socket(zmq.DEALER)
    for socket in (router, dealer):
        socket.set_hwm(0)
        socket.linger = 0
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"hello")
    message = [router.recv_multipart()[0], b"MDPC02", b"\x03", b"echo", b"x" * 16]

    ours: dict[str, list[float]] = {"send": [], "receive": []}
    theirs: dict[str, list[float]] = {"send": [], "receive": []}
    for _ in range(ROUNDS):
        theirs["send"].append(cost(count, lambda: router.send_multipart(message, zmq.NOBLOCK)))
        ours["send"].append(cost(count, lambda: send(router, message)))
        for _ in range(2 * count):
            dealer.recv_multipart()
        for _ in range(2 * count):
            dealer.send_multipart(message[1:])
        theirs["receive"].append(cost(count, lambda: wait_and(router.recv_multipart)))
        ours["receive"].append(cost(count, lambda: wait_and(lambda: receive_when_there(router))))
    for what in ("send", "receive"):
        pyzmq, bstar = statistics.median(theirs[what]), statistics.median(ours[what])
        print(f"{what:8} pyzmq {pyzmq:6.2f} µs   bstar {bstar:6.2f} µs   ratio {bstar / pyzmq:.2f}")
    context.destroy(linger=0)


def cost(count: int, call: Callable[[], object]) -> float:
    """CPU microseconds of this thread per call."""
    before = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - before) / count * 1e6


def wait_and(call: Callable[[], object]) -> object:
    """The same extra Python call around both."""
    return call()


def receive_when_there(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """``receive``, waiting when the message is still on its way, as ``recv_multipart`` does by itself."""
    try:
        return receive(socket)
    except zmq.Again:
        socket.poll()
        return receive(socket)


if __name__ == "__main__":
    main()
