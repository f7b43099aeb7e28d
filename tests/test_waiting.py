"""What may wait in the queues, of whom, and for how long."""

import pytest
import zmq

from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_broker.bounds.unread import Unread
from bstar_broker.core.snapshot import NodeState
from bstar_testing.processes import wait_until
from support.desk import Desk, heard, ident, sent
from support.pairs import NEVER, standing_pair
from support.waiting import LIMIT_S, receive

FOREVER_MS = (1 << 32) - 1


def other_ident(number: int) -> bytes:
    return native.identity(b"other client's..", number)


def ask_of_another(desk: Desk, number: int, body: bytes) -> list[list[bytes]]:
    return desk.send(b"other", *native.encode_request(other_ident(number), b"echo", [body]))


def test_a_client_that_fills_the_queues_leaves_a_tenth_of_the_octets_to_others() -> None:
    desk = Desk(queue_bytes_max=1_000)
    refused = [desk.request(b"greedy", number, b"x" * 50) for number in range(30)]
    assert sum(map(bool, refused)) == 12, "it has 900 bytes"
    assert heard(refused[-1][0]).command == native.BUSY
    assert ask_of_another(desk, 1, b"x" * 50) == []
    assert ask_of_another(desk, 2, b"x" * 50) == []
    assert heard(ask_of_another(desk, 3, b"x" * 50)[0]).command == native.BUSY
    assert desk.ledger.waiting.size_bytes == 1_000
    desk.ready(b"w", credit=100)
    assert desk.ledger.waiting.size_bytes == 0


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


def test_a_message_of_any_accepted_size_fits_into_empty_queues() -> None:
    desk = Desk(queue_bytes_max=1_000)
    assert desk.request(b"c", 1, b"x" * 1_000) == []


def test_a_batch_that_would_take_the_last_tenth_is_accepted_as_far_as_it_fits() -> None:
    desk = Desk(queue_bytes_max=1_000)
    refused = desk.requests(b"greedy", range(30), [b"x" * 50] * 30)
    assert {heard(frames).command for frames in refused} == {native.BUSY}
    assert desk.ledger.waiting.size_bytes == 900
    assert ask_of_another(desk, 1, b"x" * 100) == []


@pytest.mark.requirement("BSN-B-20")
@pytest.mark.parametrize("is_batch", [False, True])
def test_no_time_to_live_keeps_a_place_for_longer_than_the_broker_allows(is_batch: bool) -> None:
    desk = Desk(request_ttl_s=60)
    if is_batch:
        desk.requests(b"c", [1, 2], ttls_ms=[FOREVER_MS, FOREVER_MS])
    else:
        desk.request(b"c", 1, ttl_ms=FOREVER_MS)
    ends = [heard(frames) for frames in desk.wait(61) if heard(frames).command != native.PONG]
    numbers = (1, 2) if is_batch else (1,)
    assert [(end.command, end.identity) for end in ends] == [(native.BUSY, ident(n)) for n in numbers]
    assert (desk.ledger.waiting.count, desk.ledger.waiting.size_bytes) == (0, 0)
    assert (desk.ledger.requests_of, desk.ledger.by_identity) == ({}, {})
    assert desk.ledger.services[b"echo"].tally.returned == len(numbers)
    # Who is still there sends it again, and it waits anew, until its own time is over.
    desk.request(b"c", 1, ttl_ms=5_000)
    (end,) = (heard(frames) for frames in desk.wait(6))
    assert (end.command, end.value) == (native.ERROR, ErrorCode.EXPIRED)


def test_a_worker_is_told_the_time_that_the_client_has_and_not_that_of_the_queue() -> None:
    desk = Desk(request_ttl_s=60)
    desk.request(b"c", 1, ttl_ms=600_000)
    desk.requests(b"c", [2, 3], ttls_ms=[600_000, 700_000])
    desk.wait(10)
    given = [heard(frames) for frames in desk.ready(b"w", credit=3)]
    assert [m.value for m in given if m.command == native.REQUEST] == [590_000, 590_000, 690_000]


