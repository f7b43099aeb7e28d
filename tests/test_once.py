"""Requests that must not be executed twice (ONCE), and those whose caller sees the final reply only (WHOLE).

At the broker, at the client and at the worker, single and in batches. The simulator and the chaos tests ask
the same of whole pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bstar.wire import native, native_broker
from bstar.wire.messages import NEVER_MS, OBEYS_ONCE, READS_BATCHES, ErrorCode, Reason
from support.client_desk import PASSIVE, status
from support.desk import Desk, heard, ident, sent

KEYED = native.keyed_identity(b"echo", b"order 4711")


def told(frames: list[list[bytes]], to: bytes) -> list[tuple[int, bytes, int, int]]:
    """(command, identity, value, flags) of each message to this peer, heartbeats left out."""
    messages = [heard(each) for each in frames if each[0] == to]
    return [
        (message.command, message.identity, message.value, message.flags)
        for message in messages
        if message.command != native.HEARTBEAT
    ]


def lost(number: int) -> tuple[int, bytes, int, int]:
    return (native.ERROR, ident(number), ErrorCode.WORKER_LOST, 0)


# --- the broker ---------------------------------------------------------------------------------------------


def leaves(desk: Desk) -> list[list[bytes]]:
    return desk.send(b"v", *native.encode_disconnect(Reason.GOODBYE, 7))


def is_silent(desk: Desk) -> list[list[bytes]]:
    frames: list[list[bytes]] = []
    while b"v" in desk.ledger.workers:
        frames += desk.wait(0.1)
        frames += desk.send(b"w", *native.encode_heartbeat(7))
    return frames


def is_disconnected(desk: Desk) -> list[list[bytes]]:
    return sent(desk.broker.unreachable(b"v", desk.now)) + is_silent(desk)


def misbehaves(desk: Desk) -> list[list[bytes]]:
    return desk.send(b"v", *native.encode_ready(b"echo"))


def says_what_cannot_be_read(desk: Desk) -> list[list[bytes]]:
    return desk.send(b"v", native.encode_final(ident(1), 7, 0, [b"x"])[0])


def loses_a_draining_node(desk: Desk) -> list[list[bytes]]:
    desk.broker.drain()
    return leaves(desk)


LOSSES = [leaves, is_silent, is_disconnected, misbehaves, says_what_cannot_be_read, loses_a_draining_node]


@pytest.mark.requirement("BSN-B-22")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_request_that_must_not_be_executed_twice_ends_with_its_worker(
    loss: Callable[[Desk], list[list[bytes]]],
) -> None:
    desk = Desk(b"v")
    desk.request(b"c", 1, is_once=True)
    desk.ready(b"w")
    frames = loss(desk)
    assert told(frames, b"c") == [lost(1)]
    assert told(frames, b"w") == []
    assert (desk.ledger.by_identity, desk.ledger.requests_of) == ({}, {})


@pytest.mark.requirement("BSN-B-22")
@pytest.mark.parametrize("loss", LOSSES)
def test_so_does_each_of_a_batch_without_a_reply(loss: Callable[[Desk], list[list[bytes]]]) -> None:
    desk = Desk()
    desk.ready(b"v", credit=3, takes_batches=True)
    desk.requests(b"c", [1, 2, 3], is_once=True)
    desk.finals(b"v", [2])
    desk.ready(b"w", credit=3, takes_batches=True)
    frames = loss(desk)
    assert sorted(told(frames, b"c")) == [lost(1), lost(3)]
    assert told(frames, b"w") == []
    assert desk.ledger.services[b"echo"].tally.lost == 2


def test_what_may_be_repeated_goes_on_as_before() -> None:
    desk = Desk()
    desk.ready(b"v", credit=2)
    desk.request(b"c", 1, is_once=True)
    desk.request(b"c", 2)
    desk.ready(b"w")
    frames = leaves(desk)
    assert told(frames, b"c") == [lost(1)]
    assert told(frames, b"w") == [(native.REQUEST, ident(2), 0, native.FLAG_REDELIVERED)]


def refuses(desk: Desk) -> list[list[bytes]]:
    frames = []
    for number in (1, 2):
        frames += desk.send(b"v", *native.encode_stale_epoch(ident(number), 7))
    return frames


def leaves_before_it_began(desk: Desk) -> list[list[bytes]]:
    return desk.send(b"v", *native.encode_disconnect(Reason.GOODBYE, 7, is_unbegun=True))


@pytest.mark.requirement("BSN-B-22")
@pytest.mark.parametrize("comes_back", [refuses, leaves_before_it_began])
@pytest.mark.parametrize("is_batch", [False, True])
def test_what_a_worker_says_that_it_has_not_begun_goes_to_another_unmarked(
    comes_back: Callable[[Desk], list[list[bytes]]], is_batch: bool
) -> None:
    desk = Desk()
    desk.ready(b"v", credit=2, takes_batches=True)
    if is_batch:
        desk.requests(b"c", [1, 2], is_once=True)
    else:
        for number in (1, 2):
            desk.request(b"c", number, is_once=True)
    desk.broker.drain()
    frames = comes_back(desk)
    desk.ledger.is_draining = False
    desk.send(b"v", *native.encode_disconnect())
    frames += desk.ready(b"w", credit=2)
    assert sorted(each for each in told(frames, b"w") if each[0] == native.REQUEST) == [
        (native.REQUEST, ident(1), 0, 0),
        (native.REQUEST, ident(2), 0, 0),
    ]
    assert told(frames, b"c") == []
    assert {request.deliveries for request in desk.ledger.by_identity.values()} == {1}


@pytest.mark.requirement("BSN-B-22")
def test_what_could_not_be_sent_to_a_worker_goes_to_another() -> None:
    desk = Desk(b"v")
    desk.request(b"c", 1, is_once=True)
    desk.ready(b"w")
    assert told(desk.undelivered(), b"w") == [(native.REQUEST, ident(1), 0, 0)]


@pytest.mark.requirement("BSN-B-22")
def test_what_was_sent_behind_it_stays_at_its_worker() -> None:
    desk = Desk()
    desk.ready(b"v", credit=2)
    for number in (1, 2):
        desk.request(b"c", number, is_once=True)
    desk.ready(b"w")
    # The connection was full for the first one only.
    assert told(desk.undelivered(0), b"w") == [(native.REQUEST, ident(1), 0, 0)]
    assert told(desk.final(b"v", 2), b"c") == [(native.FINAL, ident(2), 0, 0)]


@pytest.mark.requirement("BSN-B-22")
@pytest.mark.requirement("BSN-B-06")
def test_a_node_that_steps_down_tells_which_were_dispatched() -> None:
    desk = Desk()
    desk.ready(b"v", credit=1)
    desk.ready(b"u", credit=1)
    for number in (1, 2, 3):
        desk.request(b"c", number, is_once=True)
    desk.broker.drain()
    desk.send(b"u", *native.encode_disconnect(Reason.GOODBYE, 7, is_unbegun=True))
    frames = sent(desk.broker.deactivate(desk.now))
    assert sorted(told(frames, b"c")) == [
        (native.NOT_ACTIVE, ident(1), 0, native.FLAG_DISPATCHED),
        (native.NOT_ACTIVE, ident(2), 0, 0),
        (native.NOT_ACTIVE, ident(3), 0, 0),
    ]


@pytest.mark.requirement("BSN-B-22")
def test_an_attempt_after_one_that_may_have_been_executed_is_not_dispatched() -> None:
    desk = Desk()
    desk.ready(b"v", credit=4, takes_batches=True)
    frames = native.encode_request(ident(1), b"echo", [b"x"], is_once=True, is_repeated=True)
    assert told(desk.send(b"c", *frames), b"c") == [lost(1)]
    frames_of_batch = desk.requests(b"c", [2, 3], is_once=True, is_repeated=True)
    assert sorted(told(frames_of_batch, b"c")) == [lost(2), lost(3)]
    assert desk.ledger.workers[b"v"].held == 0
    # One that is here is not dispatched again either way; its client has lost its address.
    desk.request(b"c", 4, b"x", is_once=True)
    again = native.encode_request(ident(4), b"echo", [b"x"], is_once=True, is_repeated=True)
    assert desk.send(b"c2", *again) == []
    assert told(desk.final(b"v", 4), b"c2") == [(native.FINAL, ident(4), 0, 0)]


@pytest.mark.requirement("BSN-B-16")
def test_a_key_is_not_used_both_with_and_without_repetition() -> None:
    desk = Desk(b"v")
    once = native.encode_request(KEYED, b"echo", [b"x"], is_once=True)
    often = native.encode_request(KEYED, b"echo", [b"x"])
    desk.send(b"c", *once)
    assert told(desk.send(b"d", *often), b"d") == [(native.ERROR, KEYED, ErrorCode.INVALID, 0)]
    # Whoever asks for the same shares its outcome.
    assert desk.send(b"e", *once) == []
    desk.ready(b"w")
    frames = leaves(desk)
    unknown = [(native.ERROR, KEYED, ErrorCode.WORKER_LOST, 0)]
    assert (told(frames, b"c"), told(frames, b"e"), told(frames, b"w")) == (unknown, unknown, [])


@pytest.mark.requirement("BSN-B-16")
def test_a_key_lives_in_the_queue_as_long_as_the_last_who_asks_for_it() -> None:
    desk = Desk(client_check_interval_s=0)
    desk.send(b"c", *native.encode_request(KEYED, b"echo", [b"x"], ttl_ms=1_000))
    desk.now = 0.5
    desk.send(b"d", *native.encode_request(KEYED, b"echo", [b"x"], ttl_ms=10_000))
    assert desk.wait(9.0) == []
    expired = [(native.ERROR, KEYED, ErrorCode.EXPIRED, 0)]
    frames = desk.wait(1.5)
    assert (told(frames, b"c"), told(frames, b"d")) == (expired, expired)


# --- the broker: whole replies ------------------------------------------------------------------------------


def part(desk: Desk, worker: bytes, index: int) -> list[list[bytes]]:
    return desk.send(worker, *native.encode_partial(ident(1), 7, index, [b"part"]))


@pytest.mark.requirement("BSN-B-23")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_whole_reply_begins_again_at_another_worker(is_batch: bool) -> None:
    desk = Desk()
    desk.ready(b"v", credit=2, takes_batches=True)
    if is_batch:
        desk.requests(b"c", [1, 2], is_whole=True)
    else:
        desk.request(b"c", 1, is_whole=True)
    assert told(part(desk, b"v", 0), b"c") == [(native.PARTIAL, ident(1), 0, 0)]
    desk.ready02(b"w")
    frames = leaves(desk)
    assert told(frames, b"c") == []
    assert [each[0] for each in frames] == [b"w"]
    # A plain worker's PARTIALs are numbered by the broker.
    assert told(desk.partial02(b"w", b"c"), b"c") == [(native.PARTIAL, ident(1), 0, 0)]
    assert told(desk.final02(b"w", b"c"), b"c")[0] == (native.FINAL, ident(1), 1, 0)


@pytest.mark.requirement("BSN-B-08")
def test_a_stream_does_not_begin_again() -> None:
    desk = Desk(b"v")
    desk.request(b"c", 1)
    part(desk, b"v", 0)
    desk.ready(b"w")
    frames = leaves(desk)
    assert (told(frames, b"c"), told(frames, b"w")) == ([lost(1)], [])


@pytest.mark.requirement("BSN-B-23")
def test_a_whole_reply_that_must_not_be_executed_twice_does_not_begin_again() -> None:
    desk = Desk(b"v")
    desk.request(b"c", 1, is_whole=True, is_once=True)
    part(desk, b"v", 0)
    desk.ready(b"w")
    frames = leaves(desk)
    assert (told(frames, b"c"), told(frames, b"w")) == ([lost(1)], [])


@pytest.mark.requirement("BSN-B-23")
def test_a_whole_reply_that_ends_all_its_workers_is_poison() -> None:
    desk = Desk(b"v", deliveries_max=2)
    desk.request(b"c", 1, is_whole=True)
    part(desk, b"v", 0)
    leaves(desk)
    desk.ready(b"v")
    part(desk, b"v", 0)
    assert told(leaves(desk), b"c") == [(native.ERROR, ident(1), ErrorCode.POISON, 0)]


@pytest.mark.requirement("BSN-B-23")
def test_a_stream_with_the_same_key_makes_it_a_stream() -> None:
    desk = Desk(b"v")
    desk.send(b"c", *native.encode_request(KEYED, b"echo", [b"x"], is_whole=True))
    desk.send(b"d", *native.encode_request(KEYED, b"echo", [b"x"]))
    desk.send(b"v", *native.encode_partial(KEYED, 7, 0, [b"part"]))
    unknown = [(native.ERROR, KEYED, ErrorCode.WORKER_LOST, 0)]
    frames = leaves(desk)
    assert (told(frames, b"c"), told(frames, b"d")) == (unknown, unknown)


# --- the client ---------------------------------------------------------------------------------------------


def test_the_status_tells_what_the_node_can() -> None:
    told = status(PASSIVE, retry_after_ms=NEVER_MS)
    for obeys_once in (0, OBEYS_ONCE):
        for reads_batches in (0, READS_BATCHES):
            changed = msgspec.structs.replace(told, features=obeys_once | reads_batches)
            pong = native.decode(native_broker.CODEC.pong(b"c", ident(1), changed)[1:])
            assert native.decode_status(pong) == changed
    old = native_broker.CODEC.pong(b"c", ident(1), told)[1:]
    assert not native.decode_status(native.decode([old[0], old[1][:18]])).features & OBEYS_ONCE
