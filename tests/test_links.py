"""The links of a client or worker: a descriptor tells of a change once, so nothing may be left unread."""

import contextlib
import errno
import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from bstar.errors import ConfigurationError
from bstar_client.arguments.settings import LinkSettings
from bstar_client.links.links import AnyPoll, Links, timeout_ms
from bstar_client.links.wakeup import WakeUp

pytestmark = pytest.mark.loopback

LIMIT_S = 20.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


@pytest.fixture
def server(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    server = context.socket(zmq.ROUTER)
    server.linger = 0
    server.set_hwm(0)
    server.bind("tcp://127.0.0.1:*")
    return server


def links_to(server: zmq.Socket[bytes], endpoint: str = "") -> Links:
    endpoint = endpoint or server.getsockopt_string(zmq.LAST_ENDPOINT)
    return Links((endpoint,), LinkSettings(high_water_mark=10_000), server.context, WakeUp())


def connect(links: Links) -> None:
    until = time.monotonic() + LIMIT_S
    while True:
        assert not list(links.poll(int(LIMIT_S * 1000)))
        if (0, True) in list(links.changes()):
            return
        assert time.monotonic() < until


def take(links: Links, count: int) -> list[list[bytes]]:
    taken: list[list[bytes]] = []
    until = time.monotonic() + LIMIT_S
    while len(taken) < count:
        assert time.monotonic() < until, f"{len(taken)} of {count}"
        taken += [frames for _, frames in links.poll(int(LIMIT_S * 1000))]
    return taken


def test_a_connection_that_was_up_before_anybody_waited(server: zmq.Socket[bytes]) -> None:
    monitor = server.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    links = links_to(server)
    links.open_all()
    assert monitor.poll(int(LIMIT_S * 1000))  # so the client's side has succeeded, or is about to
    begun = time.monotonic()
    connect(links)
    assert time.monotonic() - begun < LIMIT_S, "nobody was woken"
    links.end()
    server.disable_monitor()
    monitor.close(0)


def test_more_messages_than_are_read_at_once(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open_all()
    connect(links)
    links[0].send([b"hello"])
    address = server.recv_multipart()[0]
    count = 1_500
    for number in range(count):
        server.send_multipart([address, b"%d" % number])
    assert take(links, count) == [[b"%d" % number] for number in range(count)]
    links.end()


def test_an_answer_that_came_while_another_message_was_sent(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open_all()
    connect(links)
    for number in range(300):
        links[0].send([b"one"])
        address = server.recv_multipart()[0]
        server.send_multipart([address, b"answer %d" % number])
        links[0].send([b"two"])  # may swallow what the descriptor tells
        assert take(links, 1) == [[b"answer %d" % number]]
        server.recv_multipart()
    links.end()


def test_what_an_old_socket_had_is_void(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open_all()
    connect(links)
    links[0].send([b"hello"])
    address = server.recv_multipart()[0]
    for _ in range(3):
        server.send_multipart([address, b"late"])
    # Its first message leads to a new socket; the others are dropped.
    for index, frames in links.poll(int(LIMIT_S * 1000)):
        assert frames == [b"late"]
        links.reset(index)
    connect(links)
    links[0].send([b"anew"])
    address = server.recv_multipart()[0]
    server.send_multipart([address, b"fresh"])
    assert take(links, 1) == [[b"fresh"]]
    links.end()
    assert not list(links.poll(0))


class Relay:
    """Carries connections to a server. ``cut`` ends the client's side; the server does not learn of it."""

    def __init__(self, server: zmq.Socket[bytes]) -> None:
        self._port = int(server.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT_S)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sides: list[tuple[socket.socket, socket.socket]] = []

    def carry(self) -> None:
        """Accept the next connection."""
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        self._sides.append((near, far))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while octets := source.recv(65_536):
                sink.sendall(octets)

    def cut(self) -> None:
        self._sides[-1][0].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for side in (self._listener, *(side for sides in self._sides for side in sides)):
            side.close()


@pytest.fixture
def relay(server: zmq.Socket[bytes]) -> Iterator[Relay]:
    made = Relay(server)
    yield made
    made.close()


def test_each_connection_has_a_routing_id_that_nobody_can_guess(server: zmq.Socket[bytes]) -> None:
    seen = []
    for _ in range(3):
        links = links_to(server)
        links.open_all()
        connect(links)
        links[0].send([b"hello"])
        seen.append(server.recv_multipart()[0])
        links.end()
    # A ROUTER gives five bytes, a zero and a number that counts up.
    assert all(len(each) == 16 and each[0] for each in seen)
    # With a counter most bytes would agree.
    for one, other in itertools.pairwise(seen):
        assert sum(a != b for a, b in zip(one[1:], other[1:], strict=True)) > 5


def test_a_link_comes_back_although_the_node_holds_its_dead_connection(
    server: zmq.Socket[bytes], relay: Relay
) -> None:
    """With keys ROUTER_HANDOVER is off: a connection with the routing id of another one is ignored."""
    server.set(zmq.ROUTER_HANDOVER, 0)
    server.rcvtimeo = int(LIMIT_S * 1000)
    links = links_to(server, relay.endpoint)
    links.open_all()
    relay.carry()
    connect(links)
    links[0].send([b"before"])
    first = server.recv_multipart()[0]
    relay.cut()
    until = time.monotonic() + LIMIT_S
    while (0, False) not in list(links.changes()):
        assert time.monotonic() < until
        assert not list(links.poll(int(LIMIT_S * 1000)))
    carrying = threading.Thread(target=relay.carry)
    carrying.start()
    connect(links)
    carrying.join()
    links[0].send([b"after"])
    second, body = server.recv_multipart()
    assert body == b"after"
    assert second != first
    links.end()


class Recorder:
    """A core that notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def receive(self, _node: int, frames: list[bytes], _now: float) -> list[object]:
        self.seen.append(frames)
        return []

    def connected(self, _node: int, _now: float) -> list[object]:
        self.seen.append("up")
        return []

    def disconnected(self, _node: int, _now: float, *, is_untrusted: bool) -> list[object]:
        self.seen.append("broken" if not is_untrusted else "untrusted")
        return []


def test_the_last_reply_of_a_server_that_ends_comes_before_the_end(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reply and end come after the link has looked for messages, and before it looks at its connection."""
    theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = theirs.socket(zmq.ROUTER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    server.routing_id = endpoint.encode()
    server.bind(endpoint)
    links = Links((endpoint,), LinkSettings(), context, WakeUp(), is_router=True)
    links.open_all()
    connect(links)
    links[0].send([b"1", b"request"])
    address = server.recv_multipart()[0]
    count = 50
    for number in range(count):
        server.send_multipart([address, b"%d" % number])
    server.close(linger=int(LIMIT_S * 1000))
    theirs.term()
    monitor = links[0].monitor
    assert monitor is not None
    assert monitor.poll(int(LIMIT_S * 1000)), "the link's monitor has the end of the connection"
    core = Recorder()
    monkeypatch.setattr(links, "messages", lambda: iter(()))
    links.suspect()
    links.step(core, lambda _: None)  # type: ignore[arg-type]  # a core has more
    assert core.seen == [*([b"%d" % number] for number in range(count)), "broken"]
    links.end()


def test_the_owner_is_woken(server: zmq.Socket[bytes]) -> None:
    wakeup = WakeUp()
    endpoint = server.getsockopt_string(zmq.LAST_ENDPOINT)
    links = Links((endpoint,), LinkSettings(), server.context, wakeup)
    for _ in range(2):
        wakeup.set()
        assert not list(links.poll(-1))


@pytest.mark.parametrize(("due", "wait_ms"), [(None, -1), (-math.inf, 0), (0.0, 0)])
def test_a_deadline_that_has_passed_is_no_wait_whatever_it_is(due: float | None, wait_ms: int) -> None:
    """A call whose leader was abandoned is due since minus infinity."""
    assert timeout_ms(due) == wait_ms


def test_a_system_without_epoll(server: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bstar_client.links.links._new_poll", AnyPoll)
    links = links_to(server)
    links.open_all()
    connect(links)
    for number in range(3):
        links[0].send([b"hello"])
        server.send_multipart([server.recv_multipart()[0], b"answer %d" % number])
        assert take(links, 1) == [[b"answer %d" % number]]
    assert links.fd >= 0
    links.end()


def test_a_link_without_a_socket_for_its_monitor_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error held the first socket, so the context never ended, nor did the client's construction."""

    def full(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", full)
    links = Links(("tcp://127.0.0.1:1",), LinkSettings(), None)
    with pytest.raises(ConfigurationError, match="Too many open files") as caught:
        links.open_all()
    ending = threading.Thread(target=links.end, daemon=True)
    ending.start()
    ending.join(LIMIT_S)
    assert not ending.is_alive(), caught.value
