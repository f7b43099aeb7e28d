"""The broker core, sans-I/O: queues, dispatch, worker death, bounds, and what it tells whom.

test_conformance_mdp.py has what plain clients and workers see of it in the same virtual time.
"""

import json
from hashlib import blake2b

import pytest

from bstar.errors import RemoteProtocolError
from bstar.wire import batches, decode, native
from bstar.wire.messages import ErrorCode, Reason
from bstar_broker.core import BrokerSettings, NodeState, Notice
from bstar_broker.core.admission import ASKERS_MAX
from bstar_broker.core.management import Management, Pictures, broker_state
from bstar_broker.core.records import Accepted, Bundle
from support.desk import Desk, heard, ident, sent

DISCONNECT02 = [b"MDPW02", b"\x06"]
HEARTBEAT02 = [b"MDPW02", b"\x05"]


def no_state(now: float) -> NodeState:
    raise AssertionError("nobody asked for mmi.state")


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- queue and dispatch -------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-B-26")
def test_a_plain_request_is_not_tried_again() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    retry = native.encode_error(ident(1), 7, ErrorCode.RETRY, b"not yet", native.pack_retry(5))
    [told] = desk.send(b"w", *retry)
    message = heard(told)
    assert (told[0], message.command, message.value) == (b"c", native.ERROR, ErrorCode.RETRY)
    assert message.body == [b"not yet"]
    assert desk.request(b"c", 1) != [], "it has ended: the same one is a new one"


def test_a_worker_with_credit_gets_as_many_requests_and_no_more(desk: Desk) -> None:
    desk.ready(b"w", credit=3)
    given = [desk.request(b"c", number) for number in range(1, 6)]
    assert [len(frames) for frames in given] == [1, 1, 1, 0, 0]
    final, next_request = desk.final(b"w", 2)
    assert heard(final).identity == ident(2)
    assert heard(next_request).identity == ident(4)


def test_credit_is_filled_evenly_over_workers(desk: Desk) -> None:
    desk.ready(b"w1", credit=2)
    desk.ready(b"w2", credit=2)
    assert [desk.request(b"c", n)[0][0] for n in range(1, 5)] == [b"w1", b"w2", b"w1", b"w2"]


# --- time ---------------------------------------------------------------------------------------------------


def test_a_request_without_deadline_expires_in_the_queue() -> None:
    desk = Desk(request_ttl_s=5)
    desk.request02(b"c")
    desk.wait(6)
    assert desk.ready02(b"w") == []
    assert desk.ledger.services[b"echo"].tally.expired == 1
    assert desk.ledger.requests_of == {}


def test_an_expired_request_is_refused_with_an_error_where_the_dialect_has_one(desk: Desk) -> None:
    desk.request(b"c", 1, ttl_ms=1500)
    (frames,) = desk.wait(3)
    error = heard(frames)
    assert (frames[0], error.command, error.value, error.identity) == (
        b"c",
        native.ERROR,
        ErrorCode.EXPIRED,
        ident(1),
    )


def test_a_request_that_expired_since_the_last_tidying_is_not_dispatched(desk: Desk) -> None:
    desk.request(b"c", 1, ttl_ms=10)
    desk.now = 0.5
    frames = desk.ready(b"w")
    assert [heard(f).command for f in frames] == [native.WELCOME, native.ERROR]


def test_the_remaining_time_travels_with_the_request(desk: Desk) -> None:
    desk.request(b"c", 1, ttl_ms=1000)
    desk.now = 0.25
    request = heard(desk.ready(b"w")[1])
    assert request.value == 750


@pytest.mark.parametrize(
    ("beat_at_s", "silent_s", "is_there"),
    [
        (None, 59, True),
        # A heartbeat that crossed the request proves nothing.
        (0, 30, True),
        # One that heartbeats while it works is missed as soon as it stops.
        (2.6, 8, False),
    ],
)
def test_a_plain_worker_may_be_silent_while_it_works_unless_it_has_sent_heartbeats(
    beat_at_s: float | None, silent_s: float, is_there: bool
) -> None:
    desk = Desk(busy_timeout_s=60)
    desk.ready02(b"w")
    desk.request02(b"c")
    if beat_at_s is not None:
        desk.wait(beat_at_s)
        desk.send(b"w", *HEARTBEAT02)
    desk.wait(silent_s)
    assert (b"w" in desk.ledger.workers) == is_there
    if is_there:
        assert desk.final02(b"w", b"c") == [[b"c", b"MDPC02", b"\x03", b"echo", b"done"]]


