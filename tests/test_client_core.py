"""The native client's session in virtual time: no socket, no thread, no waiting."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    HandlerError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    StreamInterruptedError,
)
from bstar.wire import native
from bstar.wire.messages import ALL_FEATURES, READS_BATCHES, READS_EXTENDED, ErrorCode, NodeStatus
from bstar.wire.native_broker import NativeAsker
from bstar_client.calls.delivery import Delivery
from bstar_client.core.calls import Call
from bstar_client.core.events import ActiveFound, ActiveLost, Connected, Disconnected, FailedOver
from bstar_client.core.outputs import Deliver
from bstar_client.core.session_settings import SessionSettings
from support.client_desk import (
    ACTIVE,
    BACKUP,
    CLIENT_ID,
    CODEC,
    ENDPOINTS,
    PASSIVE,
    PRIMARY,
    SILENT,
    Desk,
    status,
)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- the ordinary day ---------------------------------------------------------------------------------------


def test_a_request_goes_to_the_active_node_and_its_reply_comes_back(served: Desk) -> None:
    call = served.call(b"hello")
    served.final(0, call, b"world")
    assert served.requests() == [(0, call.identity)]
    [(delivered, reply)] = served.replies
    assert delivered is call
    assert (reply.body, reply.attempts, reply.endpoint, reply.is_final) == (b"world", 1, ENDPOINTS[0], True)
    assert served.session.outstanding == 0


def test_identities_are_the_client_id_and_a_number_from_one(served: Desk) -> None:
    first, second = served.call(), served.call()
    assert first.identity == CLIENT_ID + (1).to_bytes(8, "big")
    assert second.identity == CLIENT_ID + (2).to_bytes(8, "big")


def test_replies_out_of_order_reach_their_own_callers(served: Desk) -> None:
    calls = [served.call(b"%d" % number) for number in range(5)]
    for call in reversed(calls):
        served.final(0, call, b"re " + call.body[0])
    assert [(call, reply.body) for call, reply in served.replies] == [
        (calls[number], b"re %d" % number) for number in (4, 3, 2, 1, 0)
    ]


def test_the_second_of_two_replies_is_dropped_and_counted(served: Desk) -> None:
    call = served.call()
    served.final(0, call)
    served.final(0, call)
    assert len(served.replies) == 1
    assert served.session.counters.replies_unmatched == 1


def test_every_request_tells_the_remaining_time_and_the_highest_epoch(desk: Desk) -> None:
    desk.connect(0, status(ACTIVE, epoch=7))
    desk.call(timeout=2.0)
    _, message = desk.sent[-1]
    assert 1900 <= message.value <= 2000
    assert message.epoch == 7


def test_a_call_without_limit_tells_no_time(desk: Desk) -> None:
    desk.connect(0, status(ACTIVE))
    desk.call(timeout=None)
    assert desk.sent[-1][1].value == 0


def test_garbage_is_counted_and_changes_nothing(served: Desk) -> None:
    call = served.call()
    for frames in ([b""], [b"\xb5\x01"], [b"\xb5\x01" + bytes(39)], [b"MDPC02", b"\x03", b"echo", b"x"]):
        served.take(served.session.receive(0, frames, served.now))
    assert served.session.counters.messages_invalid == 4
    served.final(0, call)
    assert len(served.replies) == 1


def test_while_something_is_outstanding_every_node_is_pinged(served: Desk) -> None:
    served.call()
    before = served.pings(0), served.pings(1)
    for _ in range(4):
        served.wait(0.25)
        served.pong(0, status(ACTIVE))
        served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    assert served.pings(0) - before[0] == served.pings(1) - before[1] == 4


def test_an_idle_client_pings_rarely(served: Desk) -> None:
    before = served.pings(0)
    served.wait(4.0)
    assert served.pings(0) - before <= 1


# --- looking for the successor ------------------------------------------------------------------------------


def test_what_the_passive_node_told_before_the_loss_is_asked_again_within_milliseconds(served: Desk) -> None:
    """It said that nothing could be done for a second; a moment later it knows that its peer is gone."""
    call = served.call()
    served.wait(0.01)
    served.disconnect(0)
    served.wait(0.0)
    served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=990))
    before = served.pings(1)
    served.wait(0.006)
    assert served.pings(1) == before + 1
    served.pong(1, status(PASSIVE, retry_after_ms=0))
    assert served.requests(1) == [(1, call.identity)]


def test_a_drain_of_any_length_is_looked_at_ever_more_rarely_but_ten_times_a_second(served: Desk) -> None:
    served.call()
    asked: list[int] = []
    served.refuse(0, served.call(), status(PASSIVE, peer=ACTIVE))
    for _ in range(20):
        before = served.pings(1)
        served.wait(0.1)
        served.pong(0, status(PASSIVE, peer=PASSIVE))
        served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
        asked.append(served.pings(1) - before)
    assert asked[0] >= 5
    assert set(asked[3:]) <= {1, 2}


def test_a_node_that_refused_many_requests_at_once_is_asked_again_although_its_pongs_come_often(
    served: Desk,
) -> None:
    """It was frozen while it served: what lay in its socket is refused when it wakes up. Then its peer dies.

    Every PONG put the next vote off by the pause of the last refusal, which was longer than the time to the
    next PONG: no vote was ever sent.
    """
    calls = [served.call() for _ in range(12)]
    served.disconnect(1)
    served.connect(1, status(ACTIVE, epoch=2, timeout_ms=300))
    for call in calls:
        served.refuse(0, call, status(PASSIVE, peer=ACTIVE, retry_after_ms=300, timeout_ms=300))
    assert served.requests(1)[-12:] == [(1, call.identity) for call in calls]
    served.disconnect(1)
    for _ in range(20):
        served.wait(0.075)
        served.pong(0, status(PASSIVE, retry_after_ms=0, timeout_ms=300))
    assert served.requests(0)[12:] == [(0, calls[0].identity)]


def test_the_first_request_after_a_quiet_loss_asks_who_serves_now(served: Desk) -> None:
    served.disconnect(0)
    served.wait(3.0)
    served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    before = served.pings(1)
    served.call()
    served.wait(0.0)
    assert served.pings(1) == before + 1


@pytest.mark.requirement("BSN-C-13")
def test_a_client_that_reaches_the_passive_node_only_asks_it_once_per_failover_timeout(served: Desk) -> None:
    """However often that one says that its peer, which we do not reach, is alive."""
    silent = status(PASSIVE, peer=ACTIVE, retry_after_ms=300, timeout_ms=300)
    served.pong(1, silent)
    served.disconnect(0)
    call = served.call(timeout=60.0)
    asked_at: list[float] = []
    for _ in range(300):
        before = len(served.requests(1))
        served.wait(0.01)
        served.pong(1, silent)
        if len(served.requests(1)) > before:
            asked_at.append(served.now)
            served.refuse(1, call, silent)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert len(asked_at) >= 8
    assert all(0.29 <= gap <= 0.32 for gap in gaps), gaps


def test_a_client_with_short_calls_asks_as_well_but_looks_first(served: Desk) -> None:
    silent = status(PASSIVE, peer=ACTIVE, retry_after_ms=2_000, timeout_ms=2_000)
    served.pong(1, silent)
    served.disconnect(0)
    asked_at: list[float] = []
    began = served.now
    for _ in range(10):
        call = served.call(timeout=1.0)
        for _ in range(8):
            served.wait(0.125)
            served.pong(1, silent)
            if served.requests(1) and served.requests(1)[-1] == (1, call.identity) and not call.is_done:
                if not asked_at or asked_at[-1] < served.now - 0.5:
                    asked_at.append(served.now)
                served.refuse(1, call, silent)
    # The first failover timeout is the successor's, and a PONG comes before a vote.
    assert asked_at[0] - began >= 2.0
    assert len(asked_at) >= 3


# --- the first connect --------------------------------------------------------------------------------------


@pytest.mark.requirement("BST-C-01")
def test_both_addresses_are_known_and_either_may_be_the_active_one(desk: Desk) -> None:
    call = desk.call()
    desk.connect(0, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    desk.connect(1, status(ACTIVE, peer=PASSIVE))
    assert desk.requests() == [(1, call.identity)]


def test_the_first_connect_fails_over_as_well(desk: Desk) -> None:
    call = desk.call()
    desk.disconnect(0)
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    assert desk.requests() == [(1, call.identity)]


def test_a_backup_that_connects_first_is_not_voted_for_while_the_primary_may_answer(desk: Desk) -> None:
    call = desk.call()
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    desk.wait(0.5)
    assert desk.requests() == []
    desk.connect(0, status(PRIMARY, retry_after_ms=0))
    assert desk.requests() == [(0, call.identity)]


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_primary_that_stays_silent_is_passed_over_after_the_silence_limit(
    desk: Desk, is_connected: bool
) -> None:
    call = desk.call()
    if is_connected:
        desk.connect(0)
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    desk.wait(0.9)
    desk.pong(1, status(PASSIVE, retry_after_ms=0))
    assert desk.requests() == []
    desk.wait(0.2)
    assert desk.requests() == [(1, call.identity)]


def test_with_a_single_endpoint_the_only_node_is_asked(desk: Desk) -> None:
    alone = Desk(endpoints=("tcp://only",))
    call = alone.call()
    alone.connect(0, status(ACTIVE))
    alone.final(0, call)
    assert len(alone.replies) == 1


# --- votes --------------------------------------------------------------------------------------------------


def test_only_the_oldest_request_votes_and_the_rest_follow_when_the_node_serves(desk: Desk) -> None:
    calls = [desk.call() for _ in range(3)]
    desk.disconnect(1)
    desk.connect(0, status(PRIMARY, retry_after_ms=0))
    assert desk.requests() == [(0, calls[0].identity)]
    desk.pong(0, status(ACTIVE, epoch=1))
    assert desk.requests() == [(0, call.identity) for call in calls]


def test_a_reply_to_the_vote_proves_that_the_node_serves(desk: Desk) -> None:
    calls = [desk.call() for _ in range(2)]
    desk.disconnect(1)
    desk.connect(0, status(PRIMARY, retry_after_ms=0))
    desk.final(0, calls[0])
    assert desk.requests() == [(0, call.identity) for call in calls]
    assert desk.session.active == ENDPOINTS[0]


@pytest.mark.requirement("BST-C-03")
def test_a_refused_vote_goes_to_the_other_node_at_once_and_comes_back_after_the_told_delay(
    desk: Desk,
) -> None:
    call = desk.call()
    desk.connect(0, status(PASSIVE, retry_after_ms=0))
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    desk.refuse(0, call, status(PASSIVE, peer=PASSIVE, retry_after_ms=400))
    assert desk.requests() == [(0, call.identity), (1, call.identity)]
    desk.refuse(1, call, status(PASSIVE, peer=PASSIVE, retry_after_ms=700))
    desk.wait(0.39)
    assert len(desk.requests()) == 2
    desk.wait(0.02)
    assert desk.requests()[2:] == [(0, call.identity)]


def test_a_new_client_hears_both_nodes_before_it_votes(desk: Desk) -> None:
    """The link between the nodes is cut: the primary, which came first, would take the role."""
    call = desk.call()
    desk.connect(0, status(PASSIVE, peer=0, retry_after_ms=0))
    desk.wait(0.2)
    assert desk.requests() == []
    desk.connect(1, status(ACTIVE, epoch=2))
    assert desk.requests() == [(1, call.identity)]


def test_a_new_client_votes_although_one_node_never_comes(desk: Desk) -> None:
    call = desk.call()
    desk.connect(0, status(PASSIVE, peer=0, retry_after_ms=0))
    desk.wait(0.9)
    desk.pong(0, status(PASSIVE, peer=0, retry_after_ms=0))
    desk.wait(0.2)
    assert desk.requests() == [(0, call.identity)]


def test_a_client_that_opens_its_sockets_late_waits_for_the_primary_from_then_on(desk: Desk) -> None:
    """An AsyncHAClient opens them in the event loop, perhaps long after it was made."""
    desk.now += 60.0
    desk.take(desk.session.restart((), desk.now))
    call = desk.call()
    desk.connect(1, status(BACKUP, retry_after_ms=0))
    desk.wait(0.9)
    assert desk.requests() == []
    desk.pong(1, status(BACKUP, retry_after_ms=0))
    desk.wait(0.2)
    assert desk.requests() == [(1, call.identity)]


def test_a_node_that_no_request_can_promote_is_not_asked(desk: Desk) -> None:
    desk.call(timeout=3.0)
    desk.connect(0, status(BACKUP))
    desk.disconnect(1)
    for _ in range(8):
        desk.wait(0.25)
        desk.pong(0, status(BACKUP))
    assert desk.requests() == []


def test_a_refusal_that_says_now_does_not_become_a_storm(desk: Desk) -> None:
    call = desk.call()
    desk.connect(0, status(PASSIVE, retry_after_ms=0))
    desk.disconnect(1)
    for _ in range(200):
        desk.refuse(0, call, status(PASSIVE, retry_after_ms=0))
        desk.wait(0.01)
        desk.pong(0, status(PASSIVE, retry_after_ms=0))
    assert 1 < len(desk.requests()) < 30


def test_requests_to_the_broker_itself_do_not_vote_while_another_can(desk: Desk) -> None:
    desk.call(service=b"mmi.service")
    call = desk.call()
    desk.disconnect(1)
    desk.connect(0, status(PRIMARY, retry_after_ms=0))
    assert desk.requests() == [(0, call.identity)]


def test_a_vote_that_nobody_waits_for_any_more_does_not_block_the_next(desk: Desk) -> None:
    first = desk.call(timeout=0.2)
    second = desk.call()
    desk.connect(0, status(PASSIVE, retry_after_ms=0))
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    desk.wait(0.21)
    assert isinstance(desk.error_of(first), CallTimeoutError)
    desk.refuse(0, first, status(PASSIVE, retry_after_ms=500))
    assert desk.requests()[-1] == (1, second.identity)


# --- failover -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("BST-C-02")
@pytest.mark.requirement("BST-C-04")
def test_a_broken_connection_sends_every_outstanding_request_to_the_node_that_takes_over(
    served: Desk,
) -> None:
    calls = [served.call() for _ in range(3)]
    served.disconnect(0)
    # The passive node tells when it could take over; until then it is not asked.
    served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=300))
    assert served.requests(1) == []
    served.wait(0.31)
    assert served.requests(1) == [(1, calls[0].identity)]
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == [(1, call.identity) for call in calls]
    [failover] = [event for event in served.events if isinstance(event, FailedOver)]
    assert (failover.from_endpoint, failover.to_endpoint) == ENDPOINTS
    assert (failover.reason, failover.epoch, failover.outstanding) == ("disconnected", 2, 3)
    assert failover.gap_s == pytest.approx(0.31)


def test_a_silent_node_is_left_and_its_late_reply_is_still_delivered_once(served: Desk) -> None:
    call = served.call()
    for _ in range(6):
        served.wait(0.25)
        served.pong(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    assert any(isinstance(event, ActiveLost) and event.reason == "silent" for event in served.events)
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == [(1, call.identity)]
    served.final(0, call, b"late")
    served.final(1, call, b"again")
    assert [reply.body for _, reply in served.replies] == [b"late"]
    assert served.session.counters.replies_unmatched == 1


def test_a_client_that_was_away_itself_does_not_call_its_node_silent(served: Desk) -> None:
    call = served.call()
    served.wait(0.2)
    served.now += 60 - 31  # nothing ran; no PING was unanswered when it began
    served.take(served.session.handle_timer(served.now))
    assert served.session.active == ENDPOINTS[0]
    served.final(0, call)
    assert len(served.replies) == 1


def test_two_witnesses_of_silence_are_enough(served: Desk) -> None:
    call = served.call()
    served.wait(0.55)
    served.pong(1, status(PASSIVE, peer=SILENT, retry_after_ms=0))
    assert served.requests(1) == [(1, call.identity)]


def test_the_timing_comes_from_the_nodes(desk: Desk) -> None:
    desk.connect(0, status(ACTIVE, timeout_ms=200))
    desk.connect(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=200, timeout_ms=200))
    desk.call()
    desk.wait(0.26)
    assert any(isinstance(event, ActiveLost) for event in desk.events)


def test_a_higher_epoch_wins_at_once(served: Desk) -> None:
    call = served.call()
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == [(1, call.identity)]
    served.pong(0, status(ACTIVE, epoch=1))
    assert served.session.active == ENDPOINTS[1]


def test_not_active_moves_the_request_to_the_node_that_is(served: Desk) -> None:
    call = served.call()
    served.refuse(0, call, status(PASSIVE, epoch=2, peer=ACTIVE, retry_after_ms=1000))
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests() == [(0, call.identity), (1, call.identity)]
    served.final(1, call)
    [(_, reply)] = served.replies
    assert reply.attempts == 2


def test_a_stale_refusal_does_not_touch_a_request_that_is_elsewhere(served: Desk) -> None:
    call = served.call()
    served.fail_over()
    served.connect(0, status(PASSIVE, epoch=2, peer=ACTIVE, retry_after_ms=1000))
    served.refuse(0, call, status(PASSIVE, epoch=2, peer=ACTIVE, retry_after_ms=1000))
    assert served.session.counters.refusals_stale == 1
    assert served.requests() == [(0, call.identity), (1, call.identity)]
    served.final(1, call)
    assert len(served.replies) == 1


def test_a_request_still_on_its_way_is_not_sent_twice_over_the_same_connection(desk: Desk) -> None:
    desk.connect(0, status(ACTIVE))
    call = desk.call()
    desk.disconnect(1)
    desk.wait(2.0)  # it stalls …
    desk.pong(0, status(ACTIVE))  # … and comes back
    assert desk.requests() == [(0, call.identity)]
    desk.final(0, call)
    assert len(desk.replies) == 1


def test_a_node_that_restarted_gets_everything_again(desk: Desk) -> None:
    desk.connect(0, status(ACTIVE))
    call = desk.call()
    desk.disconnect(1)
    desk.disconnect(0)
    desk.connect(0, status(ACTIVE, epoch=3))
    assert desk.requests() == [(0, call.identity)] * 2


def test_requests_held_by_a_node_that_stepped_down_and_says_nothing_vote_in_the_end(served: Desk) -> None:
    call = served.call()
    served.pong(0, status(PASSIVE, retry_after_ms=0))
    for _ in range(8):
        served.wait(0.25)
        served.pong(0, status(PASSIVE, retry_after_ms=0))
        served.pong(1, status(PASSIVE, retry_after_ms=0))
    assert len(served.requests()) > 1
    assert {identity for _, identity in served.requests()} == {call.identity}


def test_observers_hear_of_every_change_once(served: Desk) -> None:
    served.disconnect(0)
    served.fail_over()
    assert served.events == [
        Connected(ENDPOINTS[0]),
        ActiveFound(ENDPOINTS[0], 1),
        Connected(ENDPOINTS[1]),
        Disconnected(ENDPOINTS[0], "broken"),
        ActiveLost(ENDPOINTS[0], "disconnected", 0),
        FailedOver(*ENDPOINTS, "disconnected", 2, 0, 0.0),
    ]


# --- what the caller is told --------------------------------------------------------------------------------


def may_have_executed_of(error: BstarError) -> object:
    return getattr(error, "may_have_executed")  # noqa: B009 - BstarError has none


def test_a_node_that_does_not_finish_the_handshake_may_be_frozen(desk: Desk) -> None:
    """libzmq does not say whether it lacks our key."""
    call = desk.call(timeout=1.5)
    for node in (0, 1):
        desk.take(desk.session.disconnected(node, desk.now, is_untrusted=True))
    desk.wait(1.5)
    assert "tcp://backup: handshake failed: the node is frozen or busy, or one side" in str(
        desk.error_of(call)
    )


def test_no_active_node_until_the_deadline_means_not_executed_and_says_what_was_tried(desk: Desk) -> None:
    call = desk.call(timeout=1.5)
    desk.disconnect(0)
    desk.connect(1, status(BACKUP))
    desk.wait(1.5)
    error = desk.error_of(call)
    assert isinstance(error, NoActiveNodeError)
    assert not error.may_have_executed
    assert "tcp://primary: refused, or out of reach" in str(error)
    assert error.unreached["tcp://primary"] == "refused, or out of reach"
    assert "tcp://backup" in str(error)


@pytest.mark.parametrize(
    ("service", "kind", "may_have_executed"),
    # A vote may have made the node active. No worker executes a management request, answered or not.
    [(b"echo", CallTimeoutError, True), (b"mmi.service", NoActiveNodeError, False)],
)
def test_what_a_vote_without_an_answer_may_have_done(
    desk: Desk, service: bytes, kind: type[BstarError], may_have_executed: bool
) -> None:
    desk.disconnect(0)
    desk.connect(1, status(PASSIVE, retry_after_ms=0))
    call = desk.call(service=service, timeout=1.0)
    assert len(desk.requests(1)) == 1
    desk.refuse(1, call, status(PASSIVE, retry_after_ms=0))
    desk.wait(1.0)
    assert len(desk.requests(1)) == 2
    error = desk.error_of(call)
    assert type(error) is kind
    assert may_have_executed_of(error) == may_have_executed


@pytest.mark.parametrize(
    ("service", "may_have_executed", "text"),
    [(b"echo", True, ""), (b"mmi.service", False, "no worker executes it")],
)
def test_an_accepted_request_without_a_reply_may_have_been_executed_by_a_worker(
    served: Desk, service: bytes, may_have_executed: bool, text: str
) -> None:
    call = served.call(service=service, timeout=0.2)
    served.wait(0.2)
    error = served.error_of(call)
    assert type(error) is CallTimeoutError
    assert error.may_have_executed == may_have_executed
    assert text in str(error)


def test_a_deadline_that_has_passed_sends_nothing(served: Desk) -> None:
    call = served.call(timeout=-1.0)
    error = served.error_of(call)
    assert type(error) is CallTimeoutError
    assert not error.may_have_executed
    assert served.requests() == []


def test_busy_is_retried_after_its_hint_until_the_deadline(served: Desk) -> None:
    call = served.call(timeout=0.5)
    for _ in range(3):
        served.busy(0, call, 20)
        served.wait(0.1)
        served.pong(0, status(ACTIVE))
    assert len(served.requests()) == 4
    served.busy(0, call, 400)
    served.wait(0.4)
    error = served.error_of(call)
    assert isinstance(error, BusyError)
    assert error.reason == "full"
    assert error.retry_after_s == pytest.approx(0.4 * 1.5**3)


def test_a_busy_broker_that_has_room_again_answers(served: Desk) -> None:
    call = served.call()
    served.busy(0, call, 20)
    served.wait(0.05)
    served.final(0, call)
    [(_, reply)] = served.replies
    assert reply.attempts == 2


def test_a_request_that_the_second_node_rejects_may_have_been_executed_by_the_first(served: Desk) -> None:
    call = served.call()
    served.disconnect(0)
    served.connect(1, status(ACTIVE, epoch=2))
    served.error(1, call, ErrorCode.INVALID, b"too large")
    error = served.error_of(call)
    assert isinstance(error, OutcomeUnknownError)
    assert error.may_have_executed


@pytest.mark.parametrize(
    ("code", "kind", "may_have_executed"),
    [
        (ErrorCode.HANDLER_FAILED, HandlerError, True),
        (ErrorCode.HANDLER_TIMEOUT, HandlerError, True),
        (ErrorCode.RETRY, HandlerError, True),
        (ErrorCode.WORKER_LOST, OutcomeUnknownError, True),
        (ErrorCode.POISON, OutcomeUnknownError, True),
        (ErrorCode.EXPIRED, CallTimeoutError, False),
        (ErrorCode.INVALID, RejectedError, False),
        (99, OutcomeUnknownError, True),
    ],
)
def test_each_error_code_has_its_class(
    served: Desk, code: int, kind: type[BstarError], may_have_executed: bool
) -> None:
    call = served.call()
    served.error(0, call, code, b"because")
    error = served.error_of(call)
    assert type(error) is kind
    assert may_have_executed_of(error) == may_have_executed


def test_an_error_about_an_attempt_that_was_given_up_does_not_end_the_call(served: Desk) -> None:
    call = served.call()
    served.pong(1, status(ACTIVE, epoch=2))
    served.error(0, call, ErrorCode.EXPIRED)
    assert served.errors == []
    served.final(1, call)
    assert len(served.replies) == 1


def test_a_call_that_must_not_be_repeated_ends_when_its_node_is_lost(served: Desk) -> None:
    call = served.call(idempotent=False)
    served.disconnect(0)
    assert type(served.error_of(call)) is OutcomeUnknownError
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == []


def test_a_call_that_must_not_be_repeated_is_repeated_after_a_plain_refusal(served: Desk) -> None:
    call = served.call(idempotent=False)
    served.refuse(0, call, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    served.pong(1, status(ACTIVE, epoch=2))
    served.final(1, call)
    assert len(served.replies) == 1


def test_a_refusal_after_dispatch_ends_a_call_that_must_not_be_repeated(served: Desk) -> None:
    call = served.call(idempotent=False)
    served.refuse(0, call, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000), was_dispatched=True)
    assert type(served.error_of(call)) is OutcomeUnknownError


def test_closing_tells_what_is_known_of_every_call(desk: Desk) -> None:
    unsent = desk.call()
    desk.take(desk.session.close(desk.now))
    assert isinstance(desk.error_of(unsent), ClosedError)
    other = Desk()
    other.connect(0, status(ACTIVE))
    sent = other.call()
    other.take(other.session.close(other.now))
    assert isinstance(other.error_of(sent), OutcomeUnknownError)
    after = other.call()
    assert isinstance(other.error_of(after), ClosedError)


def test_outstanding_requests_are_bounded() -> None:
    desk = Desk(options=SessionSettings(outstanding_max=2))
    calls = [desk.call() for _ in range(3)]
    assert isinstance(desk.error_of(calls[2]), BusyError)
    assert desk.session.outstanding == 2


def test_deadlines_of_ended_calls_do_not_pile_up(served: Desk) -> None:
    for _ in range(5_000):
        served.final(0, served.call())
        if served.session.counters.requests % 1_000 == 0:
            served.wait(0.3)
            served.pong(0, status(ACTIVE))
    assert len(served.session._calls.deadlines) < 2_100


def test_the_bodies_of_an_ended_call_are_not_kept_until_its_deadline(served: Desk) -> None:
    delivery = Delivery(served.session, None, 10, lambda: 0.0)
    call = served.call()
    call.sink = queue.SimpleQueue()
    served.partial(0, call, 0, b"part")
    delivery.perform([Deliver(call, reply) for call, reply in served.replies])
    assert call.body
    served.final(0, call, partials=1)
    delivery.perform([Deliver(call, reply) for call, reply in served.replies])
    assert call in served.session._calls.deadlines
    assert not call.body
    assert not call.partials


# --- beginning anew -----------------------------------------------------------------------------------------


def test_beginning_anew_sends_again_what_may_be_repeated(served: Desk) -> None:
    calls = [served.call(b"%d" % number) for number in range(3)]
    bound = served.call(b"once", idempotent=False)
    ended = served.call(b"its outcome was lost")
    served.session.receive(
        0, CODEC.final(NativeAsker(b"", ended.identity), b"", 1, 0, [b"lost"], b"")[1:], served.now
    )
    before = len(served.sent)
    served.take(served.session.restart([*calls, bound, ended], served.now))
    assert served.session.active is None
    assert isinstance(served.events[-1], ActiveLost)
    assert isinstance(served.error_of(bound), OutcomeUnknownError)
    assert len(served.sent) == before
    served.connect(0, status(ACTIVE))
    again = [message for _, message in served.sent[before:] if message.command == native.REQUEST]
    assert [message.identity for message in again] == [call.identity for call in (*calls, ended)]
    assert all(message.flags & native.FLAG_REDELIVERED for message in again)
    for call in (*calls, ended):
        served.final(0, call)
    assert [call for call, _ in served.replies] == [*calls, ended]
    assert served.session.outstanding == 0


def test_beginning_anew_waits_for_the_primary_as_at_the_beginning(served: Desk) -> None:
    call = served.call()
    before = len(served.requests())
    served.take(served.session.restart([call], served.now))
    served.connect(1, status(PASSIVE, retry_after_ms=0))
    assert len(served.requests()) == before
    served.connect(0, status(ACTIVE))
    assert served.requests()[before:] == [(0, call.identity)]


def test_beginning_anew_keeps_deadlines_and_those_who_share_a_key(served: Desk) -> None:
    first, second = served.call(key=b"same"), served.call(key=b"same")
    late = served.call(timeout=1.0)
    served.take(served.session.restart([first, second, late], served.now))
    served.connect(0, status(ACTIVE))
    served.wait(1.1)
    assert isinstance(served.error_of(late), CallTimeoutError)
    served.final(0, first)
    assert [call for call, _ in served.replies] == [first, second]
    assert served.session.outstanding == 0


def test_a_call_that_the_session_has_is_not_begun_again(desk: Desk) -> None:
    """An interrupted turn left it in the inbox behind one that was refused: it was sent twice."""
    call = desk.call(idempotent=False)
    desk.take(desk.session.restart([call], desk.now))
    desk.take(desk.session.submit_all([call], desk.now))
    desk.connect(0, status(ACTIVE))
    assert len(desk.requests()) == 1
    desk.final(0, call)
    assert desk.session.outstanding == 0


def test_beginning_anew_ends_a_stream_that_has_begun(served: Desk) -> None:
    begun, fresh = served.call(stream=True), served.call(stream=True)
    served.partial(0, begun, 0)
    served.take(served.session.restart([begun, fresh], served.now))
    assert isinstance(served.error_of(begun), StreamInterruptedError)
    served.connect(0, status(ACTIVE))
    served.partial(0, fresh, 0)
    served.final(0, fresh, partials=1)
    assert [call for call, _ in served.replies] == [begun, fresh, fresh]


def test_an_abandoned_call_leaves_nothing_behind(served: Desk) -> None:
    call = served.call()
    served.take(served.session.abandon(call, served.now))
    served.take(served.session.abandon(call, served.now))
    served.final(0, call)
    assert (served.replies, served.errors, served.session.outstanding) == ([], [], 0)
    assert served.session.counters.abandoned == 1


def test_a_call_abandoned_before_its_turn_to_be_submitted_is_not_sent(served: Desk) -> None:
    call = Call(b"echo", [b"x"])
    served.take(served.session.abandon(call, served.now))
    served.sent.clear()
    served.take(served.session.submit(call, served.now))
    assert (served.sent, served.session.outstanding) == ([], 0)
    assert (served.session.counters.requests, served.session.counters.abandoned) == (0, 0)


# --- partials and streams -----------------------------------------------------------------------------------


def test_a_request_collects_its_partials(served: Desk) -> None:
    call = served.call()
    served.partial(0, call, 0, b"a")
    served.partial(0, call, 1, b"b")
    served.final(0, call, b"c", partials=2)
    [(_, reply)] = served.replies
    assert (reply.partials, reply.body) == (((b"a",), (b"b",)), b"c")


def test_partials_begin_again_when_the_request_is_executed_again(served: Desk) -> None:
    call = served.call()
    served.partial(0, call, 0, b"lost")
    served.fail_over()
    served.partial(1, call, 0, b"a")
    served.final(1, call, b"b", partials=1)
    [(_, reply)] = served.replies
    assert reply.partials == ((b"a",),)


def test_partials_of_two_executions_are_never_mixed(served: Desk) -> None:
    call = served.call()
    served.partial(0, call, 0, b"old 0")
    served.pong(1, status(ACTIVE, epoch=2))
    served.partial(1, call, 0, b"new 0")
    served.partial(0, call, 1, b"old 1")
    served.final(0, call, b"old end", partials=2)
    served.partial(1, call, 1, b"new 1")
    served.final(1, call, b"new end", partials=2)
    [(_, reply)] = served.replies
    assert (reply.partials, reply.body) == (((b"new 0",), (b"new 1",)), b"new end")


@pytest.mark.parametrize(
    ("is_stream", "indexes", "kind"),
    [
        (False, [0], OutcomeUnknownError),
        (True, [0, 2], StreamInterruptedError),
        (True, [0, 0], StreamInterruptedError),
    ],
    ids=["one is lost", "a stream has a gap", "a stream begins anew"],
)
def test_a_lost_or_repeated_partial_is_not_hidden(
    served: Desk, is_stream: bool, indexes: list[int], kind: type[BstarError]
) -> None:
    call = served.call(stream=is_stream)
    for index in indexes:
        served.partial(0, call, index)
    served.final(0, call, partials=2)
    assert type(served.error_of(call)) is kind
    assert len(served.replies) == is_stream


def test_collected_partials_are_bounded() -> None:
    desk = Desk(options=SessionSettings(partials_max=2))
    desk.connect(0, status(ACTIVE))
    call = desk.call()
    for index in range(3):
        desk.partial(0, call, index)
    assert isinstance(desk.error_of(call), OutcomeUnknownError)


def test_a_stream_delivers_partials_as_they_come(served: Desk) -> None:
    call = served.call(stream=True)
    served.partial(0, call, 0, b"a")
    served.partial(0, call, 1, b"b")
    served.final(0, call, b"c", partials=2)
    assert [(reply.body, reply.index, reply.is_final) for _, reply in served.replies] == [
        (b"a", 0, False),
        (b"b", 1, False),
        (b"c", 2, True),
    ]


def test_a_stream_that_has_begun_is_never_repeated(served: Desk) -> None:
    call = served.call(stream=True)
    served.partial(0, call, 0)
    served.disconnect(0)
    assert isinstance(served.error_of(call), StreamInterruptedError)
    served.pong(1, status(ACTIVE, epoch=2))
    assert served.requests(1) == []


def test_a_stream_that_has_not_begun_fails_over(served: Desk) -> None:
    call = served.call(stream=True)
    served.fail_over()
    served.partial(1, call, 0)
    served.final(1, call, partials=1)
    assert [reply.is_final for _, reply in served.replies] == [False, True]


# --- any order of events ------------------------------------------------------------------------------------


@dataclass
class World:
    """Two imaginary nodes behind a network that loses, delays and repeats."""

    desk: Desk

    def __post_init__(self) -> None:
        self.active: int | None = None
        self.epoch = 0
        self.is_up = [False, False]
        self.seen = 0
        self.inboxes: list[list[native.Message]] = [[], []]

    def collect(self) -> None:
        for node, message in self.desk.sent[self.seen :]:
            if self.is_up[node]:
                self.inboxes[node].append(message)
        self.seen = len(self.desk.sent)

    def state(self, node: int) -> NodeStatus:
        if self.active == node:
            return status(ACTIVE, epoch=self.epoch, peer=PASSIVE)
        peer = ACTIVE if self.active is not None else SILENT
        return status(PASSIVE, epoch=self.epoch, peer=peer, retry_after_ms=300 if peer else 0)

    def answer(self, node: int, how: int) -> None:
        self.collect()
        if not self.inboxes[node]:
            return
        message = self.inboxes[node].pop(how % len(self.inboxes[node]))
        asker = NativeAsker(b"", message.identity)
        desk = self.desk
        if message.command == native.PING:
            desk.pong(node, self.state(node))
        elif self.active is None:
            self.active = node  # the vote
            self.epoch += 1
            self.inboxes[node].append(message)
        elif self.active != node:
            desk.hear(node, CODEC.not_active(asker, self.state(node), how % 3 == 0))
        elif how % 5 == 0:
            desk.hear(node, CODEC.busy(asker, self.epoch, 10, b"full"))
        elif how % 7 == 0:
            self.inboxes[node].clear()  # the worker is slow for ever
        else:
            for _ in range(2 if how % 4 == 0 else 1):
                desk.hear(node, CODEC.final(asker, b"", self.epoch, 0, [b"re " + message.body[0]], b""))

    def toggle(self, node: int) -> None:
        self.collect()
        self.is_up[node] = not self.is_up[node]
        self.inboxes[node].clear()
        if self.is_up[node]:
            self.desk.connect(node)
        else:
            if self.active == node:
                self.active = None
            self.desk.disconnect(node)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.booleans()),
        st.tuples(st.just("toggle"), st.integers(0, 1)),
        st.tuples(st.just("answer"), st.tuples(st.integers(0, 1), st.integers(0, 50))),
        st.tuples(st.just("wait"), st.floats(0.0, 0.6)),
        st.tuples(st.just("handover"), st.integers(0, 1)),
        st.tuples(st.just("stale"), st.integers(0, 1)),
    ),
    max_size=60,
)


@pytest.mark.storm
@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_replies_are_never_crossed_and_every_call_ends_once(
    steps: list[tuple[str, object]],
) -> None:
    desk = Desk()
    world = World(desk)
    calls: list[Call] = []
    for verb, argument in steps:
        match verb, argument:
            case "call", bool(idempotent):
                calls.append(desk.call(b"%d" % len(calls), timeout=2.0, idempotent=idempotent))
            case "toggle", int(node):
                world.toggle(node)
            case "answer", (int(node), int(how)):
                world.answer(node, how)
            case "wait", float(seconds):
                desk.wait(seconds)
            case "handover", int(node):
                world.active = node if world.is_up[node] else None
                world.epoch += 1
            case "stale", int(node):
                if world.is_up[node]:
                    desk.pong(node, status(ACTIVE, epoch=max(world.epoch - 1, 0)))
    desk.wait(2.1)
    for number, call in enumerate(calls):
        ends = [reply.body for ended, reply in desk.replies if ended is call]
        failures = [error for ended, error in desk.errors if ended is call]
        assert len(ends) + len(failures) == 1
        assert all(body == b"re %d" % number for body in ends)
        if not call.is_idempotent and call.lost_on:
            # The last attempt was lost, and that was the end; all earlier ones had been refused.
            assert (len(call.lost_on), call.sent_to, ends) == (1, 0, [])
    assert desk.session.outstanding == 0


@given(st.lists(st.lists(st.binary(max_size=60), max_size=4), max_size=10), st.binary(max_size=50))
@settings(max_examples=200, deadline=None)
def test_no_octets_end_the_session(messages: list[list[bytes]], tail: bytes) -> None:
    desk = Desk()
    desk.connect(0, status(ACTIVE))
    call = desk.call(timeout=1.0)
    for frames in messages:
        desk.take(desk.session.receive(0, frames, desk.now))
    for command in range(16):
        head = native.header(command, identity=call.identity)
        desk.take(desk.session.receive(0, [head + tail, tail], desk.now))
    desk.wait(1.5)
    assert desk.session.outstanding == 0


# --- keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_the_same_request_in_every_client_and_another_in_every_service(served: Desk) -> None:
    one = served.call(key=b"k")
    two = served.call(key=b"k", service=b"other")
    assert one.identity == native.keyed_identity(b"echo", b"k")
    assert two.identity not in (one.identity, native.keyed_identity(b"other", b"j"))
    assert len(served.requests(0)) == 2


def test_of_two_calls_with_one_key_one_is_sent_and_both_are_answered(served: Desk) -> None:
    calls = [served.call(key=b"k") for _ in range(3)]
    assert served.requests() == [(0, calls[0].identity)]
    assert served.session.outstanding == 3
    served.wait(0.5)
    served.final(0, calls[0], b"done")
    assert [(call, reply.body, reply.attempts) for call, reply in served.replies] == [
        (call, b"done", 1) for call in calls
    ]
    assert [reply.elapsed_s for _, reply in served.replies] == pytest.approx([0.5] * 3)
    assert (served.session.outstanding, served.session.counters.joined) == (0, 2)
    again = served.call(key=b"k")
    assert len(served.requests()) == 2, "what has ended is over: it is asked anew"
    served.error(0, again, ErrorCode.HANDLER_FAILED, b"no")


def test_an_error_of_the_service_is_everybodys_who_asked_with_the_key(served: Desk) -> None:
    calls = [served.call(key=b"k") for _ in range(2)]
    served.error(0, calls[0], ErrorCode.HANDLER_FAILED, b"no")
    assert [type(served.error_of(call)) for call in calls] == [HandlerError, HandlerError]
    assert [call.attempts for call in calls] == [1, 1]
    assert served.session.outstanding == 0


def test_when_the_first_callers_time_is_over_the_next_one_takes_its_place(served: Desk) -> None:
    hasty = served.call(key=b"k", timeout=1.0)
    patient = served.call(key=b"k", timeout=20.0)
    later = served.call(key=b"k", timeout=2.0)
    served.wait(1.5)
    assert isinstance(served.error_of(hasty), CallTimeoutError)
    assert served.requests() == [(0, patient.identity)] * 2
    repeated = [message for _, message in served.sent if message.command == native.REQUEST][-1]
    assert repeated.flags == native.FLAG_REDELIVERED | native.FLAG_WHOLE
    served.wait(1.0)
    assert isinstance(served.error_of(later), CallTimeoutError)
    assert served.session.outstanding == 1
    served.final(0, patient)
    assert [(call, reply.attempts) for call, reply in served.replies] == [(patient, 2)]
    assert served.session.outstanding == 0


def test_when_the_first_caller_goes_away_the_next_one_takes_its_place(served: Desk) -> None:
    first, second = served.call(key=b"k"), served.call(key=b"k")
    served.take(served.session.abandon(first, served.now))
    served.wait(0.1)
    assert served.requests() == [(0, second.identity)] * 2
    served.take(served.session.abandon(second, served.now))
    assert served.session.outstanding == 0


def test_an_expiry_of_somebody_elses_time_is_no_end_for_who_has_time_left(served: Desk) -> None:
    call = served.call(key=b"k", timeout=20.0)
    served.error(0, call, ErrorCode.EXPIRED)
    served.wait(0.2)
    assert served.requests() == [(0, call.identity)] * 2
    served.final(0, call)
    assert [reply.body for _, reply in served.replies] == [b"done"]


def test_an_expiry_of_somebody_elses_time_shortens_no_short_call(served: Desk) -> None:
    call = served.call(key=b"k", timeout=1.0)
    served.wait(0.6)
    served.error(0, call, ErrorCode.EXPIRED)
    served.wait(0.1)
    assert served.requests() == [(0, call.identity)] * 2
    served.wait(0.22)
    served.error(0, call, ErrorCode.EXPIRED)  # its own
    assert isinstance(served.error_of(call), CallTimeoutError)


def test_a_key_that_is_outstanding_is_not_sent_with_another_body(served: Desk) -> None:
    served.call(b"one", key=b"k")
    other = served.call(b"two", key=b"k")
    assert isinstance(served.error_of(other), RejectedError)
    assert len(served.requests()) == 1


def test_calls_with_one_key_survive_a_failover_and_a_close_ends_each(served: Desk) -> None:
    calls = [served.call(key=b"k") for _ in range(2)]
    served.connect(1, status(PASSIVE))
    served.fail_over()
    assert served.requests(1) == [(1, calls[0].identity)]
    served.take(served.session.close(served.now))
    assert [type(served.error_of(call)) for call in calls] == [OutcomeUnknownError] * 2
    assert served.session.outstanding == 0


def test_calls_that_wait_for_another_with_their_key_count_as_outstanding() -> None:
    desk = Desk(options=SessionSettings(outstanding_max=2))
    desk.connect(0, status(ACTIVE))
    first, _ = desk.call(key=b"k"), desk.call(key=b"k")
    assert isinstance(desk.error_of(desk.call(key=b"k")), BusyError)
    desk.final(0, first)
    assert desk.session.outstanding == 0


# --- batches ------------------------------------------------------------------------------------------------


def together(
    desk: Desk, *bodies: bytes, service: bytes = b"echo", timeout: float | None = 30.0
) -> list[Call]:
    """Calls that are begun in one turn."""
    deadline = None if timeout is None else desk.now + timeout
    calls = [Call(service, [body], deadline, begun_at=desk.now) for body in bodies]
    desk.take(desk.session.submit_all(calls, desk.now))
    return calls


def finals(desk: Desk, node: int, calls: Sequence[Call], bodies: Sequence[bytes]) -> None:
    numbers = [int.from_bytes(call.identity[16:], "big") for call in calls]
    desk.hear(node, [b"", *native.encode_finals(CLIENT_ID, 1, numbers, bodies)])


@pytest.mark.requirement("BSN-G-18")
def test_calls_of_one_turn_travel_together_and_so_do_their_replies(served: Desk) -> None:
    calls = together(served, b"a", b"", b"ccc")
    assert (served.batches, served.requests(0)) == (1, [(0, call.identity) for call in calls])
    assert [message.body for _, message in served.sent[-3:]] == [[b"a"], [b""], [b"ccc"]]
    finals(served, 0, [calls[2], calls[0]], [b"C", b""])
    assert [(call, reply.frames) for call, reply in served.replies] == [
        (calls[2], (b"C",)),
        (calls[0], (b"",)),
    ]
    assert all(reply.is_final and reply.attempts == 1 for _, reply in served.replies)
    served.final(0, calls[1])
    finals(served, 0, calls, [b"late"] * 3)
    assert (len(served.replies), served.session.outstanding) == (3, 0)
    assert served.session.counters.replies_unmatched == 3


@pytest.mark.requirement("BSN-G-16")
def test_what_is_different_travels_alone(served: Desk) -> None:
    deadline = served.now + 30
    alone = [
        Call(b"echo", [b"x"], deadline, key=b"key"),
        Call(b"echo", [b"x"], deadline, is_stream=True),
        Call(b"echo", [b"x", b"y"], deadline),
        Call(b"echo", [bytes(100_000)], deadline),
        Call(b"mmi.service", [b"echo"], deadline),
        Call(b"other", [b"x"], deadline),
    ]
    served.take(served.session.submit_all([*alone, Call(b"echo", [b"1"]), Call(b"echo", [b"2"])], served.now))
    assert (served.batches, len(served.requests(0))) == (1, 8)
    # Without a limit and with one may go together.
    assert [message.value for _, message in served.sent[-2:]] == [0, 0]


def test_requests_for_a_service_leave_in_their_order_whatever_travels_together(served: Desk) -> None:
    deadline = served.now + 30
    calls = [
        Call(b"echo", [b"1"], deadline),
        Call(b"other", [b"2"], deadline),
        Call(b"echo", [b"3"], deadline),
        Call(b"echo", [bytes(100_000)], deadline),
        Call(b"echo", [b"5"], deadline),
        Call(b"other", [b"6"], deadline),
        Call(b"echo", [b"7"], deadline),
    ]
    served.take(served.session.submit_all(calls, served.now))
    sent = [identity for _, identity in served.requests(0)]
    for service in (b"echo", b"other"):
        asked = [call.identity for call in calls if call.service == service]
        assert [identity for identity in sent if identity in asked] == asked
    assert served.batches == 3


@pytest.mark.requirement("BSN-G-17")
def test_a_node_that_did_not_say_so_is_sent_no_batch(desk: Desk) -> None:
    told = status(ACTIVE)
    desk.connect(0, msgspec.structs.replace(told, features=ALL_FEATURES & ~READS_BATCHES))
    together(desk, b"a", b"b")
    assert (desk.batches, len(desk.requests(0))) == (0, 2)
    desk.pong(0, told)
    together(desk, b"a", b"b")
    assert (desk.batches, len(desk.requests(0))) == (1, 4)


@pytest.mark.requirement("BSN-G-20")
def test_a_node_that_did_not_say_so_is_sent_no_row_with_headers(desk: Desk) -> None:
    told = status(ACTIVE)
    desk.connect(0, msgspec.structs.replace(told, features=ALL_FEATURES & ~READS_EXTENDED))
    for number, batches in ((0, 1), (4, 2)):
        deadline = desk.now + 30
        calls = [
            Call(b"echo", [b"x"], deadline, extensions=octets) for octets in (b"", b"\x40\0\0", b"", b"")
        ]
        desk.take(desk.session.submit_all(calls, desk.now))
        assert desk.batches == batches
        sent = {message.identity: message.extensions for _, message in desk.sent[number:]}
        assert all(sent[call.identity] == call.extensions for call in calls)
        desk.pong(0, told)
    assert len(desk.requests(0)) == 8


@pytest.mark.requirement("BSN-G-15")
def test_many_calls_are_several_batches(served: Desk) -> None:
    together(served, *[b"x"] * 2_500)
    assert served.batches == 3
    together(served, *[bytes(16_000)] * 100)
    assert served.batches == 5


@pytest.mark.requirement("BSN-C-02")
def test_after_a_failover_a_batch_is_repeated_as_a_batch(served: Desk) -> None:
    calls = together(served, b"a", b"b", b"c")
    finals(served, 0, calls[:1], [b"A"])
    served.fail_over()
    again = [message for to, message in served.sent if to == 1 and message.command == native.REQUEST]
    assert [message.identity for message in again] == [calls[1].identity, calls[2].identity]
    assert [message.flags for message in again] == [native.FLAG_REDELIVERED | native.FLAG_WHOLE] * 2
    assert served.batches == 2
    finals(served, 1, calls[1:], [b"B", b"C"])
    assert served.session.outstanding == 0


def test_a_batch_of_replies_that_cannot_be_read_is_counted(served: Desk) -> None:
    calls = together(served, b"a", b"b")
    served.hear(0, [b"", native.encode_finals(CLIENT_ID, 1, [1], [b""])[0], b"xyz", b""])
    assert (served.session.counters.messages_invalid, served.session.outstanding) == (1, len(calls))


def test_calls_that_are_begun_while_no_node_is_known_are_sent_when_one_is(desk: Desk) -> None:
    calls = together(desk, b"a", b"b", b"c")
    desk.disconnect(1)
    desk.connect(0, status(PRIMARY, retry_after_ms=0))
    assert desk.requests() == [(0, calls[0].identity)]  # the vote
    desk.final(0, calls[0])
    assert desk.requests() == [(0, call.identity) for call in calls]
    assert desk.batches == 1
