"""Batches at the broker: shares, order, and that every rule of single requests holds for each in a batch."""

import pytest

from bstar.wire import native
from bstar.wire.batches import final_rows, request_rows
from bstar.wire.messages import ErrorCode
from support.desk import CLIENT_ID, Desk, heard, ident, sent


def given(told: list[list[bytes]]) -> list[tuple[bytes, list[int]]]:
    """Which worker got which numbers."""
    shares = []
    for frames in told:
        message = heard(frames)
        if message.command == native.REQUESTS:
            shares.append((frames[0], list(request_rows(frames, 2)[0])))
        elif message.command == native.REQUEST:
            shares.append((frames[0], [int.from_bytes(message.identity[16:], "big")]))
    return shares


def commands(told: list[list[bytes]]) -> list[int]:
    return [heard(frames).command for frames in told]


@pytest.mark.requirement("BSN-G-17")
def test_a_batch_goes_to_a_worker_as_it_came_and_its_replies_back_as_they_came() -> None:
    desk = Desk()
    desk.ready(b"w", credit=10, takes_batches=True)
    batch = native.encode_requests(CLIENT_ID, b"echo", [1, 2, 3], [5_000] * 3, [b"a", b"", b"ccc"])
    told = desk.send(b"c", *batch)
    assert [frames[0] for frames in told] == [b"w"]
    assert told[0][2:] == batch[1:]
    assert heard(told[0]).epoch == 7
    assert desk.ledger.workers[b"w"].held == 3

    replies = native.encode_finals(CLIENT_ID, 7, [3, 1], [b"C", b"A"])
    assert desk.send(b"w", *replies) == [[b"c", *replies]]
    assert desk.ledger.requests_of == {b"c": 1}
    last = native.encode_finals(CLIENT_ID, 7, [2], [b"B"])
    assert desk.send(b"w", *last) == [[b"c", *last]]
    service = desk.ledger.services[b"echo"]
    assert (service.tally.accepted, service.tally.answered, sum(service.tally.latency_counts)) == (3, 3, 3)
    assert (desk.ledger.requests_of, len(desk.broker.bundles)) == ({}, 0)


@pytest.mark.requirement("BSN-G-20")
def test_rows_with_headers_stay_a_batch_for_a_worker_that_reads_them_and_travel_alone_to_others() -> None:
    desk = Desk()
    age = b"\x04\x00\x04" + bytes(4)  # the node has had it for 0 ms (BSN-B-27)
    extensions = [b"\x40\x00\x01a", b"", b"\x40\x00\x01c", b""]
    batch = native.encode_requests(
        CLIENT_ID, b"echo", [1, 2, 3, 4], [0] * 4, [b"a", b"b", b"c", b"d"], extensions=extensions
    )
    desk.send(b"c", *batch)
    old = desk.ready(b"v", credit=2, takes_batches=True)[1:]
    assert [(heard(frames).command, heard(frames).extensions) for frames in old] == [
        (native.REQUEST, b"\x40\x00\x01a" + age),
        (native.REQUEST, b""),
    ]
    [new] = desk.send(b"w", *native.encode_ready(b"echo", credit=9, takes_batches=True, takes_extended=True))[
        1:
    ]
    assert request_rows(new, 2) == ((3, 4), (0, 0), (7, 1), True)
    # What its worker returns is given to the next with its headers.
    assert desk.send(b"w", *native.encode_disconnect(is_unbegun=True)) == []
    again = desk.ready(b"u", credit=1)[1:]
    assert [heard(frames).extensions for frames in again] == [b"\x40\x00\x01c" + age]
    assert desk.ledger.waiting.count == 1
    desk.final(b"u", 3)
    for number in (1, 2):
        desk.final(b"v", number)
    assert (desk.ledger.waiting.count, desk.ledger.waiting.size_bytes) == (0, 0)


@pytest.mark.requirement("BSN-G-17")
def test_a_worker_that_takes_no_batches_gets_none() -> None:
    desk = Desk()
    desk.ready(b"w", credit=2)
    desk.ready02(b"m")
    told = desk.requests(b"c", [1, 2, 3, 4])
    assert [frames[1][:6] if frames[1] == b"MDPW02" else heard(frames).command for frames in told] == [
        native.REQUEST,
        b"MDPW02",
        native.REQUEST,
    ]
    assert desk.ledger.waiting.count == 1
    assert commands(desk.final(b"w", 1)) == [native.FINAL, native.REQUEST]