def test_native_workers_are_told_their_interval() -> None:
    desk = Desk(worker_heartbeat_interval_s=0.25, worker_liveness=4)
    welcome = native.decode_welcome(heard(desk.ready(b"w")[0]))
    assert (welcome.heartbeat_ms, welcome.expiry_ms, welcome.status.epoch) == (250, 1000, 7)


def test_a_service_without_workers_and_requests_is_removed() -> None:
    desk = Desk(request_ttl_s=5, service_ttl_s=10)
    desk.request02(b"c", service=b"misspelt")
    desk.wait(7)
    assert b"misspelt" in desk.ledger.services
    desk.wait(11)
    assert desk.ledger.services == {}


# --- workers that die or misbehave --------------------------------------------------------------------------


def test_the_request_of_a_leaving_worker_goes_to_the_next_one_marked_redelivered() -> None:
    desk = Desk(b"w1", b"w2")
    first = heard(desk.request(b"c", 1)[0])
    (frames,) = desk.send(b"w1", *native.encode_disconnect())
    second = heard(frames)
    assert (first.flags, second.flags) == (0, native.FLAG_REDELIVERED)
    assert (frames[0], second.identity) == (b"w2", ident(1))


def test_a_request_goes_out_again_before_younger_ones(desk: Desk) -> None:
    desk.ready02(b"w1")
    desk.request02(b"c", b"old")
    desk.request02(b"c", b"young")
    desk.send(b"w1", *DISCONNECT02)
    assert desk.ready02(b"w2")[0][5] == b"old"


def test_a_client_that_fills_a_queue_leaves_room_for_those_that_do_not() -> None:
    desk = Desk(queue_length_max=20)
    for number in range(30):
        desk.request(b"greedy", number)
    assert desk.ledger.waiting.count == 18
    desk.requests(b"other", [100, 101, 102])
    assert desk.ledger.waiting.count == 20
    assert [heard(frames).command for frames in desk.request(b"quiet", 200)] == [native.BUSY]
    desk.ready(b"w")
    assert desk.request(b"quiet", 200) == []
    assert [heard(frames).command for frames in desk.request(b"greedy", 31)] == [native.BUSY]


@pytest.mark.requirement("BSN-B-18")
def test_an_urgent_request_goes_before_the_others_and_again_when_its_worker_is_lost(desk: Desk) -> None:
    for number in (1, 2):
        desk.request(b"c", number)
    desk.requests(b"c", [3, 4])
    desk.request(b"d", 5, is_urgent=True)
    desk.request(b"d", 6, ttl_ms=1_000, is_urgent=True)
    desk.request(b"e", 7, is_urgent=True)

    def next_to(worker: bytes) -> int:
        (frames,) = [frames for frames in desk.ready(worker) if heard(frames).command == native.REQUEST]
        assert heard(frames).flags & native.FLAG_URGENT == 0
        return int.from_bytes(heard(frames).identity[16:], "big")

    assert next_to(b"w1") == 5
    desk.send(b"w1", *native.encode_disconnect())
    assert [next_to(b"w2"), next_to(b"w3")] == [5, 7]
    assert ErrorCode.EXPIRED in [heard(frames).value for frames in desk.wait(2) if frames[0] == b"d"]  # 6
    assert [next_to(b"w4"), next_to(b"w5"), next_to(b"w6"), next_to(b"w7")] == [1, 2, 3, 4]
    assert (desk.ledger.waiting.count, desk.ledger.waiting.size_bytes) == (0, 0)


def test_a_request_whose_time_ends_with_its_worker_is_not_given_to_another() -> None:
    desk = Desk(b"w1")
    desk.request(b"c", 1, ttl_ms=100)
    desk.ready(b"w2")
    desk.now = 0.1
    [error] = desk.send(b"w1", *native.encode_disconnect(Reason.GOODBYE, 7))
    assert (error[0], heard(error).value) == (b"c", ErrorCode.WORKER_LOST)


def test_a_lost_worker_does_not_count_any_more() -> None:
    desk = Desk(b"w1", b"w2")
    desk.send(b"w1", *native.encode_disconnect(Reason.GOODBYE, 7))
    assert desk.ledger.services[b"echo"].workers == 1


