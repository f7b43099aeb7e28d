"""What may wait in the queues, of whom, and for how long."""

import pytest
import zmq

from bstar.wire import native
from bstar_broker.bounds.unread import Unread
from bstar_broker.core.snapshot import NodeState
from bstar_testing.processes import wait_until
from support.desk import Desk, heard, ident
from support.pairs import NEVER, standing_pair
from support.waiting import LIMIT_S, receive

FOREVER_MS = (1 << 32) - 1


def other_ident(number: int) -> bytes:
    return native.identity(b"other client's..", number)


def ask_of_another(desk: Desk, number: int, body: bytes) -> list[list[bytes]]:
    return desk.send(b"other", *native.encode_request(other_ident(number), b"echo", [body]))


def test_replies_that_a_client_has_not_read_count_as_what_it_holds() -> None:
    desk = Desk(queue_bytes_max=1_000)
    waiting = desk.ledger.waiting
    waiting.unread[b"greedy"] = waiting.unread_bytes = 880
    assert desk.request(b"greedy", 1, b"x" * 20) == []
    assert heard(desk.request(b"greedy", 2, b"x" * 20)[0]).command == native.BUSY
    assert ask_of_another(desk, 1, b"x" * 50) == []
    waiting.unread.clear()
    waiting.unread_bytes = 0
    assert desk.request(b"greedy", 3, b"x" * 20) == []


@pytest.mark.loopback
@pytest.mark.requirement("BSN-B-21")
def test_what_waits_of_a_client_that_hung_up_leaves_the_queue_and_what_waits_of_another_stays() -> None:
    often = {"timing.client_check_interval_s": 0.2}
    with standing_pair(NEVER, workers=0, settings=often) as pair, zmq.Context() as context:
        clients = []
        for number in (1, 2):
            client = context.socket(zmq.DEALER)
            client.linger = 0
            client.connect(pair.primary.endpoint)
            frames = native.encode_request(ident(number), b"nobody", [b"x"], ttl_ms=FOREVER_MS)
            client.send_multipart(frames)
            clients.append(client)
        pair.primary.wait_for("asked by both", lambda state: state.broker.queued == 2)
        clients[0].close()
        state = pair.primary.wait_for("rid of one", lambda state: state.broker.queued == 1)
        assert state.broker.drops["client-gone"] == 1
        told = native.decode(receive(clients[1]))
        assert (told.command, told.identity) == (native.PONG, native.NO_IDENTITY)
        clients[1].close()


def test_queues_and_unread_replies_have_half_of_what_memory_is_left_for_them() -> None:
    desk = Desk(queue_bytes_max=1_000)
    waiting = desk.ledger.waiting
    waiting.fit(10_000)
    assert waiting.bytes_max == 1_000, "the setting"
    waiting.unread[b"greedy"] = waiting.unread_bytes = 300
    waiting.fit(500)
    assert waiting.bytes_max == 400
    assert waiting.is_heavy(b"greedy", 100)
    assert not waiting.is_heavy(b"other", 30), "the last tenth is for others"
    waiting.fit(-5)
    assert waiting.bytes_max == 150, "it holds more than it may: nothing comes, and what is there leaves"
    assert waiting.is_heavy(b"other", 1)


@pytest.mark.loopback
def test_queues_that_a_plain_client_has_filled_are_free_once_it_has_left() -> None:
    """What waits of a client that stays is not touched, nor is that of one that chose its routing id."""
    bounds = {"limits.queue_bytes_max": 64 << 20}
    with standing_pair(NEVER, workers=0, settings=bounds) as pair, zmq.Context() as context:
        node = pair.primary
        clients = {}
        sent = 0
        for name, count in (("left", 40), ("stays", 5), ("chosen", 5)):
            client = clients[name] = context.socket(zmq.DEALER)
            client.linger = 0
            if name == "chosen":
                client.routing_id = b"chosen"
            client.connect(node.endpoint)
            for _ in range(count):
                client.send_multipart([b"MDPC02", b"\1", b"nobody", bytes(1 << 20)])
            sent += count
            node.wait_for("queued", lambda state, sent=sent: queued_of(state) == sent)  # type: ignore[misc]
        clients["chosen"].close()
        clients["left"].close()
        node.wait_for("released", lambda state: queued_of(state) == 10)
        clients["stays"].send_multipart([b"MDPC02", b"\1", b"nobody", b"x"])
        node.wait_for("all others stay", lambda state: queued_of(state) == 11)
        clients["stays"].close()


def queued_of(state: NodeState) -> int:
    return sum(service.queued for service in state.broker.services)


@pytest.mark.loopback
@pytest.mark.parametrize("octets", [20_000, 400_000])
def test_what_a_client_has_not_read_is_counted_bounded_and_free_again_once_it_reads(octets: int) -> None:
    """With a few large replies, and with smaller ones of which one is a marker now and then."""
    waiting = Desk(queue_bytes_max=32 << 20).ledger.waiting
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as client:
        client.linger = router.linger = 0
        client.rcvhwm = 1
        router.sndhwm = 1_000_000
        client.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        client.send(b"")
        name, _ = router.recv_multipart()
        unread = Unread(router, waiting)
        count, is_refused = 0, False
        while not is_refused:
            try:
                unread.send([name, b"head", bytes(octets)])
                count += 1
            except zmq.Again:
                is_refused = True
        assert waiting.unread == {name: waiting.unread_bytes}
        assert waiting.unread_bytes + octets > 28 << 20, "nine tenths of the bound"
        assert waiting.unread_bytes <= 32 << 20
        for _ in range(count):
            assert client.poll(int(LIMIT_S * 1000))
            assert len(client.recv_multipart()[1]) == octets

        def is_free() -> bool:
            unread.look(0.0)
            return not waiting.unread

        wait_until(is_free, "all is read")
        assert waiting.unread_bytes == 0
        unread.send([name, b"head", bytes(octets)])


@pytest.mark.loopback
def test_a_client_that_reads_at_once_is_refused_nothing_however_small_the_limit() -> None:
    """The release of a marker is seen late, so more than the limit may seem to be unread."""
    waiting = Desk(queue_bytes_max=40_000).ledger.waiting
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as client:
        client.linger = router.linger = 0
        client.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        client.send(b"")
        name, _ = router.recv_multipart()
        unread = Unread(router, waiting)
        for _ in range(90):
            unread.send([name, b"head", bytes(10_000)])
            assert client.poll(int(LIMIT_S * 1000))
            client.recv_multipart()
        assert not waiting.unread
