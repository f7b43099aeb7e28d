"""The floor: a ROUTER loop that does MDP/0.2's routing by hand and nothing else, as one would first write it.

No heartbeats, no expiry, no errors, no bounds, no metrics: whatever a broker in Python does, it does on
top of this. Usage: floor.py ENDPOINT; it ends when its standard input closes.
"""

import sys
import threading
from collections import deque

import zmq


def main(endpoint: str) -> None:
    """Route requests to idle workers and replies back until the parent is gone."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set_hwm(0)
    router.bind(endpoint)
    threading.Thread(target=lambda: (sys.stdin.read(), context.term()), daemon=True).start()
    router.linger = 0
    idle: deque[bytes] = deque()
    waiting: deque[list[bytes]] = deque()
    try:
        while True:
            frames = router.recv_multipart()
            sender, header = frames[0], frames[1]
            if header == b"MDPC02":
                request = [b"MDPW02", b"\x02", sender, b"", *frames[4:]]
                if idle:
                    router.send_multipart([idle.popleft(), *request])
                else:
                    waiting.append(request)
            elif frames[2] == b"\x01":
                idle.append(sender)
            elif frames[2] == b"\x04":
                router.send_multipart([frames[3], b"MDPC02", b"\x03", b"echo", *frames[5:]])
                if waiting:
                    router.send_multipart([sender, *waiting.popleft()])
                else:
                    idle.append(sender)
    except zmq.ContextTerminated:
        router.close()


if __name__ == "__main__":
    main(sys.argv[1])
