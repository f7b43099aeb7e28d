"""The broker's shell in this very process: what only its own order of closing can show."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from bstar.settings import Settings, from_mapping
from bstar_broker.connections import HAS_TCP_INFO
from bstar_broker.server import BrokerServer
from bstar_testing import LoopbackHost
from bstar_testing.processes import wait_until
from support.waiting import LIMIT_S, Socket

pytestmark = pytest.mark.loopback


@pytest.fixture
def settings() -> Iterator[Settings]:
    host = LoopbackHost()
    clients, state, peer_state = (f"tcp://127.0.0.1:{number}" for number in host.ports(3))
    endpoints = {"clients": clients, "state": state, "peer_state": peer_state}
    yield from_mapping({"role": "primary", "endpoints": endpoints, "http": {"bind": None}})
    host.close()


def next_event(monitor: Socket) -> int:
    assert monitor.poll(int(LIMIT_S * 1000)), "the connection did nothing"
    return int(recv_monitor_message(monitor)["event"])


def test_a_node_that_has_handed_over_hangs_up_before_it_is_closed(settings: Settings) -> None:
    """What clients send to a node that no longer reads is answered by nobody; a broken connection is."""
    with zmq.Context() as context, BrokerServer(settings) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.reconnect_ivl = -1
            monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            client.connect(settings.endpoints.clients)
            assert next_event(monitor) == zmq.EVENT_HANDSHAKE_SUCCEEDED
            server.stop()
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            assert next_event(monitor) == zmq.EVENT_DISCONNECTED
            client.disable_monitor()
            monitor.close()


@pytest.mark.skipif(not HAS_TCP_INFO, reason="elsewhere the system's own TCP notices a dead machine")
def test_a_node_watches_each_connection_for_as_long_as_it_lives(settings: Settings) -> None:
    """So that it can hang up on a machine that is gone."""
    with zmq.Context() as context, BrokerServer(settings) as server:
        connections = server._connections
        assert connections is not None
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.connect(settings.endpoints.clients)
                wait_until(lambda: len(connections._open) == 1, "the connection is watched")
            wait_until(lambda: not connections._open, "the connection is forgotten")
        finally:
            server.stop()
            thread.join(LIMIT_S)
