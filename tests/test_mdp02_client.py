"""The plain MDP/0.2 client's session in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bstar.errors import (
    BusyError,
    CallTimeoutError,
    ClosedError,
    NoActiveNodeError,
    OutcomeUnknownError,
    StreamInterruptedError,
)
from bstar_client.core.calls import Call
from bstar_client.core.events import FailedOver
from bstar_client.core.plain.attempt_session import AttemptSession, Mdp01Session, Mdp02Session
from bstar_client.core.session_settings import SessionSettings
from support.client_outputs import SessionDesk

ENDPOINTS = ("tcp://primary", "tcp://backup")


@dataclass
class Desk(SessionDesk):
    """A session, the time, and everything it has put out. A socket that is reset connects again when told."""

    options: SessionSettings = field(default_factory=SessionSettings)
    now: float = 100.0

    def __post_init__(self) -> None:
        super().__init__()
        self.session: AttemptSession = Mdp02Session(ENDPOINTS, now=self.now, settings=self.options)

    def call(
        self,
        body: bytes = b"x",
        *,
        timeout: float | None = 30.0,
        idempotent: bool = True,
        stream: bool = False,
    ) -> Call:
        deadline = None if timeout is None else self.now + timeout
        call = Call(b"echo", [body], deadline, idempotent, stream)
        self.take(self.session.submit(call, self.now))
        return call

    def final(self, node: int, body: bytes = b"done") -> None:
        self.hear(node, b"MDPC02", b"\x03", b"echo", body)

    def partial(self, node: int, body: bytes = b"part") -> None:
        self.hear(node, b"MDPC02", b"\x02", b"echo", body)


@pytest.fixture
def desk() -> Desk:
    """Both brokers are connected."""
    desk = Desk()
    desk.connect(0, 1)
    return desk


@pytest.mark.requirement("MDP2-G-02")
def test_a_request_is_the_four_frames_of_the_table_and_nothing_before_them(desk: Desk) -> None:
    desk.call(b"hi")
    assert desk.sent == [(0, [b"MDPC02", b"\x01", b"echo", b"hi"])]


@pytest.mark.requirement("MDP2-C-02")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_partials_comes_before_the_final(desk: Desk, count: int) -> None:
    call = desk.call(stream=True)
    for index in range(count):
        desk.partial(0, b"%d" % index)
    desk.final(0)
    bodies = [reply.body for delivered, reply in desk.replies if delivered is call]
    assert bodies == [b"%d" % index for index in range(count)] + [b"done"]
    assert [reply.is_final for _, reply in desk.replies] == [False] * count + [True]


def test_a_request_collects_its_partials(desk: Desk) -> None:
    desk.call()
    desk.partial(0, b"a")
    desk.final(0, b"b")
    [(_, reply)] = desk.replies
    assert (reply.partials, reply.body) == (((b"a",),), b"b")


def test_the_parts_of_an_attempt_that_failed_are_not_mixed_with_those_of_the_next(desk: Desk) -> None:
    desk.call()
    desk.partial(0, b"of the first")
    desk.disconnect(0)
    desk.wait(2.0)
    desk.partial(1, b"a")
    desk.final(1, b"b")
    [(_, reply)] = desk.replies
    assert (reply.partials, reply.body, reply.attempts) == (((b"a",),), b"b", 2)


def test_a_reply_of_another_node_than_the_one_that_was_asked_is_ignored(desk: Desk) -> None:
    desk.call()
    desk.final(1, b"of the other")
    assert desk.replies == []
    desk.final(0)
    assert [reply.body for _, reply in desk.replies] == [b"done"]


@pytest.mark.requirement("MDP2-C-03")
def test_the_next_request_waits_for_the_final_of_the_one_before(desk: Desk) -> None:
    calls = [desk.call(b"%d" % number) for number in range(3)]
    for number in range(3):
        assert [frames[3] for _, frames in desk.sent] == [b"%d" % sent for sent in range(number + 1)]
        desk.partial(0)
        assert len(desk.sent) == number + 1
        desk.final(0, b"re %d" % number)
    finals = [(call, reply.body) for call, reply in desk.replies if reply.is_final]
    assert finals == [(call, b"re %d" % number) for number, call in enumerate(calls)]


@pytest.mark.requirement("MDP1-C-02")
@pytest.mark.requirement("MDP2-C-04")
def test_a_timeout_closes_the_socket_and_resends_to_the_next_node_after_the_settle_delay(desk: Desk) -> None:
    call = desk.call(timeout=10.0)
    desk.wait(2.4)
    assert desk.resets == []
    desk.wait(0.2)
    assert desk.resets == [0]
    desk.connect(0)
    desk.wait(1.8)
    assert len(desk.sent) == 1
    desk.wait(0.2)
    assert [node for node, _ in desk.sent] == [0, 1]
    desk.final(1)
    [(_, reply)] = desk.replies
    assert (reply.attempts, reply.endpoint) == (2, ENDPOINTS[1])
    assert desk.errors == []
    assert call.is_done


def test_the_call_gives_up_at_its_deadline_and_says_that_it_may_have_been_executed(desk: Desk) -> None:
    call = desk.call(timeout=10.0)
    for _ in range(20):
        desk.wait(0.5)
        desk.connect(0, 1)
    assert [node for node, _ in desk.sent] == [0, 1, 0]
    error = desk.error_of(call)
    assert isinstance(error, CallTimeoutError)
    assert error.may_have_executed


def test_a_broken_connection_does_not_wait_for_the_timeout(desk: Desk) -> None:
    desk.call()
    desk.disconnect(0)
    desk.wait(2.0)
    assert [node for node, _ in desk.sent] == [0, 1]


def test_a_refused_node_is_passed_over_at_once_and_a_round_ends_with_the_settle_delay() -> None:
    desk = Desk()
    desk.disconnect(0)
    desk.connect(1)
    desk.call()
    assert [node for node, _ in desk.sent] == [1]
    alone = Desk()
    alone.call()
    alone.disconnect(0)
    alone.disconnect(1)
    alone.connect(0)
    alone.wait(1.9)
    assert alone.sent == []
    alone.wait(0.2)
    assert [node for node, _ in alone.sent] == [0]


def test_it_is_sticky_to_the_node_that_answered_last(desk: Desk) -> None:
    desk.disconnect(0)
    desk.call()
    desk.final(1)
    desk.connect(0)
    desk.call()
    assert [node for node, _ in desk.sent] == [1, 1]
    assert desk.session.active == ENDPOINTS[1]


def test_calls_shorter_than_an_attempt_leave_a_dead_node_as_well(desk: Desk) -> None:
    for _ in range(6):
        desk.call(timeout=1.0)
        desk.wait(1.0)
        desk.connect(0, 1)
    assert {node for node, _ in desk.sent} == {0, 1}


@pytest.mark.requirement("MDP2-R-01")
def test_a_partial_starts_the_timeout_anew(desk: Desk) -> None:
    call = desk.call()
    for _ in range(6):
        desk.wait(1.0)
        desk.partial(0)
    desk.wait(1.0)
    desk.final(0)
    assert len(desk.sent) == 1
    assert len(desk.replies) == 1
    assert call.attempts == 1


@pytest.mark.requirement("MDP2-R-03")
def test_a_reply_that_nobody_waits_for_any_more_cannot_be_taken_for_anothers(desk: Desk) -> None:
    first = desk.call(timeout=1.0)
    second = desk.call(b"second")
    desk.wait(1.0)
    assert isinstance(desk.error_of(first), CallTimeoutError)
    assert desk.resets == [0]  # the late reply goes to a socket that is gone
    desk.final(0, b"late")
    assert desk.replies == []
    desk.connect(0)
    desk.final(0, b"for the second")
    assert [(call, reply.body) for call, reply in desk.replies] == [(second, b"for the second")]


@pytest.mark.requirement("MDP1-C-03")
def test_a_reply_of_another_header_or_service_is_ignored_and_the_wait_goes_on(desk: Desk) -> None:
    desk.call()
    desk.hear(0, b"MDPC01", b"\x03", b"echo", b"x")
    desk.hear(0, b"MDPC02", b"\x04", b"echo", b"x")
    desk.hear(0, b"MDPC02", b"\x03", b"echo")
    desk.hear(0, b"")
    desk.hear(0, b"MDPC02", b"\x03")
    desk.hear(0, b"\xb5\x01" + bytes(39))
    desk.hear(0, b"MDPC02", b"\x03", b"other", b"x")
    assert desk.replies == []
    assert desk.session.counters.messages_invalid == 6
    assert desk.session.counters.replies_unmatched == 1
    desk.final(0)
    assert len(desk.replies) == 1


@pytest.mark.requirement("MDP1-C-01")
@pytest.mark.requirement("MDP1-C-03")
def test_the_same_session_speaks_mdp01(desk: Desk) -> None:
    desk.session = Mdp01Session(ENDPOINTS, now=desk.now)
    desk.connect(0)
    desk.call()
    assert desk.sent[-1] == (0, [b"", b"MDPC01", b"echo", b"x"])
    desk.hear(0, b"", b"MDPC02", b"echo", b"no")
    desk.hear(0, b"", b"MDPC01", b"echo")
    desk.hear(0, b"", b"MDPC01", b"other", b"no")
    assert desk.replies == []
    desk.hear(0, b"", b"MDPC01", b"echo", b"yes", b"")
    [(_, reply)] = desk.replies
    assert reply.frames == (b"yes", b"")


def test_a_reply_while_idle_is_ignored(desk: Desk) -> None:
    desk.final(0)
    desk.call()
    assert desk.replies == []


def test_a_call_abandoned_before_its_turn_to_be_submitted_is_not_sent(desk: Desk) -> None:
    call = Call(b"echo", [b"x"])
    desk.take(desk.session.abandon(call, desk.now))
    desk.take(desk.session.submit(call, desk.now))
    desk.connect(0)
    assert (desk.sent, desk.session.outstanding) == ([], 0)


def test_an_abandoned_call_makes_room_for_the_next(desk: Desk) -> None:
    first, second, third = desk.call(), desk.call(b"second"), desk.call(b"third")
    desk.take(desk.session.abandon(second, desk.now))
    desk.take(desk.session.abandon(first, desk.now))
    desk.connect(0)
    desk.final(0)
    assert [frames[3] for _, frames in desk.sent] == [b"x", b"third"]
    assert [call for call, _ in desk.replies] == [third]
    assert desk.session.counters.abandoned == 2


def test_a_call_that_must_not_be_repeated_is_not(desk: Desk) -> None:
    call = desk.call(idempotent=False)
    desk.disconnect(0)
    assert type(desk.error_of(call)) is OutcomeUnknownError


def test_a_stream_that_has_begun_is_not_repeated(desk: Desk) -> None:
    call = desk.call(stream=True)
    desk.partial(0)
    desk.disconnect(0)
    assert isinstance(desk.error_of(call), StreamInterruptedError)


def test_a_call_that_was_never_sent_was_not_executed() -> None:
    desk = Desk()
    waiting, behind = desk.call(timeout=1.0), desk.call(timeout=1.0)
    desk.wait(1.0)
    assert isinstance(desk.error_of(waiting), NoActiveNodeError)
    assert isinstance(desk.error_of(behind), NoActiveNodeError)


def test_observers_hear_of_the_failover(desk: Desk) -> None:
    desk.call()
    desk.final(0)
    desk.call()
    desk.disconnect(0)
    desk.wait(2.0)
    desk.final(1)
    [event] = [event for event in desk.events if isinstance(event, FailedOver)]
    assert (event.from_endpoint, event.to_endpoint, event.reason) == (*ENDPOINTS, "disconnected")
    assert event.gap_s == pytest.approx(2.0)


def test_outstanding_calls_and_collected_partials_are_bounded() -> None:
    desk = Desk(options=SessionSettings(outstanding_max=2, partials_max=1))
    desk.connect(0, 1)
    first, _, third = desk.call(), desk.call(), desk.call()
    assert isinstance(desk.error_of(third), BusyError)
    desk.partial(0)
    desk.partial(0)
    assert isinstance(desk.error_of(first), OutcomeUnknownError)


def test_closing_tells_what_is_known_of_every_call(desk: Desk) -> None:
    sent, waiting = desk.call(), desk.call()
    desk.take(desk.session.close(desk.now))
    assert isinstance(desk.error_of(sent), OutcomeUnknownError)
    assert isinstance(desk.error_of(waiting), ClosedError)
    assert isinstance(desk.error_of(desk.call()), ClosedError)


def test_beginning_anew_sends_again_what_may_be_repeated(desk: Desk) -> None:
    first, second = desk.call(b"1"), desk.call(b"2")
    second.begun_at = 1.0
    desk.take(desk.session.restart([second, first], desk.now))
    assert len(desk.sent) == 1
    desk.connect(0, 1)
    desk.final(0, b"one")
    desk.final(0, b"two")
    assert [frames[-1] for _, frames in desk.sent] == [b"1", b"1", b"2"]
    assert [(call, reply.body) for call, reply in desk.replies] == [(first, b"one"), (second, b"two")]


def test_beginning_anew_repeats_nothing_that_must_not_be(desk: Desk) -> None:
    call, waiting = desk.call(idempotent=False), desk.call(idempotent=False, timeout=1.0)
    desk.take(desk.session.restart([call, waiting], desk.now))
    assert isinstance(desk.error_of(call), OutcomeUnknownError)
    desk.wait(1.1)
    assert isinstance(desk.error_of(waiting), NoActiveNodeError)
    assert desk.session.outstanding == 0