@pytest.mark.requirement("BSN-B-13")
@pytest.mark.requirement("BSN-B-17")
def test_a_batch_is_shared_out_equally_as_far_as_credit_allows() -> None:
    desk = Desk()
    for worker, credit in ((b"u", 10), (b"v", 10), (b"w", 2)):
        desk.ready(worker, credit=credit, takes_batches=True)
    assert given(desk.requests(b"c", range(1, 16))) == [
        (b"u", [1, 2, 3, 4, 5]),
        (b"v", [6, 7, 8, 9, 10]),
        (b"w", [11, 12]),
        (b"u", [13, 14]),
        (b"v", [15]),
    ]
    # 7, 6 and 2 of 22: the next batch fills the rest, and what is too much waits.
    told = given(desk.requests(b"c", range(16, 26)))
    assert sum(len(numbers) for _, numbers in told) == 7
    assert {worker.held for worker in desk.ledger.workers.values()} == {10, 2}
    assert desk.ledger.waiting.count == 3
    # Whoever has room again is given what waits.
    assert given(desk.finals(b"w", [11, 12])) == [(b"w", [23, 24])]


def test_a_batch_may_be_used_up_before_every_idle_worker_had_a_share() -> None:
    desk = Desk()
    for worker in (b"u", b"v", b"w"):
        desk.ready(worker, credit=2, takes_batches=True)
    assert given(desk.requests(b"c", range(1, 5))) == [(b"u", [1, 2]), (b"v", [3, 4])]
    assert [worker.routing_id for worker in desk.ledger.services[b"echo"].idle] == [b"w"]


def test_the_age_that_a_worker_is_told_is_the_time_in_the_queue() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2], ttls_ms=[5_000, 6_000])
    desk.now = 0.25
    told = desk.ready(b"w", credit=2, takes_batches=True)
    assert heard(told[-1]).value == 250
    assert request_rows(told[-1], 2)[1] == (5_000, 6_000)


@pytest.mark.requirement("BSN-B-09")
def test_each_of_a_queued_batch_expires_at_its_own_time() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2, 3], ttls_ms=[3_000, 1_000, 2_000])
    expired = []
    for _ in range(3):
        expired += [
            (heard(frames).identity, heard(frames).value, desk.now)
            for frames in desk.wait(1.0)
            if len(frames) > 2
        ]
    assert [(identity, code) for identity, code, _ in expired] == [
        (ident(number), ErrorCode.EXPIRED) for number in (2, 3, 1)
    ]
    assert (desk.ledger.waiting.count, desk.ledger.waiting.size_bytes, desk.ledger.requests_of) == (0, 0, {})


@pytest.mark.requirement("BSN-B-08")
def test_what_a_lost_worker_had_of_a_batch_goes_to_others_in_order_and_marked() -> None:
    desk = Desk()
    desk.ready(b"v", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2, 3, 4, 5])
    desk.requests(b"c", [6, 7, 8, 9])
    desk.finals(b"v", [2, 4])  # 6 and 7 take their places
    told = desk.send(b"v", *native.encode_disconnect())
    assert told == []
    told = desk.ready(b"w", credit=10, takes_batches=True)[1:]
    assert given(told) == [(b"w", [1]), (b"w", [3]), (b"w", [5]), (b"w", [6]), (b"w", [7]), (b"w", [8, 9])]
    assert [heard(frames).flags for frames in told] == [native.FLAG_REDELIVERED] * 5 + [0]
    assert desk.ledger.services[b"echo"].tally.redelivered == 5
    # All are answered in one batch all the same.
    assert commands(desk.finals(b"w", [1, 3, 5, 6, 7, 8, 9])) == [native.FINAL] * 7
    assert desk.ledger.requests_of == {}