@pytest.mark.parametrize("dialect", ["native", "02"])
def test_a_second_ready_ends_the_registration(dialect: str) -> None:
    desk = Desk()
    ready = desk.ready if dialect == "native" else desk.ready02
    ready(b"w")
    assert len(ready(b"w")) == 1
    assert not desk.ledger.workers


def test_a_request_that_kills_its_workers_is_given_up_as_poison() -> None:
    desk = Desk(deliveries_max=3)
    for number in range(3):
        desk.ready(b"w%d" % number)
    desk.request(b"c", 1)
    desk.send(b"w0", *native.encode_disconnect())
    desk.send(b"w1", *native.encode_disconnect())
    (frames,) = desk.send(b"w2", *native.encode_disconnect())
    assert (heard(frames).command, heard(frames).value) == (native.ERROR, ErrorCode.POISON)
    assert desk.ledger.services[b"echo"].tally.poisoned == 1
    assert desk.ledger.requests_of == {}


def test_a_worker_that_cannot_be_reached_does_not_use_up_a_delivery() -> None:
    desk = Desk(deliveries_max=2)
    for number in range(6):
        desk.ready(b"w%d" % number)
    desk.request(b"c", 1)
    moved = [desk.undelivered() for _ in range(5)]
    assert [(frames[0], heard(frames).flags) for (frames,) in moved] == [
        (b"w%d" % number, 0) for number in range(1, 6)
    ]


def test_the_last_reply_of_a_worker_that_has_closed_is_read_before_its_request_is_given_away() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    assert sent(desk.broker.unreachable(b"w1", desk.now)) == []  # a heartbeat found it gone
    (frames,) = desk.final(b"w1", 1)
    assert (frames[0], heard(frames).command) == (b"c", native.FINAL)
    assert set(desk.ledger.workers) == {b"w2"}


def test_what_a_worker_held_whose_connection_is_gone_is_given_away_at_the_next_sweep() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    desk.broker.unreachable(b"w1", desk.now)
    moved = [frames for frames in desk.wait(0.6) if heard(frames).command == native.REQUEST]
    assert [frames[0] for frames in moved] == [b"w2"]


@pytest.mark.parametrize("dialect", ["native", "mdp02"])
def test_workers_that_come_at_once_are_not_due_at_once(dialect: str) -> None:
    desk = Desk()
    names = [b"w%d" % number for number in range(200)]
    beat = native.encode_heartbeat(0) if dialect == "native" else HEARTBEAT02
    for name in names:
        _ = desk.ready(name) if dialect == "native" else desk.ready02(name)
    settings = desk.ledger.settings
    interval_s = (
        settings.worker_heartbeat_interval_s if dialect == "native" else settings.mdp_heartbeat_interval_s
    )
    beats: list[list[bytes]] = []
    while desk.now < 3 * interval_s:
        beats.append([frames[0] for frames in desk.wait(desk.broker.next_deadline() - desk.now)])
        for name in names:
            desk.send(name, *beat)
    assert max(map(len, beats)) <= 50, "a quarter at most"
    # And each hears its broker once per interval, as before.
    assert {sum(name in some for some in beats) for name in names} <= {2, 3, 4}


def test_workers_of_a_broker_that_was_away_are_not_taken_for_dead_before_they_are_read() -> None:
    """What they said meanwhile waits in its socket, behind the timers that became due."""
    desk = Desk(b"w1")
    desk.ready02(b"w2")
    desk.request(b"c", 1)
    assert [(frames[0], frames[1][:1]) for frames in desk.away(100.0)] == [(b"w1", b"\xb5"), (b"w2", b"M")]
    assert set(desk.ledger.workers) == {b"w1", b"w2"}
    (frames,) = desk.final(b"w1", 1)
    assert (frames[0], heard(frames).command) == (b"c", native.FINAL)


def test_a_worker_that_is_silent_while_its_broker_listens_is_dead_all_the_same() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    expiry_s = desk.ledger.workers[b"w1"].lease.expiry_s
    desk.wait(expiry_s / 2)
    desk.send(b"w2", *native.encode_heartbeat(0))
    desk.away(100.0)
    moved = [frames for frames in desk.wait(expiry_s) if heard(frames).command == native.REQUEST]
    assert [frames[0] for frames in moved] == [b"w2"]


