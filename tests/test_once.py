"""Requests that must not be executed twice (ONCE), and those whose caller sees the final reply only (WHOLE).

At the broker, at the client and at the worker, single and in batches. The simulator and the chaos tests ask
the same of whole pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bstar.errors import CallTimeoutError, OutcomeUnknownError, RejectedError, StreamInterruptedError
from bstar.wire import native, native_broker
from bstar.wire.messages import ALL_FEATURES, NEVER_MS, OBEYS_ONCE, READS_BATCHES, ErrorCode, Reason
from bstar.wire.refusals import ONCE_REPEATED
from bstar_client.core.calls import Call
from support import client_desk
from support.client_desk import ACTIVE, PASSIVE, PRIMARY, status
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


def flags(desk: client_desk.Desk) -> list[tuple[int, int]]:
    """(node, flags) of every REQUEST sent so far."""
    return [(to, message.flags) for to, message in desk.sent if message.command == native.REQUEST]


def together(desk: client_desk.Desk, *calls: Call) -> list[Call]:
    desk.take(desk.session.submit_all(calls, desk.now))
    return list(calls)


def a_call(body: bytes = b"x", *, idempotent: bool = True, stream: bool = False) -> Call:
    return Call(b"echo", [body], None, idempotent, stream)


@pytest.mark.requirement("BSN-C-11")
@pytest.mark.requirement("BSN-C-12")
def test_the_client_tells_what_its_caller_allows(served: client_desk.Desk) -> None:
    served.call()
    served.call(idempotent=False)
    served.call(stream=True)
    once, whole = native.FLAG_ONCE, native.FLAG_WHOLE
    assert flags(served) == [(0, whole), (0, once | whole), (0, 0)]


@pytest.mark.requirement("BSN-G-16")
def test_a_batch_has_only_what_must_or_only_what_may_be_repeated(served: client_desk.Desk) -> None:
    calls = [a_call(b"%d" % number, idempotent=number < 3 or number > 5) for number in range(9)]
    together(served, *calls)
    assert served.batches == 3
    once, whole = native.FLAG_ONCE, native.FLAG_WHOLE
    assert flags(served) == [(0, whole)] * 3 + [(0, once | whole)] * 3 + [(0, whole)] * 3
    assert served.requests() == [(0, call.identity) for call in calls]


@pytest.mark.requirement("BSN-C-11")
def test_a_lost_worker_makes_its_outcome_unknown_at_once(served: client_desk.Desk) -> None:
    call = served.call(idempotent=False)
    served.error(0, call, ErrorCode.WORKER_LOST, b"its worker was lost")
    assert type(served.error_of(call)) is OutcomeUnknownError
    assert served.requests() == [(0, call.identity)]


@pytest.mark.requirement("BSN-C-11")
def test_the_error_of_a_repeated_request_blames_no_worker(served: client_desk.Desk) -> None:
    call = served.call(idempotent=False)
    served.error(0, call, ErrorCode.WORKER_LOST, ONCE_REPEATED.text.encode())
    text = str(served.error_of(call))
    assert "an earlier attempt may have been executed" in text
    assert "worker" not in text


OLD = msgspec.structs.replace(status(ACTIVE), features=ALL_FEATURES & ~OBEYS_ONCE)


@pytest.mark.requirement("BSN-C-11")
def test_a_node_that_does_not_know_the_rule_is_not_asked() -> None:
    desk = client_desk.Desk()
    desk.connect(0, OLD)
    single = desk.call(idempotent=False)
    allowed = desk.call()
    batch = together(desk, *[a_call(b"%d" % number, idempotent=number > 1) for number in range(4)])
    for call in (single, *batch[:2]):
        error = desk.error_of(call)
        assert isinstance(error, RejectedError)
        assert "upgrade the node" in str(error)
        assert not error.may_have_executed
    assert desk.requests() == [(0, call.identity) for call in (allowed, *batch[2:])]
    desk.final(0, allowed)
    assert len(desk.replies) == 1


@pytest.mark.requirement("BSN-C-11")
def test_nor_is_it_sent_such_a_request_as_a_vote() -> None:
    desk = client_desk.Desk()
    bound = [desk.call(idempotent=False) for _ in range(2)]
    allowed = desk.call()
    old = msgspec.structs.replace(status(PRIMARY, retry_after_ms=0), features=ALL_FEATURES & ~OBEYS_ONCE)
    desk.disconnect(1)
    desk.connect(0, old)
    assert all(isinstance(desk.error_of(call), RejectedError) for call in bound)
    assert desk.requests() == [(0, allowed.identity)]


@pytest.mark.requirement("BSN-C-11")
def test_it_stays_with_the_node_it_was_sent_to_when_another_is_followed(served: client_desk.Desk) -> None:
    bound, free = served.call(b"bound", idempotent=False), served.call(b"free")
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == [(1, free.identity)]
    served.final(0, bound)
    assert [call for call, _ in served.replies] == [bound]


@pytest.mark.requirement("BSN-C-11")
@pytest.mark.requirement("BSN-C-10")
def test_a_key_is_not_asked_for_with_and_without_repetition_at_once(served: client_desk.Desk) -> None:
    served.call(key=b"k", idempotent=False)
    other = served.call(key=b"k")
    error = served.error_of(other)
    assert isinstance(error, RejectedError)
    assert "another value of idempotent" in str(error)
    assert len(served.requests()) == 1


@pytest.mark.requirement("BSN-C-11")
def test_whose_caller_goes_away_is_not_sent_again_for_the_others(served: client_desk.Desk) -> None:
    hasty = served.call(key=b"k", timeout=1.0, idempotent=False)
    patient = served.call(key=b"k", timeout=20.0, idempotent=False)
    served.wait(0.75)
    served.pong(0, status(ACTIVE))
    served.wait(0.75)
    assert isinstance(served.error_of(hasty), CallTimeoutError)
    assert len(served.requests()) == 1
    served.final(0, patient)
    assert [call for call, _ in served.replies] == [patient]


@pytest.mark.requirement("BSN-C-11")
def test_unless_it_was_not_executed(served: client_desk.Desk) -> None:
    hasty = served.call(key=b"k", timeout=1.0, idempotent=False)
    patient = served.call(key=b"k", timeout=20.0, idempotent=False)
    served.wait(0.99)
    served.error(0, hasty, ErrorCode.EXPIRED)
    assert isinstance(served.error_of(hasty), CallTimeoutError)
    served.wait(0.1)
    once = native.FLAG_ONCE | native.FLAG_WHOLE
    assert flags(served) == [(0, once), (0, once)]
    served.final(0, patient)
    assert [call for call, _ in served.replies] == [patient]


@pytest.mark.requirement("BSN-C-12")
def test_parts_of_a_lost_run_are_no_parts_of_the_reply(served: client_desk.Desk) -> None:
    call = served.call()
    for index in range(2):
        served.partial(0, call, index, b"lost")
    for index in range(3):
        served.partial(0, call, index, b"%d" % index)
    served.final(0, call, partials=3)
    [(_, reply)] = served.replies
    assert reply.partials == ((b"0",), (b"1",), (b"2",))


@pytest.mark.requirement("BSN-C-03")
def test_a_stream_that_has_begun_is_broken_by_a_lost_worker(served: client_desk.Desk) -> None:
    call = served.call(stream=True)
    served.partial(0, call, 0)
    served.error(0, call, ErrorCode.WORKER_LOST)
    assert isinstance(served.error_of(call), StreamInterruptedError)


def test_the_status_tells_what_the_node_can() -> None:
    told = status(PASSIVE, retry_after_ms=NEVER_MS)
    for obeys_once in (0, OBEYS_ONCE):
        for reads_batches in (0, READS_BATCHES):
            changed = msgspec.structs.replace(told, features=obeys_once | reads_batches)
            pong = native.decode(native_broker.CODEC.pong(b"c", ident(1), changed)[1:])
            assert native.decode_status(pong) == changed
    old = native_broker.CODEC.pong(b"c", ident(1), told)[1:]
    assert not native.decode_status(native.decode([old[0], old[1][:18]])).features & OBEYS_ONCE
