"""The broker's shell in this very process: what only its own order of closing can show."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from bstar.settings import Settings, from_mapping
from bstar.settings.fronts import Fronts
from bstar_broker import server as server_module
from bstar_broker.bounds.connections import HAS_TCP_INFO
from bstar_broker.core import Dispatch, Output, Send
from bstar_broker.core.outputs import FrontSend
from bstar_broker.core.records import Bundle
from bstar_broker.fronts import shell as front_shell
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


# --- what waits for the end of a burst ----------------------------------------------------------------------


def test_the_peer_hears_of_the_http_front(settings: Settings) -> None:
    front = {"bind": "127.0.0.1:0", "peer_clients": "tcp://127.0.0.1:1"}
    fronts = msgspec.convert({"http": front, "pzq": {"producers": "tcp://127.0.0.1:*"}}, Fronts)
    with BrokerServer(msgspec.structs.replace(settings, fronts=fronts)) as server:
        assert server.node.machine.settings.fronts == ("pzq", "http")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the node sends through its ROUTER, by the first frame; "gone" has no connection."""
    seen: list[bytes] = []

    def note(socket: Socket, frames: list[bytes]) -> None:
        if frames[0] == b"gone":
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        seen.append(frames[0])

    monkeypatch.setattr(server_module, "send", note)
    return seen


def test_messages_of_a_burst_leave_in_their_order_and_before_what_comes_later(
    settings: Settings, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerServer(settings) as server:
        answers: list[list[Output]] = [[Send([b"1"])], [Send([b"2"]), Dispatch([b"3"], b"")], []]
        monkeypatch.setattr(server.node, "receive_frames", lambda frames, now, user_id: answers.pop(0))
        for _ in range(3):
            assert server._on_message([b"c"], 0.0)
        assert sent == []
        server._carry_out([Send([b"4"])])
        assert sent == [b"1", b"2", b"3", b"4"]
        assert server._flush()
        assert sent == [b"1", b"2", b"3", b"4"], "once"


def test_what_waits_is_bounded_in_number_and_in_time(
    settings: Settings, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerServer(settings) as server:
        monkeypatch.setattr(server.node, "receive_frames", lambda frames, now, user_id: [Send([frames[0]])])
        for number in range(server_module._BURST_MESSAGES):
            assert len(sent) == 0
            server._on_message([b"%d" % number], 0.0)
        assert len(sent) == server_module._BURST_MESSAGES
        server._on_message([b"early"], 1.0)
        server._on_message([b"late"], 1.0 + server_module._BURST_S)
        assert sent[-2:] == [b"early", b"late"]


def test_a_message_of_a_burst_that_cannot_be_sent_is_told_to_the_core(
    settings: Settings, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bytes | Bundle] = []

    def undelivered(output: Dispatch, now: float) -> list[Output]:
        lost.append(output.item)
        return [Dispatch([b"another"], b"")]

    with BrokerServer(settings) as server:
        monkeypatch.setattr(server.node, "undelivered", undelivered)
        outputs: list[Output] = [Send([b"1"]), Dispatch([b"gone"], b"request"), Send([b"2"])]
        monkeypatch.setattr(server.node, "receive_frames", lambda frames, now, user_id: outputs)
        server._on_message([b"c"], 0.0)
        assert not server._flush(), "other sockets may have been used"
        assert (lost, sent) == ([b"request"], [b"1", b"another", b"2"])


def test_a_worker_that_could_not_take_a_request_gets_no_later_one_of_the_turn(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one left if there was room again, and the core had given it to another worker already."""
    tries: list[bytes] = []

    def send_or_not(socket: Socket, frames: list[bytes]) -> None:
        tries.append(frames[1])
        if len(tries) == 1:
            raise zmq.Again

    lost: list[bytes | Bundle] = []

    def undelivered(output: Dispatch, now: float) -> list[Output]:
        lost.append(output.item)
        return []

    outputs: list[Output] = [Dispatch([b"w", b"1"], b"first"), Dispatch([b"w", b"2"], b"second")]
    monkeypatch.setattr(server_module, "send", send_or_not)
    with BrokerServer(settings) as server:
        monkeypatch.setattr(server.node, "undelivered", undelivered)
        monkeypatch.setattr(server.node, "receive_frames", lambda frames, now, user_id: outputs)
        for turn in (lambda: server._carry_out(outputs), lambda: server._on_message([b"c"], 0.0)):
            tries.clear()
            lost.clear()
            turn()
            server._flush()
            assert (tries, lost) == ([b"1"], [b"first", b"second"])


def test_nor_does_a_worker_of_a_front(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job was at two job managers."""
    tries: list[bytes] = []

    def send_or_not(socket: Socket, frames: list[bytes]) -> None:
        tries.append(frames[1])
        if len(tries) == 1:
            raise zmq.Again

    doors = dict.fromkeys(("clients", "workers"), "tcp://127.0.0.1:*")
    fronts = msgspec.convert({"emq": doors}, Fronts)
    lost: list[FrontSend] = []
    outputs = [FrontSend("emq", "workers", [b"m", b"%d" % number], True) for number in range(2)]
    heartbeat = FrontSend("emq", "workers", [b"m", b"heartbeat"])
    monkeypatch.setattr(front_shell, "send", send_or_not)

    def unsent(output: FrontSend, now: float, *, is_gone: bool) -> list[Output]:
        lost.append(output)
        return []

    with BrokerServer(msgspec.structs.replace(settings, fronts=fronts)) as server:
        monkeypatch.setattr(server.node, "front_unsent", unsent)
        server._carry_out([*outputs, heartbeat])
    assert (tries, lost) == ([b"0", b"heartbeat"], outputs)


def test_messages_may_be_unread_of_a_worker_whose_connection_is_gone(
    settings: Settings, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core is told, again and again, until no such worker has requests."""
    looks: list[bool] = []

    def unread(now: float, *, is_any: bool) -> bool:
        looks.append(is_any)
        return len(looks) < 3

    with BrokerServer(settings) as server, zmq.Context() as context, context.socket(zmq.DEALER) as worker:
        worker.linger = 0
        worker.connect(settings.endpoints.clients)
        worker.send(b"last words")
        assert server._router.poll(int(LIMIT_S * 1000))
        monkeypatch.setattr(server.node.broker, "unread", unread)
        server._carry_out([Send([b"gone"]), Send([b"gone"])])
        assert looks == [True], "one look for both"
        while len(looks) < 3:
            server.reactor.turn()
        assert looks[1:] == [False, False]
        server.reactor.turn()
        server._carry_out([Send([b"gone"])])
        assert len(looks) == 4