def test_a_native_client_hears_that_its_worker_died_after_a_partial() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    desk.send(b"w1", *native.encode_partial(ident(1), 7, 0, [b"part"]))
    (frames,) = desk.send(b"w1", *native.encode_disconnect())
    assert (heard(frames).command, heard(frames).value) == (native.ERROR, ErrorCode.WORKER_LOST)


def test_a_worker_of_a_reserved_service_is_refused(desk: Desk) -> None:
    assert desk.ready02(b"w", b"mmi.foo") == [[b"w", *DISCONNECT02]]
    frames = desk.ready(b"n", b"mmi.service")
    assert heard(frames[0]).value == Reason.RESERVED
    assert desk.ledger.workers == {}


def test_the_later_dialects_of_libmdp_are_dropped_and_their_workers_sent_away(desk: Desk) -> None:
    """They call themselves 0.2. There 03 ends a reply and 04 is HEARTBEAT, so a reply could be no PARTIAL."""
    for client in ([b"", b"MDPC02"], [b"", b"MDPC0X"], [b"\xaa\xa4\x01\x06MDPC02\x01\x04echo"]):
        assert desk.send(b"c", *client, b"echo", b"body") == []
    assert sum(desk.ledger.drops.values()) == 3
    assert len(desk.notices) >= 1
    for worker in ([b"", b"MDPW0X", b"\x01", b"echo"], [b"\xaa\xa4\x04\x06MDPW02\x01\x04echo"]):
        desk.send(b"w", *worker)
        assert desk.ledger.workers == {}
    # The tag wire-protocol-0.2: its READY is one of 0.2 with an empty frame before it.
    desk.send(b"w", b"", b"MDPW02", b"\x01", b"echo")
    assert list(desk.ledger.workers) == [b"w"]
    assert desk.send(b"w", b"", b"MDPW02", b"\x04") == [[b"w", b"", *DISCONNECT02]]
    assert desk.ledger.workers == {}


def test_an_unknown_worker_is_asked_to_register(desk: Desk) -> None:
    assert desk.send(b"w", *HEARTBEAT02) == [[b"w", *DISCONNECT02]]
    assert heard(desk.send(b"n", *native.encode_heartbeat(1))[0]).value == Reason.UNKNOWN
    assert desk.ready02(b"w") == []
    assert desk.request02(b"c")[0][0] == b"w"


def test_garbage_is_counted_and_leaves_no_trace(desk: Desk) -> None:
    for frames in (
        [b"x"],
        [b"x", b""],
        [b"x", b"MDPW02", b"\x63"],
        [b"x", b"\xb5\x01"],
        [b"x", b"", b"MDPC01"],
    ):
        assert desk.send(*frames) == []
    assert sum(desk.ledger.drops.values()) == 5
    assert (desk.ledger.workers, desk.ledger.services, desk.ledger.requests_of) == ({}, {}, {})


def test_a_request_beyond_a_bound_is_answered_with_an_error() -> None:
    desk = Desk(message_bytes_max=1_000)
    (frames,) = desk.request(b"c", 1, b"x" * 1_001)
    assert (heard(frames).value, heard(frames).identity) == (ErrorCode.INVALID, ident(1))
    assert desk.ledger.requests_of == {}


def test_a_reply_beyond_a_bound_does_not_leave_its_request_hanging() -> None:
    desk = Desk(b"w", message_bytes_max=1_000, deliveries_max=1)
    desk.request(b"c", 1)
    told = desk.final(b"w", 1, b"x" * 1_001)
    assert [(frames[0], heard(frames).command) for frames in told] == [
        (b"w", native.DISCONNECT),
        (b"c", native.ERROR),
    ]


def test_workers_that_expire_together_do_not_get_each_others_requests() -> None:
    """Both are silent, and their time ends in the same look at all workers."""
    desk = Desk(b"w1", b"w2")
    assert [frames[0] for frames in desk.request(b"c", 1)] == [b"w1"]
    told = desk.wait(60.0)
    assert not desk.ledger.workers
    assert native.REQUEST not in [heard(frames).command for frames in told]
    [request] = desk.ledger.services[b"echo"].queue
    assert isinstance(request, Accepted)
    assert request.deliveries == 1


