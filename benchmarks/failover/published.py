"""The Binary Star of the ZeroMQ guide, chapter 4, with its defaults: what the picture sets beside ours.

Written anew from the pattern's description, because the published Python programs do not start with the
libraries of today. ``python -m failover.published ROLE`` is a server: it echoes while it is active. ``trial``
runs a pair of them with one client as the guide describes it: one REQ socket, a timeout of 1 s, then 2 s of
settling before it asks the other server.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zmq

STATE_INTERVAL_S = 1.0
PEER_EXPIRY_S = 2.0
CLIENT_TIMEOUT_MS = 1_000
CLIENT_SETTLE_S = 2.0

PRIMARY, BACKUP, ACTIVE, PASSIVE = b"1", b"2", b"3", b"4"
# What a server becomes when it hears its peer's state. Other pairs change nothing.
HEARD = {
    (PRIMARY, BACKUP): ACTIVE,
    (PRIMARY, ACTIVE): PASSIVE,
    (BACKUP, ACTIVE): PASSIVE,
    (PASSIVE, PRIMARY): ACTIVE,
    (PASSIVE, BACKUP): ACTIVE,
}


def serve(role: bytes, clients: str, state: str, peer_state: str) -> None:
    """One server, until it is killed."""
    context = zmq.Context()
    frontend, publisher, subscriber = (context.socket(kind) for kind in (zmq.ROUTER, zmq.PUB, zmq.SUB))
    frontend.bind(clients)
    publisher.bind(state)
    subscriber.subscribe(b"")
    subscriber.connect(peer_state)
    poller = zmq.Poller()
    poller.register(frontend, zmq.POLLIN)
    poller.register(subscriber, zmq.POLLIN)
    mine = role
    now = time.monotonic()
    publish_at, peer_expires_at = now + STATE_INTERVAL_S, now + PEER_EXPIRY_S
    while True:
        readable = dict(poller.poll(max(0, math.ceil((publish_at - time.monotonic()) * 1000))))
        now = time.monotonic()
        if subscriber in readable:
            mine = HEARD.get((mine, subscriber.recv()), mine)
            peer_expires_at = now + PEER_EXPIRY_S
        if frontend in readable:
            request = frontend.recv_multipart()
            if mine in (PRIMARY, PASSIVE) and now >= peer_expires_at:
                mine = ACTIVE  # a vote
            if mine == ACTIVE:
                frontend.send_multipart(request)
        if now >= publish_at:
            publisher.send(mine)
            publish_at = now + STATE_INTERVAL_S


class Client:
    """One request at a time, as the guide's client makes them."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.reply_times: list[float] = []
        self._servers = servers
        self._at = 0
        self._context = zmq.Context()
        self._open()

    def _open(self) -> None:
        self._socket = self._context.socket(zmq.REQ)
        self._socket.linger = 0
        self._socket.connect(self._servers[self._at])

    def call(self) -> None:
        """Ask until there is a reply."""
        self._socket.send(b"request")
        while not self._socket.poll(CLIENT_TIMEOUT_MS):
            self._socket.close()
            self._at = 1 - self._at
            time.sleep(CLIENT_SETTLE_S)
            self._open()
            self._socket.send(b"request")
        self._socket.recv()
        self.reply_times.append(time.monotonic())

    def close(self) -> None:
        """Give the socket and its context back."""
        self._socket.close()
        self._context.term()


@contextmanager
def _pair(ports: Sequence[int]) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """The primary's process, and both servers' endpoints for clients."""
    endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
    states = endpoints[2:]
    servers = [
        subprocess.Popen(
            [sys.executable, "-m", "failover.published", role, clients, mine, peer],
            cwd=Path(__file__).parents[1],
        )
        for role, clients, mine, peer in zip(
            ("primary", "backup"), endpoints, states, reversed(states), strict=False
        )
    ]
    try:
        yield servers[0], endpoints[:2]
    finally:
        for server in servers:
            server.kill()
            server.wait()


def trial(ports: Sequence[int], *, rate: float, before_s: float, after_s: float) -> tuple[float, list[float]]:
    """Kill the active server under load; when that was, and when replies came (monotonic clock)."""
    with _pair(ports) as (primary, servers):
        client = Client(servers)
        client.call()  # waits until one is active
        fault_at = 0.0

        def kill() -> None:
            nonlocal fault_at
            fault_at = time.monotonic()
            primary.kill()

        # A random moment between two state messages.
        timer = threading.Timer(before_s + random.uniform(0, STATE_INTERVAL_S), kill)
        timer.start()
        while not fault_at or time.monotonic() < fault_at + after_s:
            began = time.monotonic()
            client.call()
            time.sleep(max(0.0, began + 1 / rate - time.monotonic()))
        timer.join()
        client.close()
        return fault_at, client.reply_times


def main() -> None:
    """Run one server."""
    parser = argparse.ArgumentParser(prog="failover.published")
    parser.add_argument("role", choices=("primary", "backup"))
    for endpoint in ("clients", "state", "peer_state"):
        parser.add_argument(endpoint)
    asked = parser.parse_args()
    serve({"primary": PRIMARY, "backup": BACKUP}[asked.role], asked.clients, asked.state, asked.peer_state)


if __name__ == "__main__":
    main()