def test_a_batch_that_could_not_be_delivered_was_not_delivered() -> None:
    desk = Desk()
    desk.ready(b"v", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2, 3])
    assert desk.undelivered() == []
    assert b"v" not in desk.ledger.workers
    told = desk.ready(b"w", credit=5, takes_batches=True)[1:]
    assert given(told) == [(b"w", [1]), (b"w", [2]), (b"w", [3])]
    assert all(heard(frames).flags == 0 for frames in told)


@pytest.mark.requirement("BSN-B-22")
@pytest.mark.parametrize(("number", "returns", "stays"), [(0, [1, 2], [3, 4, 5]), (1, [3, 4], [1, 2, 5])])
def test_the_batch_that_could_not_be_delivered_returns_and_not_the_one_behind_it(
    number: int, returns: list[int], stays: list[int]
) -> None:
    desk = Desk()
    desk.ready(b"v", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2], is_once=True)
    desk.requests(b"c", [3, 4], is_once=True)
    desk.request(b"c", 5, is_once=True)
    desk.ready(b"w", credit=1)
    assert given(desk.undelivered(number)) == [(b"w", returns[:1])]
    assert given(desk.final(b"w", returns[0])) == [(b"w", returns[1:])]
    desk.finals(b"v", stays)
    desk.final(b"w", returns[1])
    assert desk.ledger.services[b"echo"].tally.answered == 5


@pytest.mark.requirement("BSN-B-22")
def test_of_a_batch_that_was_unfolded_before_its_failure_was_seen_all_return() -> None:
    desk = Desk()
    desk.ready(b"v", credit=3, takes_batches=True)
    desk.requests(b"c", [1, 2], is_once=True)
    desk.request(b"c", 3, is_once=True)
    desk.broker.take_over(b"c", desk.now)
    desk.ready(b"w", credit=3)
    assert given(desk.undelivered(0)) == [(b"w", [1]), (b"w", [2])]


@pytest.mark.requirement("BSN-B-17")
def test_single_answers_to_a_batch() -> None:
    desk = Desk()
    desk.ready(b"w", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2, 3, 4])
    assert commands(desk.send(b"w", *native.encode_partial(ident(2), 7, 0, [b"part"]))) == [native.PARTIAL]
    assert commands(desk.send(b"w", *native.encode_final(ident(2), 7, 1, [b"end"]))) == [native.FINAL]
    assert commands(desk.send(b"w", *native.encode_error(ident(3), 7, 1, b"boom"))) == [native.ERROR]
    assert commands(desk.send(b"w", *native.encode_stale_epoch(ident(4), 7))) == [native.REQUEST]
    assert commands(desk.finals(b"w", [1, 4])) == [native.FINAL, native.FINAL]
    assert (desk.ledger.requests_of, desk.ledger.workers[b"w"].held) == ({}, 0)


def test_a_reply_that_was_not_asked_for_ends_the_registration_and_answers_nobody() -> None:
    desk = Desk()
    for worker in (b"v", b"w"):
        desk.ready(worker, credit=2, takes_batches=True)
    desk.requests(b"c", [1, 2, 3, 4])
    told = desk.finals(b"w", [1])  # v has it
    assert commands(told) == [native.DISCONNECT]
    assert desk.ledger.workers.keys() == {b"v"}
    assert desk.ledger.waiting.count == 2


@pytest.mark.requirement("BSN-B-10")
def test_a_repeated_batch_renews_the_address_and_is_not_executed_again() -> None:
    desk = Desk()
    desk.ready(b"w", credit=2, takes_batches=True)
    desk.requests(b"c", [1, 2, 3, 4])
    assert given(desk.requests(b"d", [1, 2, 3, 4], is_repeated=True)) == []
    assert desk.ledger.services[b"echo"].tally.duplicates == 4
    told = desk.finals(b"w", [1, 2])
    assert [frames[0] for frames in told if heard(frames).command == native.FINAL] == [b"d", b"d"]
    assert [number for _, numbers in given(told) for number in numbers] == [3, 4]