def test_a_redelivered_request_expires_once_and_is_not_called_unexecuted(desk: Desk) -> None:
    desk.request(b"c", 1, ttl_ms=2_000)
    desk.ready(b"w")
    desk.send(b"w", *native.encode_disconnect())
    (frames,) = desk.wait(4)
    assert heard(frames).value == ErrorCode.WORKER_LOST
    assert desk.ledger.waiting.count == 0


def test_a_queued_request_that_a_worker_had_is_given_back_as_dispatched() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.send(b"w", *native.encode_disconnect())
    (frames,) = sent(desk.broker.deactivate(desk.now))
    assert heard(frames).flags == native.FLAG_DISPATCHED


def test_a_worker_that_knows_a_later_epoch_gives_the_request_back() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.broker.activate(11)  # the node has learned of epoch 9 and is active anew
    (frames,) = desk.send(b"w", *native.encode_stale_epoch(ident(1), 9))
    again = heard(frames)
    assert (again.command, again.identity, again.flags) == (native.REQUEST, ident(1), 0)


@pytest.mark.requirement("BSN-B-25")
def test_a_worker_that_remembers_an_epoch_too_far_above_gets_no_requests_until_it_follows_the_node() -> None:
    """It is neither disconnected nor asked the same over and over."""
    desk = Desk(b"w", deliveries_max=1)
    desk.request(b"c", 1)
    assert desk.send(b"w", *native.encode_stale_epoch(ident(1), 2**60)) == []
    assert desk.request(b"c", 2) == []
    assert desk.send(b"w", *native.encode_heartbeat(2**60)) == []
    asked = desk.send(b"w", *native.encode_heartbeat(7))
    assert [(heard(frames).command, heard(frames).identity) for frames in asked] == [
        (native.REQUEST, ident(1))
    ]


def test_what_a_worker_that_is_ahead_returns_goes_to_another_one() -> None:
    desk = Desk(b"ahead", deliveries_max=1)
    desk.request(b"c", 1)
    desk.ready(b"near")
    (frames,) = desk.send(b"ahead", *native.encode_stale_epoch(ident(1), 2**60))
    assert (frames[0], heard(frames).identity) == (b"near", ident(1))
    desk.final(b"near", 1)
    (frames,) = desk.request(b"c", 2)
    assert frames[0] == b"near"


def test_the_first_drop_of_each_kind_is_worth_a_line_in_the_log(desk: Desk) -> None:
    seen: list[object] = []
    for _ in range(3):
        frames = [b"c", b"", b"MDPC02", b"\x02", b"echo", b"hi"]
        with pytest.raises(RemoteProtocolError) as caught:
            decode(frames)
        seen += desk.broker.receive_invalid(frames, caught.value, desk.now)
    (notice,) = seen
    assert isinstance(notice, Notice)
    assert "invalid-client-command" in notice.text


# --- dialects meet ------------------------------------------------------------------------------------------


def test_a_native_client_and_a_plain_worker_understand_each_other(desk: Desk) -> None:
    desk.ready02(b"w")
    assert desk.request(b"c", 5) == [[b"w", b"MDPW02", b"\x02", b"c", b"", b"hi"]]
    part = heard(desk.partial02(b"w", b"c", b"p")[0])
    final = heard(desk.final02(b"w", b"c", b"f")[0])
    assert (part.command, part.identity, part.value, part.body) == (native.PARTIAL, ident(5), 0, [b"p"])
    assert (final.command, final.identity, final.value, final.body) == (native.FINAL, ident(5), 1, [b"f"])


def test_a_plain_client_and_a_native_worker_understand_each_other() -> None:
    desk = Desk(b"w")
    request = heard(desk.request02(b"c")[0])
    assert request.identity[:16] == b"N" * 16
    reply = desk.send(b"w", *native.encode_final(request.identity, 7, 0, [b"f"]))
    assert reply == [[b"c", b"MDPC02", b"\x03", b"echo", b"f"]]


def test_a_plain_client_hears_nothing_of_a_failed_handler() -> None:
    desk = Desk(b"w")
    request = heard(desk.request02(b"c")[0])
    assert desk.send(b"w", *native.encode_error(request.identity, 7, 1, b"ValueError")) == []
    assert desk.ledger.services[b"echo"].tally.failed == 1
    assert desk.request02(b"c")[0][0] == b"w"


