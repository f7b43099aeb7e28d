"""Thousands of peers in one process that do nothing but be there: workers that heartbeat, clients that ping.

    python benchmarks/crowd.py ENDPOINT workers COUNT INTERVAL_S SERVICE    all of one service
    python benchmarks/crowd.py ENDPOINT services COUNT INTERVAL_S PREFIX    each of a service of its own
    python benchmarks/crowd.py ENDPOINT clients COUNT INTERVAL_S

One DEALER with one connection per peer: it deals what it sends to its connections in turn, so COUNT
messages are one for each, and to the broker every connection is a peer of its own. libzmq connects a DEALER
only once to an endpoint; each connection gets a source address of its own within 127.0.0.0/8, which makes
the endpoints differ (Linux). They offer no room for work, so none is given to them: the broker knows them
and hears them, that is all.

It prints ``ready`` when every peer was answered, and when its standard input closes a line of JSON:
messages sent, heard, how many of those heard said that the broker has dropped a worker, and how late this
process was at most: if that comes near a worker's expiry, it is the crowd that was silent.
"""

import json
import sys
import time
from collections import Counter

import zmq

from bstar.net.sockets import is_readable, receive, send
from bstar.wire import native

READY_S_MAX = 60.0
# Connections that are being made at once, so that the broker's listen queue does not overflow.
AT_ONCE = 250


def main(endpoint: str, kind: str, count: int, interval_s: float, name: str = "") -> None:
    """Be there until the standard input closes."""
    context = zmq.Context()
    crowd = context.socket(zmq.DEALER)
    crowd.set_hwm(0)
    crowd.linger = 0
    heard: Counter[int] = Counter()
    epoch = 0
    sent = 0

    def take() -> None:
        nonlocal epoch
        while is_readable(crowd):
            message = native.decode(receive(crowd))
            heard[message.command] += 1
            epoch = max(epoch, message.epoch)

    def hello(number: int) -> list[bytes]:
        if kind == "clients":
            return native.encode_ping()
        service = name.encode() if kind == "workers" else b"%s%d" % (name.encode(), number)
        return native.encode_ready(service)

    answer = native.PONG if kind == "clients" else native.WELCOME
    until = time.monotonic() + READY_S_MAX
    # All of them first: a new connection would not be the next one to be dealt to.
    monitor = crowd.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    connected = 0
    for number in range(count):
        address = f"127.1.{number // 250}.{number % 250 + 1}"
        crowd.connect(endpoint.replace("tcp://", f"tcp://{address}:0;"))
        while connected < number + 1 - AT_ONCE or (number + 1 == count and connected < count):
            if not monitor.poll(max(0, int((until - time.monotonic()) * 1000))):
                raise SystemExit(f"{connected} of {count} {kind} were connected in {READY_S_MAX:g} s")
            monitor.recv_multipart()
            connected += 1
    crowd.disable_monitor()
    for number in range(count):
        send(crowd, hello(number))
    while heard[answer] < count:
        if not crowd.poll(max(0, int((until - time.monotonic()) * 1000))):
            raise SystemExit(f"{heard[answer]} of {count} {kind} were answered in {READY_S_MAX:g} s")
        take()
    print("ready", flush=True)
    poller = zmq.Poller()
    poller.register(crowd, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    # A share of the crowd at a time, as peers that know nothing of each other would.
    parts = min(50, count)
    began_at, ticks, late_s = time.monotonic(), 0, 0.0
    while True:
        due_at = began_at + ticks * interval_s / parts
        events = dict(poller.poll(max(0, int((due_at - time.monotonic()) * 1000))))
        if sys.stdin.fileno() in events:
            break
        take()
        if (now := time.monotonic()) >= due_at:
            late_s = max(late_s, now - due_at)
            beat = native.encode_ping(epoch=epoch) if kind == "clients" else native.encode_heartbeat(epoch)
            for _ in range(count * (ticks + 1) // parts - count * ticks // parts):
                send(crowd, beat)
                sent += 1
            ticks += 1
    told = {
        "sent": sent,
        "heard": heard[native.PONG] + heard[native.HEARTBEAT],
        "dropped": heard[native.DISCONNECT],
        "late_s": round(late_s, 3),
    }
    print(json.dumps(told), flush=True)
    context.destroy(linger=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:])
