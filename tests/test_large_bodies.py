"""Bodies of many mebibytes: a broker neither copies them nor lets them keep it from its peer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from bstar import wire
from bstar.errors import RemoteProtocolError
from bstar.net import sockets
from bstar.net.reactor import DRAIN_S_MAX, Reactor
from bstar.net.sockets import VIEW_BYTES_MIN
from bstar.settings import Settings, from_mapping
from bstar.wire import native, native_broker
from bstar_broker.core import Node, Output
from bstar_broker.core.admission import is_same_body
from bstar_broker.core.management import Management, Pictures
from bstar_broker.server import BrokerServer
from bstar_testing import LoopbackHost
from fuzz.fuzz_wire import read_corpus
from support.desk import Desk, heard, ident
from support.waiting import LIMIT_S

LARGE = bytes(range(256)) * (VIEW_BYTES_MIN // 256 + 1)
BROKER_HEARS = [pytest.param(frames, id=name) for name, frames in read_corpus()["broker"]]


def view(octets: bytes) -> bytes:
    """As ``receive_bodies`` hands out a large frame."""
    return memoryview(octets)  # type: ignore[return-value]  # what the type of frames leaves out


def read(frames: list[bytes]) -> object:
    try:
        return wire.decode(frames, 1 << 30)
    except RemoteProtocolError as error:
        return error.reason


def with_a_large_frame(frames: list[bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Each frame but the routing id made large: once as bytes and once as a view."""
    for at in range(1, len(frames)):
        large = frames[at] + LARGE
        yield [*frames[:at], large, *frames[at + 1 :]], [*frames[:at], view(large), *frames[at + 1 :]]


@pytest.mark.parametrize("frames", BROKER_HEARS)
def test_a_codec_reads_a_view_as_it_reads_bytes(frames: list[bytes]) -> None:
    for as_bytes, as_view in with_a_large_frame(frames):
        assert read(as_view) == read(as_bytes)
        assert native_broker.asker_of(as_view) == native_broker.asker_of(as_bytes)


@pytest.mark.parametrize("frames", [each for each in BROKER_HEARS if "mmi" not in str(each.id)])
def test_a_broker_does_the_same_with_a_view_as_with_bytes(frames: list[bytes]) -> None:
    for as_bytes, as_view in with_a_large_frame(frames):
        said = []
        for each in (as_bytes, as_view):
            desk = Desk(message_bytes_max=1 << 30)
            desk.ready(b"w", credit=9)
            desk.ready02(b"id")
            said.append([desk.send(*each), desk.send(*each), desk.wait(0.5)])
        assert said[0] == said[1]


def test_a_large_body_is_recognised_when_it_comes_again_and_refused_when_it_is_another() -> None:
    desk = Desk()
    desk.request(b"c", 1, view(LARGE))
    assert desk.request(b"c again", 1, LARGE) == []
    (told,) = desk.request(b"c", 1, view(LARGE[:-1] + b"x"))
    assert heard(told).command == native.ERROR
    (given,) = (frames for frames in desk.ready(b"w") if heard(frames).command == native.REQUEST)
    assert heard(given).body == [LARGE]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1_001])
def test_bodies_are_compared_to_the_last_octet_whether_views_or_not(size: int) -> None:
    body = bytes(range(256)) * 4
    body = body[:size]
    for make in (bytes, view):
        assert is_same_body([make(body), b"x"], [view(bytes(body)), b"x"])
        assert not is_same_body([make(body)], [view(body + b"y")])
        assert not is_same_body([make(body)], [view(body), b""])
        for at in range(size):
            other = bytearray(body)
            other[at] ^= 1
            assert not is_same_body([make(body)], [view(bytes(other))])


def test_management_requests_may_name_anything() -> None:
    desk = Desk()
    for service in (b"mmi.service", b"mmi.workers", b"mmi.services", b"mmi.descriptions", b"mmi.unknown"):
        management = Management(desk.ledger, lambda now: pytest.fail("not asked"))
        body = management.answer(service, [view(LARGE)], Pictures(), 0.0)
        assert body[0] in (b"200", b"404", b"501")


@pytest.mark.loopback
def test_a_large_frame_is_a_view_of_what_was_received_and_a_small_one_is_bytes() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        bodies = [b"small", LARGE, b"", b"x" * (VIEW_BYTES_MIN - 1), LARGE[:VIEW_BYTES_MIN]]
        dealer.send_multipart(bodies)
        assert router.poll(int(LIMIT_S * 1000))
        frames = sockets.receive_bodies(router)
        assert frames[1:] == bodies
        assert [type(frame) for frame in frames[1:]] == [bytes, memoryview, bytes, bytes, memoryview]
        with pytest.raises(TypeError):
            frames[2][0] = 1  # type: ignore[index]
        with pytest.raises(zmq.Again):
            sockets.receive_bodies(router)
        sockets.send(router, frames)
        del frames
        assert dealer.poll(int(LIMIT_S * 1000))
        assert dealer.recv_multipart() == bodies


@pytest.mark.loopback
def test_a_burst_of_slow_messages_leaves_the_other_sockets_their_turns() -> None:
    now = 100.0
    with zmq.Context() as context, Reactor(clock=lambda: now) as reactor:
        pairs = []
        for name in ("busy", "calm"):
            here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            here.bind(f"inproc://{name}")
            there.connect(f"inproc://{name}")
            pairs.append((here, there))
        seen: list[bytes] = []

        def slow(frames: list[bytes], at: float) -> bool:
            nonlocal now
            now += DRAIN_S_MAX * 0.6
            seen.append(frames[0])
            return True

        reactor.add_reader(pairs[0][0], slow, keeps_to_itself=True)
        reactor.add_reader(pairs[1][0], lambda frames, at: seen.append(frames[0]))
        for _ in range(5):
            pairs[0][1].send(b"busy")
        pairs[1][1].send(b"calm")
        for _ in range(2):
            reactor.turn()
        assert seen == [b"busy"] * 3 + [b"calm"] + [b"busy"] * 2
        for here, there in pairs:
            reactor.remove(here)
            here.close()
            there.close()


@pytest.fixture
def settings() -> Iterator[Settings]:
    host = LoopbackHost()
    clients, state, peer_state = (f"tcp://127.0.0.1:{number}" for number in host.ports(3))
    endpoints = {"clients": clients, "state": state, "peer_state": peer_state}
    yield from_mapping({"role": "primary", "endpoints": endpoints, "http": {"bind": None}})
    host.close()


@pytest.mark.loopback
def test_a_node_does_not_copy_a_large_body(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[type] = []
    receive = Node.receive_frames

    def note(node: Node, frames: list[bytes], now: float, user_id: str) -> list[Output]:
        came.append(type(frames[-1]))
        return receive(node, frames, now, user_id)

    monkeypatch.setattr(Node, "receive_frames", note)
    with zmq.Context() as context, BrokerServer(settings) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(settings.endpoints.clients)
            client.send_multipart(native.encode_request(ident(1), b"echo", [LARGE]))
            assert client.poll(int(LIMIT_S * 1000))
            assert native.decode(client.recv_multipart()).command == native.NOT_ACTIVE
        server.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert came == [memoryview]