@pytest.mark.parametrize(
    ("bytes_max", "parts"),
    [(10, [[b"x" * 11]]), (BrokerSettings().partials_buffer_bytes_max, [[b""] * 1_000] * 101)],
    ids=["bytes", "frames"],
)
def test_too_many_held_partials_are_given_up_without_harm_to_the_worker(
    bytes_max: int, parts: list[list[bytes]]
) -> None:
    desk = Desk(partials_buffer_bytes_max=bytes_max)
    desk.ready02(b"w")
    desk.request01(b"c")
    for frames in parts:
        desk.send(b"w", b"MDPW02", b"\x03", b"c", b"", *frames)
    assert desk.final02(b"w", b"c") == []
    assert (desk.ledger.services[b"echo"].tally.lost, desk.ledger.drops["partials-overflow"]) == (1, 1)
    assert desk.request01(b"c")[0][0] == b"w"


# --- repetition ---------------------------------------------------------------------------------------------


def test_a_repeated_request_is_executed_once_and_answered_at_its_new_address() -> None:
    desk = Desk(b"w")
    desk.request(b"old-socket", 1)
    assert desk.request(b"new-socket", 1) == []
    (frames,) = desk.final(b"w", 1)
    assert frames[0] == b"new-socket"
    assert desk.ledger.services[b"echo"].tally.duplicates == 1
    assert desk.ledger.requests_of == {}


def test_a_worker_is_told_that_another_node_may_have_executed_the_request() -> None:
    desk = Desk(b"w")
    (frames,) = desk.send(b"c", *native.encode_request(ident(1), b"echo", [b"hi"], is_repeated=True))
    assert heard(frames).flags == native.FLAG_REDELIVERED


def test_the_same_number_of_another_client_is_another_request() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"a", 1)
    other = native.identity(b"O" * 16, 1)
    (frames,) = desk.send(b"b", *native.encode_request(other, b"echo", [b"hi"]))
    assert heard(frames).identity == other


# --- keys ---------------------------------------------------------------------------------------------------


def ask(desk: Desk, client: bytes, body: bytes = b"hi", *, ttl_ms: int = 0) -> list[native.Message]:
    """A request with a key, and what the broker says to anybody because of it."""
    frames = native.encode_request(KEYED, b"echo", [body], ttl_ms=ttl_ms)
    return [heard(frames) for frames in desk.send(client, *frames)]


KEYED = native.keyed_identity(b"echo", b"order 7")


def test_all_who_ask_with_one_key_get_the_answer_of_one_execution() -> None:
    desk = Desk(b"w")
    (given,) = ask(desk, b"a")
    assert given.identity == KEYED
    assert ask(desk, b"b") == ask(desk, b"c") == ask(desk, b"b") == []
    replies = desk.send(b"w", *native.encode_final(KEYED, 7, 0, [b"done"]))
    assert [frames[0] for frames in replies] == [b"a", b"b", b"c"]
    assert {heard(frames).body[0] for frames in replies} == {b"done"}
    assert desk.ledger.services[b"echo"].tally.duplicates == 3
    assert desk.ledger.requests_of == {}


def test_an_error_and_the_end_of_the_role_reach_all_who_asked_with_one_key() -> None:
    desk = Desk(b"w")
    for client in (b"a", b"b"):
        ask(desk, client)
    failed = desk.send(b"w", *native.encode_error(KEYED, 7, ErrorCode.HANDLER_FAILED, b"no"))
    assert [(frames[0], heard(frames).command) for frames in failed] == [
        (b"a", native.ERROR),
        (b"b", native.ERROR),
    ]
    for client in (b"a", b"b"):
        ask(desk, client)
    told = sent(desk.broker.deactivate(desk.now))
    assert [(frames[0], heard(frames).flags) for frames in told] == [
        (b"a", native.FLAG_DISPATCHED),
        (b"b", native.FLAG_DISPATCHED),
    ]
    assert desk.send(b"w", *native.encode_final(KEYED, 7, 0, [b"late"])) == []


def test_a_key_lives_as_long_as_the_most_patient_of_those_who_asked(desk: Desk) -> None:
    ask(desk, b"hasty", ttl_ms=100)
    ask(desk, b"patient", ttl_ms=5_000)
    assert desk.wait(1.0) == []
    (given,) = (heard(frames) for frames in desk.ready(b"w") if heard(frames).command == native.REQUEST)
    assert 3_900 < given.value <= 4_000


