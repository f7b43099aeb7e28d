"""The links of a client or worker: a descriptor tells of a change once, so nothing may be left unread."""

import math
import time
from collections.abc import Iterator

import pytest
import zmq

from bstar_client.links import Links, timeout_ms
from bstar_client.settings import LinkSettings
from bstar_client.wakeup import WakeUp

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


def links_to(server: zmq.Socket[bytes]) -> Links:
    endpoint = server.getsockopt_string(zmq.LAST_ENDPOINT)
    return Links(server.context, (endpoint,), LinkSettings(high_water_mark=10_000), WakeUp())


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
    links.open()
    assert monitor.poll(int(LIMIT_S * 1000))  # so the client's side has succeeded, or is about to
    begun = time.monotonic()
    connect(links)
    assert time.monotonic() - begun < LIMIT_S, "nobody was woken"
    links.close()
    server.disable_monitor()
    monitor.close(0)


def test_more_messages_than_are_read_at_once(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open()
    connect(links)
    links[0].send([b"hello"])
    address = server.recv_multipart()[0]
    count = 1_500
    for number in range(count):
        server.send_multipart([address, b"%d" % number])
    assert take(links, count) == [[b"%d" % number] for number in range(count)]
    links.close()


def test_an_answer_that_came_while_another_message_was_sent(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open()
    connect(links)
    for number in range(300):
        links[0].send([b"one"])
        address = server.recv_multipart()[0]
        server.send_multipart([address, b"answer %d" % number])
        links[0].send([b"two"])  # may swallow what the descriptor tells
        assert take(links, 1) == [[b"answer %d" % number]]
        server.recv_multipart()
    links.close()


def test_what_an_old_socket_had_is_void(server: zmq.Socket[bytes]) -> None:
    links = links_to(server)
    links.open()
    connect(links)
    links[0].send([b"hello"])
    address = server.recv_multipart()[0]
    for _ in range(3):
        server.send_multipart([address, b"late"])
    # Its first message leads to a new socket; the others are dropped.
    for index, frames in links.poll(int(LIMIT_S * 1000)):
        assert frames == [b"late"]
        links[index].close()
        links[index].open()
    connect(links)
    links[0].send([b"anew"])
    address = server.recv_multipart()[0]
    server.send_multipart([address, b"fresh"])
    assert take(links, 1) == [[b"fresh"]]
    links.close()
    assert not list(links.poll(0))


def test_the_owner_is_woken(server: zmq.Socket[bytes]) -> None:
    wakeup = WakeUp()
    endpoint = server.getsockopt_string(zmq.LAST_ENDPOINT)
    links = Links(server.context, (endpoint,), LinkSettings(), wakeup)
    for _ in range(2):
        wakeup.set()
        assert not list(links.poll(-1))


@pytest.mark.parametrize(("due", "wait_ms"), [(None, -1), (-math.inf, 0), (0.0, 0)])
def test_a_deadline_that_has_passed_is_no_wait_whatever_it_is(due: float | None, wait_ms: int) -> None:
    """A call whose leader was abandoned is due since minus infinity."""
    assert timeout_ms(due) == wait_ms
