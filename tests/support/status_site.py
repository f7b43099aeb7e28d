"""A status server before a node that answers as it is told, and what a client sees of it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bstar.settings import Http
from bstar_broker.core.snapshot import NodeState
from bstar_broker.operate.status import StatusServer
from support.node_states import node_state
from support.waiting import LIMIT_S


class FakeNode:
    """Answers with what it is told to."""

    def __init__(self) -> None:
        self.state: NodeState | Exception = node_state()
        self.asked = 0

    def snapshot(self, timeout_s: float) -> NodeState:
        self.asked += 1
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


class WaitingNode(FakeNode):
    """Answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_now = threading.Semaphore(0)
        self.may_answer = threading.Event()

    def snapshot(self, timeout_s: float) -> NodeState:
        self.asked_now.release()
        assert self.may_answer.wait(LIMIT_S)
        return super().snapshot(timeout_s)


class Site:
    """A status server and what a client sees of it."""

    def __init__(self, server: StatusServer, node: FakeNode) -> None:
        self.server = server
        self.node = node

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        response, body = self.ask(path)
        return response.status, json.loads(body)

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT_S)

    def say(self, octets: bytes) -> bytes:
        """What comes back for these bytes until the server hangs up."""
        with self.connection() as connection:
            connection.sendall(octets)
            return b"".join(iter(lambda: connection.recv(65_536), b""))


@contextmanager
def running(node: FakeNode) -> Iterator[Site]:
    with StatusServer(Http(bind="127.0.0.1:0"), node.snapshot) as server:
        yield Site(server, node)