def test_a_key_with_another_body_is_rejected(desk: Desk) -> None:
    ask(desk, b"a", b"one")
    (told,) = ask(desk, b"b", b"two")
    assert (told.command, told.value, told.identity) == (native.ERROR, ErrorCode.INVALID, KEYED)
    assert desk.ledger.drops["other-body"] == 1


def test_who_asks_when_too_many_wait_for_a_key_or_its_partials_have_begun_is_told_to_come_back() -> None:
    desk = Desk(b"w")
    for number in range(1 + ASKERS_MAX):
        ask(desk, b"client %d" % number)
    assert [told.command for told in ask(desk, b"one more")] == [native.BUSY]
    assert ask(desk, b"client 3") == [], "who waits already does not count again"
    parts = desk.send(b"w", *native.encode_partial(KEYED, 7, 0, [b"part"]))
    assert len(parts) == 1 + ASKERS_MAX
    desk.send(b"w", *native.encode_final(KEYED, 7, 1, [b"done"]))
    ask(desk, b"a")
    desk.send(b"w", *native.encode_partial(KEYED, 7, 0, [b"part"]))
    assert [told.command for told in ask(desk, b"b")] == [native.BUSY]
    assert (desk.ledger.drops["askers-full"], desk.ledger.drops["askers-late"]) == (1, 1)


def test_a_keyed_identity_fits_into_63_bits_and_is_no_counted_number() -> None:
    assert native.is_keyed(KEYED)
    assert not native.is_keyed(ident(1))
    number = int.from_bytes(KEYED[16:], "big")
    assert batches.KEYED_NUMBER_MIN <= number < 1 << 63
    assert native.keyed_identity(b"echo", b"order 8") != KEYED != native.keyed_identity(b"ech", b"oorder 7")


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_the_newest() -> None:
    desk = Desk(queue_length_max=2)
    desk.request(b"c", 1)
    desk.request(b"c", 2)
    (frames,) = desk.request(b"c", 3)
    assert (heard(frames).command, heard(frames).identity) == (native.BUSY, ident(3))
    assert heard(frames).value > 0
    assert desk.ledger.services[b"echo"].tally.refused == 1
    assert desk.request02(b"plain") == []
    assert desk.ledger.drops["queue-full"] == 2


def test_the_octets_of_all_queues_together_are_bounded() -> None:
    desk = Desk(queue_bytes_max=100)
    desk.request(b"c", 1, b"x" * 60)
    assert heard(desk.request(b"c", 2, b"x" * 60, service=b"other")[0]).command == native.BUSY
    desk.ready(b"w")
    assert desk.ledger.waiting.size_bytes == 0
    assert desk.request(b"c", 3, b"x" * 60, service=b"other") == []


def test_one_client_cannot_fill_the_house() -> None:
    desk = Desk(requests_per_client_max=2)
    desk.request(b"greedy", 1)
    desk.request(b"greedy", 2)
    assert heard(desk.request(b"greedy", 3)[0]).command == native.BUSY
    assert desk.request(b"quiet", 4) == []


def test_services_and_workers_are_bounded() -> None:
    desk = Desk(services_max=2, workers_max=2)
    desk.ready02(b"w1", b"a")
    desk.ready02(b"w2", b"b")
    assert desk.ready02(b"w3", b"a") == [[b"w3", *DISCONNECT02]]
    assert heard(desk.request(b"c", 1, service=b"third")[0]).command == native.BUSY


def test_names_that_only_clients_mention_do_not_lock_workers_out() -> None:
    desk = Desk(services_max=2)
    desk.request02(b"c", service=b"junk-1")
    desk.request02(b"c", service=b"junk-2")
    desk.ready02(b"w1", b"a")
    desk.ready02(b"w2", b"b")
    assert desk.request02(b"c", service=b"a")[0][0] == b"w1"
    assert desk.ready02(b"w3", b"c") == [[b"w3", *DISCONNECT02]]
    assert len(desk.ledger.services) == 4


def test_nothing_is_left_of_clients_that_were_answered() -> None:
    desk = Desk(b"w")
    for number in range(1, 1000):
        client = b"client-%d" % number
        desk.request(client, number)
        desk.final(b"w", number)
    assert desk.ledger.requests_of == {}
    assert desk.ledger.by_identity == {}
    assert broker_state(desk.ledger, desk.now).clients == 0


