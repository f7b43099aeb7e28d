"""A name that is looked up for seconds must hold up its own connection only, so each has an I/O thread.

That it does is seen where names are really looked up, in the compose test; here, that the threads are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from bstar.net.io_threads import THREADS_MAX, keep_apart, new_context
from bstar_client import LinkSettings
from bstar_client.links.links import Links

pytestmark = pytest.mark.loopback


@contextmanager
def links_of(context: zmq.Context[zmq.Socket[bytes]], count: int) -> Iterator[list[int]]:
    """The affinities of the links to so many nodes that are not there."""
    links = Links([f"tcp://127.0.0.1:{number + 1}" for number in range(count)], LinkSettings(), context)
    links.open_all()
    try:
        sockets = [links[index].socket for index in range(count)]
        yield [int(socket.get(zmq.AFFINITY)) for socket in sockets if socket is not None]
    finally:
        links.end()
        context.term()


def test_each_node_of_a_client_has_a_thread_of_its_own() -> None:
    context = new_context(2)
    assert context.get(zmq.IO_THREADS) == 2
    with links_of(context, 2) as affinities:
        assert affinities == [0b01, 0b10]


def test_of_a_long_list_several_share_a_thread() -> None:
    context = new_context(20)
    assert context.get(zmq.IO_THREADS) == THREADS_MAX
    with links_of(context, 20) as affinities:
        assert len(affinities) == 20
        assert set(affinities) == {1 << thread for thread in range(THREADS_MAX)}


def test_a_context_of_the_users_is_left_as_it_is() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with links_of(context, 2) as affinities:
        assert affinities == [0, 0]


def test_a_name_that_is_looked_up_does_not_hold_up_what_is_bound() -> None:
    """The threads of both are different ones, and a message still finds its way."""
    with new_context(2) as context:
        bound, connected = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        keep_apart(bound, 0)
        keep_apart(connected, 1)
        with bound, connected:
            assert int(bound.get(zmq.AFFINITY)) & int(connected.get(zmq.AFFINITY)) == 0
            connected.linger = 0
            port = bound.bind_to_random_port("tcp://127.0.0.1")
            connected.connect(f"tcp://127.0.0.1:{port}")
            connected.send(b"x")
            assert bound.recv_multipart()[1] == b"x"


@pytest.mark.parametrize(("places", "owners"), [(1, 1), (2, 1), (400, 1), (2, 300)])
def test_a_context_has_sockets_enough_for_many_pairs_and_many_services(places: int, owners: int) -> None:
    """Each link has a socket and a monitor with two ends; libzmq's default ended a client of 170 pairs."""
    context = new_context(places, owners=owners)
    try:
        sockets = context.get(zmq.MAX_SOCKETS)
        assert isinstance(sockets, int)
        assert sockets >= max(1023, 4 * places * owners)
    finally:
        context.term()
