"""A client of plain MDP on a raw DEALER: a window of requests in flight, replies counted, nothing else.

A node that was kept from running for longer than its failover timeout does not serve on (docs/guarantees.md),
and lets go of the requests that it held. A plain client cannot be told that, its own timeout is all it has;
so this one does after its timeout what every such client does: it opens a new connection, on which no late
reply can come, and asks again. The silence is no part of what is measured, and each is said on standard
error, with what the node tells of itself. On a machine that has time for its processes there is none.
"""

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Self

import msgspec
import zmq

from bstar.net.sockets import is_readable, receive, send
from bstar_broker.core.snapshot import NodeState

READY_TIMEOUT_S = 20.0
SILENCE_S = 5.0
# A server that is silent again and again does not do what it is measured for.
SILENCES_MAX = 3
# No body of any measurement, so that late answers to it are told from the others.
_READY = b"is anybody there?"
_clock = time.perf_counter
# What a request has before its service.
_HEADS = {"mdp01": [b"", b"MDPC01"], "mdp02": [b"MDPC02", b"\x01"]}


@dataclass(frozen=True)
class Kept:
    """What came of keeping a window of requests in flight: seconds of each reply, and how long it took."""

    latencies: list[float]
    elapsed_s: float
    silences: int = 0


class PlainClient:
    """Asks one service at one endpoint, in the dialect "mdp01" or "mdp02". Use as a context manager."""

    def __init__(
        self, endpoint: str, service: str = "echo", *, dialect: str = "mdp02", silence_s: float = SILENCE_S
    ) -> None:
        self.endpoint = endpoint
        self._head = [*_HEADS[dialect], service.encode()]
        self._silence_s = silence_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def _connect(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set_hwm(0)
        socket.connect(self.endpoint)
        return socket

    def wait_ready(self) -> None:
        """Ask until there is an answer: a node that is not active yet drops a plain client's request."""
        deadline = _clock() + READY_TIMEOUT_S
        while True:
            if _clock() > deadline:
                raise SystemExit(f"no answer from {self.endpoint} within {READY_TIMEOUT_S:g} s")
            send(self._socket, [*self._head, _READY])
            if self._socket.poll(200):
                receive(self._socket)
                return

    def keep(self, window: int, seconds: float, body: bytes) -> Kept:
        """Keep ``window`` requests in flight for so long, then wait for the last replies.

        Latencies take replies to come in the order of the requests. SystemExit if the server is silent for
        good.
        """
        request = [*self._head, body]
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        silences = 0
        silent_s = 0.0
        client = self._socket
        started = _clock()
        end = started + seconds

        def fill() -> None:
            for _ in range(window):
                sent_at.append(_clock())
                send(client, request)

        fill()
        while sent_at:
            if not client.poll(int(self._silence_s * 1000)):
                silences += 1
                silent_s += self._silence_s
                told = f"{self.endpoint} owes {len(sent_at)} replies and is silent; {self._what_it_says()}"
                if silences == SILENCES_MAX:
                    raise SystemExit(told)
                print(f"{told}; asked again", file=sys.stderr, flush=True)
                sent_at.clear()
                client.close()
                client = self._socket = self._connect()
                before = _clock()
                self.wait_ready()
                silent_s += _clock() - before
                if _clock() - silent_s < end:
                    fill()
                continue
            while is_readable(client):
                frames = receive(client)
                if frames[-1] == _READY:
                    continue
                now = _clock()
                latencies.append(now - sent_at.popleft())
                if now - silent_s < end:
                    sent_at.append(now)
                    send(client, request)
        return Kept(latencies, _clock() - started - silent_s, silences)

    def _what_it_says(self) -> str:
        """A node's own account, which it gives to plain clients as well, whether it is active or not."""
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.endpoint)
            send(socket, [*self._head[:2], b"mmi.state", b""])
            if not socket.poll(2_000):
                return "it does not tell its state either"
            answer = receive(socket)[-1]
        try:
            state = msgspec.json.decode(answer, type=NodeState)
        except msgspec.DecodeError:
            return "it has no state to tell"
        pair, broker = state.pair, state.broker
        return (
            f"it is {pair.state} after {pair.stalls} stalls, holds {broker.queued} requests and its "
            f"{broker.workers} workers {broker.in_flight}, and has dropped {broker.drops}"
        )