@pytest.mark.requirement("BSN-B-11")
def test_of_a_batch_beyond_a_bound_only_the_rest_is_busy() -> None:
    desk = Desk(requests_per_client_max=3)
    told = desk.requests(b"c", [1, 2, 3, 4, 5])
    assert [(heard(frames).command, heard(frames).identity) for frames in told] == [
        (native.BUSY, ident(4)),
        (native.BUSY, ident(5)),
    ]
    desk = Desk(queue_length_max=2)
    assert commands(desk.requests(b"c", [1, 2, 3])) == [native.BUSY]
    desk = Desk(queue_bytes_max=20, message_bytes_max=15)
    told = desk.requests(b"c", [1, 2, 3], [bytes(10), bytes(16), bytes(11)])
    assert [(heard(frames).command, heard(frames).identity) for frames in told] == [
        (native.ERROR, ident(2)),
        (native.BUSY, ident(3)),
    ]


@pytest.mark.requirement("BSN-B-07")
def test_a_node_that_gives_up_its_role_returns_each_request_of_a_batch() -> None:
    desk = Desk()
    desk.ready(b"w", credit=2, takes_batches=True)
    desk.requests(b"c", [1, 2, 3])
    told = [heard(frames) for frames in sent(desk.broker.deactivate(desk.now))]
    assert sorted((message.identity, message.flags) for message in told) == [
        (ident(1), native.FLAG_DISPATCHED),
        (ident(2), native.FLAG_DISPATCHED),
        (ident(3), 0),
    ]
    assert not desk.broker.is_awaited
    assert desk.finals(b"w", [1, 2]) == []
    assert (desk.ledger.drops["late-reply"], desk.ledger.requests_of) == (2, {})


def test_a_client_with_large_batches_does_not_hold_up_another_client() -> None:
    desk = Desk()
    desk.requests(b"greedy", range(1, 1_001))
    desk.request(b"quiet", 2_000)
    told = desk.ready(b"w", credit=100, takes_batches=True)[1:]
    shares = given(told)
    assert shares[1] == (b"w", [2_000])
    assert len(shares[0][1]) <= 32
    assert sum(len(numbers) for _, numbers in shares) == 100


@pytest.mark.requirement("BSN-B-19")
def test_a_client_with_many_small_batches_does_not_hold_up_another_client() -> None:
    """A batch that is used up ends its client's turn, as one of which a part is left does."""
    desk = Desk()
    desk.ready(b"w", credit=10, takes_batches=True)
    desk.requests(b"other", range(1, 11))
    for first in range(100, 200, 10):
        desk.requests(b"greedy", range(first, first + 10))
    assert given(desk.finals(b"w", range(1, 11))) == [(b"w", list(range(100, 110)))]
    for first in (1_000, 1_010):
        desk.requests(b"second", range(first, first + 10))
    shares = [given(desk.finals(b"w", range(first, first + 10))) for first in (100, 1_000, 110, 1_010)]
    assert [numbers[0] for ((_, numbers),) in shares] == [1_000, 110, 1_010, 120]


@pytest.mark.requirement("BSN-B-19")
def test_who_asks_now_and_then_does_not_wait_for_a_round_of_greedy_clients() -> None:
    desk = Desk()
    desk.ready(b"w", credit=32, takes_batches=True)
    for client in range(10):
        desk.requests(b"greedy-%d" % client, range(client * 1_000, client * 1_000 + 500))
    ((_, held),) = given(desk.finals(b"w", range(32)))
    for _ in range(20):
        ((_, held),) = given(desk.finals(b"w", held))
    desk.request(b"quiet", 20_000)
    assert given(desk.finals(b"w", held))[0] == (b"w", [20_000])


def test_replies_are_sent_to_nobody_but_the_client_that_asked() -> None:
    desk = Desk()
    desk.ready(b"w", credit=9, takes_batches=True)
    desk.requests(b"c", [1, 2])
    desk.requests(b"d", [3, 4])  # the same client on a new connection
    told = desk.finals(b"w", [1, 2, 3, 4])
    assert [(frames[0], heard(frames).identity) for frames in told] == [
        (b"c", ident(1)),
        (b"c", ident(2)),
        (b"d", ident(3)),
        (b"d", ident(4)),
    ]
    desk.requests(b"c", [5, 6])
    desk.requests(b"c", [7, 8])
    (told_at_once,) = desk.finals(b"w", [8, 5, 6, 7])
    assert final_rows(told_at_once, 2)[0] == (8, 5, 6, 7)


