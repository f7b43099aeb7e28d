"""A machine that is gone while a plain worker on it holds a request, and a client that does not read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq

from chaos.needs import CHAOS
from chaos.network import Network, require_namespaces

pytestmark = CHAOS

PORT = 6000
# docs/protocol/mdp.md says half a minute; TCP alone takes a quarter of an hour.
NOTICED_S_MAX = 60.0
# Longer than a dead machine takes to be noticed.
UNREAD_S = 30.0
REPLIES = 3_000
BODY = bytes(4_096)
_ASKS_MAX = 30

Socket = zmq.Socket[bytes]


@contextmanager
def dealer(network: Network, host: str) -> Iterator[Socket]:
    """A plain peer of the node, on this host."""

    def connect() -> tuple[zmq.Context[Socket], Socket]:
        # Its I/O thread belongs to the namespace in which it is started.
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvtimeo = 20_000
        socket.rcvhwm = 1
        socket.rcvbuf = 4_096
        socket.connect(f"tcp://{network['node'].address}:{PORT}")
        return context, socket

    context, socket = network[host].namespace.inside(connect)
    try:
        yield socket
    finally:
        socket.close(0)
        context.term()


@contextmanager
def node(network: Network, folder: Path) -> Iterator[None]:
    """A primary alone, which serves as soon as it is asked."""
    path = folder / "node.yaml"
    path.write_text(
        "role: primary\npair: alone\nprofile: lan\ninsecure: true\nendpoints:\n"
        f"  clients: tcp://0.0.0.0:{PORT}\n  state: tcp://127.0.0.1:{PORT + 1}\n"
        f"  peer_state: tcp://127.0.0.1:{PORT + 2}\nhttp:\n  bind: null\n"
        "timing:\n  busy_timeout_s: 600\n  request_ttl_s: 300\n"
    )
    command = [sys.executable, "-m", "bstar_cli", "serve", "--config", str(path)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(network["node"].command(command), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def register(worker: Socket, service: bytes) -> None:
    worker.send_multipart([b"MDPW02", b"\x01", service])


def take(worker: Socket) -> list[bytes]:
    """The next request of this worker: the client's address and the body."""
    while True:
        frames = worker.recv_multipart()
        if frames[1] == b"\x02":
            return [frames[2], *frames[4:]]


def test_a_dead_machine_is_noticed_and_a_client_that_does_not_read_keeps_its_replies(tmp_path: Path) -> None:
    require_namespaces()
    with ExitStack() as stack:
        network = stack.enter_context(Network(["node", "far", "near"]))
        stack.enter_context(node(network, tmp_path))
        far, near = (stack.enter_context(dealer(network, host)) for host in ("far", "near"))
        client, slow = (stack.enter_context(dealer(network, "near")) for _ in range(2))
        register(far, b"work")
        # The first of these is the vote that makes the node active, if it is not too early for that.
        for _ in range(_ASKS_MAX):
            client.send_multipart([b"MDPC02", b"\x01", b"work", b"hello"])
            if far.poll(1_000):
                break
        assert take(far)[1] == b"hello"

        # A client whose window is closed: it has asked for more than its socket takes in.
        register(near, b"big")
        slow.send_multipart([b"MDPC02", b"\x01", b"big", b"all"])
        address = take(near)[0]
        for _ in range(REPLIES):
            near.send_multipart([b"MDPW02", b"\x03", address, b"", BODY])
        near.send_multipart([b"MDPW02", b"\x04", address, b"", BODY])
        unread_since = time.monotonic()

        spare = stack.enter_context(dealer(network, "near"))
        with network.isolate("far"):
            cut_at = time.monotonic()
            register(spare, b"work")
            body = None
            while body is None:
                spare.send_multipart([b"MDPW02", b"\x05"])
                if spare.poll(1_000):
                    frames = spare.recv_multipart()
                    body = frames[4] if frames[1] == b"\x02" else None
            assert body == b"hello"
            noticed_s = time.monotonic() - cut_at
        print(f"noticed after {noticed_s:.1f} s")
        assert noticed_s < NOTICED_S_MAX
        assert "acknowledged nothing" in (tmp_path / "log").read_text()

        time.sleep(max(0.0, unread_since + UNREAD_S - time.monotonic()))
        replies = [slow.recv_multipart() for _ in range(REPLIES + 1)]
        assert {frames[-1] for frames in replies} == {BODY}