# --- the role changes ---------------------------------------------------------------------------------------


def test_a_passive_broker_registers_workers_and_dispatches_nothing() -> None:
    desk = Desk(is_serving=False)
    assert [heard(f).command for f in desk.ready(b"w")] == [native.WELCOME]
    desk.broker.activate(9)
    (frames,) = desk.request(b"c", 1)
    assert (frames[0], heard(frames).epoch) == (b"w", 9)


def test_giving_up_the_role_gives_every_request_back() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.request(b"c", 2)
    desk.request02(b"plain")
    returned = [heard(frames) for frames in sent(desk.broker.deactivate(desk.now))]
    assert {(m.command, m.identity, m.flags) for m in returned} == {
        (native.NOT_ACTIVE, ident(1), native.FLAG_DISPATCHED),
        (native.NOT_ACTIVE, ident(2), 0),
    }
    assert desk.ledger.services[b"echo"].tally.returned == 2
    # A plain client cannot be told: its request waits until it is known who serves.
    assert desk.ledger.waiting.count == 1
    assert desk.broker.release(desk.now) == []
    assert desk.ledger.services[b"echo"].tally.returned == 3
    assert desk.ledger.waiting.size_bytes == 0


def test_a_reply_that_comes_after_the_role_is_gone_is_dropped_and_the_worker_stays() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.broker.deactivate(desk.now)
    assert desk.final(b"w", 1) == []
    assert b"w" in desk.ledger.workers
    assert desk.ledger.requests_of == {}
    desk.broker.activate(8)
    assert desk.request02(b"c")[0][0] == b"w"


def test_a_request_repeated_after_a_short_loss_of_the_role_is_not_run_twice() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.broker.deactivate(desk.now)
    desk.broker.activate(9)
    assert desk.request(b"c", 1) == []
    (frames,) = desk.final(b"w", 1)
    assert (frames[0], heard(frames).command) == (b"c", native.FINAL)


@pytest.mark.parametrize("is_batch", [False, True])
def test_the_bodies_of_ended_requests_are_not_kept_until_their_time_is_over(is_batch: bool) -> None:
    desk = Desk()
    desk.ready(b"w", credit=3, takes_batches=is_batch)
    for first in range(1, 101, 5):
        numbers = range(first, first + 5)
        if is_batch:
            desk.requests(b"c", numbers, [bytes(10_000)] * 5, ttls_ms=[30_000] * 5)
        else:
            for number in numbers:
                desk.request(b"c", number, bytes(100_000), ttl_ms=30_000)
    for number in range(1, 101):
        desk.finals(b"w", [number])
    remembered = list(desk.ledger.waiting.deadlines)
    assert remembered
    assert not any(each.blob if isinstance(each, Bundle) else each.body for each in remembered)
    assert any(isinstance(each, Bundle) for each in remembered) == is_batch
    assert (len(desk.broker.bundles), desk.ledger.requests_of) == (0, {})


def test_a_new_epoch_does_not_end_the_draining(desk: Desk) -> None:
    desk.ready(b"w", credit=2)
    desk.request(b"c", 1)
    desk.broker.drain()
    desk.broker.activate(9)
    assert desk.request(b"c", 2) == []


def test_a_services_workers_are_listed_however_many_others_there_are(desk: Desk) -> None:
    for number in range(1_001):
        desk.ready(b"w%d" % number, b"common")
    desk.ready(b"late", b"rare")
    management = Management(desk.ledger, no_state)
    _, listed = management.answer(b"mmi.workers", [b"rare"], Pictures(), desk.now)
    digest = blake2b(b"late", digest_size=8).hexdigest()
    assert [worker["worker"] for worker in json.loads(listed)] == [digest]


def test_a_draining_broker_finishes_what_workers_hold_and_starts_nothing() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.broker.drain()
    assert desk.request(b"c", 2) == []
    assert [heard(f).identity for f in desk.final(b"w", 1)] == [ident(1)]
    assert not desk.broker.is_awaited
    (frames,) = sent(desk.broker.deactivate(desk.now))
    assert (heard(frames).command, heard(frames).identity, heard(frames).flags) == (
        native.NOT_ACTIVE,
        ident(2),
        0,
    )