def test_what_a_worker_holds_of_a_batch_is_awaited() -> None:
    desk = Desk()
    desk.ready(b"w", credit=5, takes_batches=True)
    desk.requests(b"c", [1, 2, 3])
    desk.broker.drain()
    assert desk.broker.is_awaited
    desk.finals(b"w", [1, 2])
    assert desk.broker.is_awaited
    desk.finals(b"w", [3])
    assert not desk.broker.is_awaited


@pytest.mark.requirement("BSN-B-09")
def test_what_is_over_is_not_given_to_a_worker_that_comes_before_the_timer() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2, 3], ttls_ms=[200, 5_000, 5_000])
    desk.now = 0.3
    told = desk.ready(b"w", credit=5, takes_batches=True)
    assert given(told) == [(b"w", [2]), (b"w", [3])]
    over = [heard(frames) for frames in told if frames[0] == b"c"]
    assert [(message.identity, message.value) for message in over] == [(ident(1), ErrorCode.EXPIRED)]


@pytest.mark.requirement("BSN-B-09")
def test_a_row_that_may_wait_for_any_time_leaves_the_others_theirs() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2], ttls_ms=[0, 2_000])
    over = [heard(frames) for frames in desk.wait(3)]
    assert [(message.identity, message.value) for message in over] == [(ident(2), ErrorCode.EXPIRED)]
    assert given(desk.ready(b"w", credit=5, takes_batches=True)) == [(b"w", [1])]


@pytest.mark.requirement("BSN-B-09")
@pytest.mark.requirement("BSN-B-17")
def test_each_slice_has_the_times_and_bodies_of_its_own_rows() -> None:
    desk = Desk()
    for worker, credit in ((b"u", 2), (b"v", 3), (b"w", 2)):
        desk.ready(worker, credit=credit, takes_batches=True)
    bodies = [b"a", b"", b"ccc", b"dd", b"e", b"ffff", b"g", b"hh"]
    ttls_ms = [1_000 * number for number in range(1, 9)]
    told = desk.requests(b"c", range(1, 9), bodies, ttls_ms=ttls_ms)
    parts = [(list(request_rows(frames, 2)[0]), request_rows(frames, 2)[1], frames[3]) for frames in told]
    assert parts == [
        ([1, 2], (1_000, 2_000), b"a"),
        ([3, 4, 5], (3_000, 4_000, 5_000), b"cccdde"),
        ([6, 7], (6_000, 7_000), b"ffffg"),
    ]
    # What comes back as single requests has them as well, and so has the eighth, which has waited.
    desk.now = 0.5
    desk.finals(b"v", [3])
    told = desk.send(b"v", *native.encode_disconnect())
    told += desk.ready(b"x", credit=9)
    singles = [
        heard(frames) for frames in told if frames[0] == b"x" and heard(frames).command == native.REQUEST
    ]
    assert sorted((each.identity, each.value, each.body) for each in singles) == [
        (ident(4), 3_500, [b"dd"]),
        (ident(5), 4_500, [b"e"]),
        (ident(8), 7_500, [b"hh"]),
    ]
    told = desk.send(b"u", *native.encode_disconnect())
    singles = [heard(frames) for frames in told if frames[0] == b"x"]
    assert [(each.identity, each.value, each.body) for each in singles] == [
        (ident(1), 500, [b"a"]),
        (ident(2), 1_500, [b""]),
    ]


@pytest.mark.requirement("BSN-G-16")
def test_a_slice_and_what_is_made_of_it_keep_the_flags_of_the_batch() -> None:
    desk = Desk()
    for worker in (b"u", b"v"):
        desk.ready(worker, credit=2, takes_batches=True)
    told = desk.requests(b"c", range(1, 5), is_repeated=True)
    assert [heard(frames).flags for frames in told] == [native.FLAG_REDELIVERED] * 2
    told = desk.send(b"u", *native.encode_stale_epoch(ident(1), 7))
    told += desk.send(b"u", *native.encode_stale_epoch(ident(2), 7))
    assert [heard(frames).flags for frames in told] == [native.FLAG_REDELIVERED] * 2
