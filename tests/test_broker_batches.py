"""Batches at the broker: shares, order, and that every rule of single requests holds for each in a batch."""

import pytest

from bstar.wire import native
from bstar.wire.batches import request_rows
from support.desk import CLIENT_ID, Desk, heard


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