@pytest.mark.requirement("BSN-B-20")
def test_a_request_that_a_worker_had_waits_until_its_own_time_ends() -> None:
    desk = Desk(b"w", request_ttl_s=60)
    desk.request(b"c", 1, ttl_ms=600_000)
    desk.send(b"w", *native.encode_disconnect())
    ends = [heard(frames) for frames in desk.wait(599) if heard(frames).command != native.PONG]
    assert ends == []
    (end,) = (heard(frames) for frames in desk.wait(2) if heard(frames).command != native.PONG)
    assert (end.command, end.value) == (native.ERROR, ErrorCode.WORKER_LOST)


def asked(desk: Desk, seconds: float) -> list[bytes]:
    """Who is sent a PONG in that time."""
    return [frames[0] for frames in desk.wait(seconds) if heard(frames).command == native.PONG]


@pytest.mark.requirement("BSN-B-21")
@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_client_that_is_gone_gives_its_place_back(is_urgent: bool) -> None:
    desk = Desk(queue_bytes_max=1_000, client_check_interval_s=10)
    desk.request(b"c", 1, b"x" * 400, ttl_ms=FOREVER_MS, is_urgent=is_urgent)
    desk.requests(b"c", [2, 3], [b"x" * 200] * 2, ttls_ms=[FOREVER_MS] * 2)
    desk.request(b"stays", 4, b"x")
    assert asked(desk, 9) == []
    assert asked(desk, 2) == [b"c", b"stays"]
    assert asked(desk, 11) == [b"c", b"stays"], "and again, as long as they wait"
    assert sent(desk.broker.unreachable(b"c", desk.now)) == []
    assert (desk.ledger.waiting.count, desk.ledger.waiting.size_bytes) == (1, 1)
    assert desk.ledger.requests_of == {b"stays": 1}
    assert desk.ledger.by_identity.keys() == {ident(4)}
    assert desk.ledger.drops["client-gone"] == 3
    given = [heard(frames) for frames in desk.ready(b"w", credit=9)]
    assert [m.identity for m in given if m.command == native.REQUEST] == [ident(4)]


@pytest.mark.requirement("BSN-B-21")
def test_what_is_not_only_of_the_client_that_is_gone_stays() -> None:
    desk = Desk(b"w", client_check_interval_s=10)
    desk.request(b"c", 1)
    desk.send(b"w", *native.encode_disconnect())  # a worker had it
    desk.request(b"c", 2)
    desk.request(b"c again", 2)
    key = native.keyed_identity(b"echo", b"key")
    for client in (b"c", b"another"):
        desk.send(client, *native.encode_request(key, b"echo", [b"hi"]))
    desk.request(b"c", 3)
    desk.broker.unreachable(b"c", desk.now)
    assert desk.ledger.waiting.count == 3
    assert desk.ledger.by_identity.keys() == {ident(1), ident(2), key}


def test_a_connection_without_room_is_not_one_that_is_gone() -> None:
    desk = Desk()
    desk.request(b"c", 1)
    desk.broker.unreachable(b"c", desk.now, is_gone=False)
    assert desk.ledger.waiting.count == 1


def test_plain_clients_are_not_asked_and_their_requests_wait_out_their_time() -> None:
    desk = Desk()
    desk.request02(b"plain")
    assert desk.wait(30) == []
    desk.broker.unreachable(b"plain", desk.now)
    assert desk.ledger.waiting.count == 1


def test_an_interval_of_zero_asks_nobody_and_forgets_nothing() -> None:
    desk = Desk(client_check_interval_s=0)
    desk.request(b"c", 1, ttl_ms=FOREVER_MS)
    assert desk.wait(50) == []
    desk.broker.unreachable(b"c", desk.now)
    assert desk.ledger.waiting.count == 1


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


def test_what_waits_of_a_plain_client_leaves_the_queue_once_no_reply_can_reach_it() -> None:
    desk = Desk()
    desk.request02(b"\0made")
    desk.request02(b"\0other")
    desk.broker.sender_gone(b"\0made", desk.now)
    assert desk.ledger.waiting.count == 1
    assert desk.ledger.drops["client-gone"] == 1


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
