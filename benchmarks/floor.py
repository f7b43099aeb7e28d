"""The floor: a ROUTER loop that does MDP's routing by hand and nothing else, as one would first write it.

One loop for MDP/0.2 and one for MDP/0.1. No heartbeats, no expiry, no errors, no bounds, no metrics:
whatever a broker in Python does, it does on top of this. Usage: floor.py ENDPOINT [mdp01|mdp02]; it ends when
its standard input closes.
"""

import sys
import threading
from collections import deque

import zmq


def main(endpoint: str, dialect: str) -> None:
    """Route requests to idle workers and replies back until the parent is gone."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set_hwm(0)
    router.bind(endpoint)
    threading.Thread(target=lambda: (sys.stdin.read(), context.term()), daemon=True).start()
    router.linger = 0
    try:
        LOOPS[dialect](router)
    except zmq.ContextTerminated:
        router.close()


def mdp02(router: "zmq.Socket[bytes]") -> None:
    """18/MDP."""
    idle: deque[bytes] = deque()
    waiting: deque[list[bytes]] = deque()
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


def mdp01(router: "zmq.Socket[bytes]") -> None:
    """7/MDP."""
    idle: deque[bytes] = deque()
    waiting: deque[list[bytes]] = deque()
    while True:
        frames = router.recv_multipart()
        sender, header = frames[0], frames[2]
        if header == b"MDPC01":
            request = [b"", b"MDPW01", b"\x02", sender, b"", *frames[4:]]
            if idle:
                router.send_multipart([idle.popleft(), *request])
            else:
                waiting.append(request)
        elif frames[3] == b"\x01":
            idle.append(sender)
        elif frames[3] == b"\x03":
            router.send_multipart([frames[4], b"", b"MDPC01", b"echo", *frames[6:]])
            if waiting:
                router.send_multipart([sender, *waiting.popleft()])
            else:
                idle.append(sender)


LOOPS = {"mdp01": mdp01, "mdp02": mdp02}

if __name__ == "__main__":
    main(sys.argv[1], *(sys.argv[2:] or ["mdp02"]))
