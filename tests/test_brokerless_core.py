"""The sessions of clients without a broker in virtual time: Lazy Pirate, Freelance 1 to 3, a plain pair."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import BusyError, CallTimeoutError, ClosedError, NoActiveNodeError, OutcomeUnknownError
from bstar_client.core.calls import Call
from bstar_client.core.events import ActiveFound, ActiveLost
from bstar_client.core.plain.attempt_session import PlainSession
from bstar_client.core.session_settings import SessionSettings
from support.brokerless_desk import SERVERS, Desk, flp, is_numbered, pirate, shotgun, star

DESKS = {
    "lazy": lambda: pirate(2),
    "fl1": lambda: pirate(3, once=True),
    "star": star,
    "fl2": shotgun,
    "fl3": flp,
}

# --- Lazy Pirate --------------------------------------------------------------------------------------------


@pytest.mark.requirement("LPP-C-02")
@pytest.mark.requirement("LPP-C-03")
@pytest.mark.requirement("FL1-C-01")
def test_a_silent_server_is_asked_three_times_over_new_connections_and_then_the_call_fails() -> None:
    """LPP-C-02, LPP-C-03."""
    desk = pirate()
    desk.connect(0)
    call = desk.call(b"7")
    for sent in (1, 2, 3):
        assert desk.sent == [(0, [b"", b"7"])] * sent
        assert desk.resets == [0] * (sent - 1)
        desk.wait(2.5)
        desk.connect(0)
    error = desk.error_of(call)
    assert isinstance(error, CallTimeoutError)
    assert error.may_have_executed
    assert "timed out after 7.5 s: the server has not answered; 3 attempts" in str(error)
    desk.wait(60.0)
    assert len(desk.sent) == 3
    assert desk.ends(call) == 1


@pytest.mark.requirement("LPP-C-03")
def test_without_any_server_the_call_ends_after_three_timeouts_and_was_not_executed() -> None:
    """LPP-C-03: the test recipe of chapter 15."""
    desk = pirate()
    call = desk.call()
    for _ in range(20):
        desk.disconnect(0)
        desk.wait(0.35)
    assert not call.is_done
    desk.wait(1.0)
    assert isinstance(desk.error_of(call), NoActiveNodeError)


def test_a_server_that_comes_late_is_asked_at_once() -> None:
    desk = pirate()
    call = desk.call()
    desk.disconnect(0)
    desk.wait(2.0)
    assert desk.sent == []
    desk.connect(0)
    assert desk.asked() == [0]
    desk.hear(0, b"", b"here")
    assert desk.reply_of(call).frames == (b"here",)


@pytest.mark.requirement("LPP-C-04")
def test_only_the_reply_of_the_present_connection_counts_and_each_request_has_its_own() -> None:
    """LPP-C-04: a connection is closed after its reply, so a second reply belongs to nobody."""
    desk = pirate()
    desk.connect(0)
    first, second = desk.call(b"1"), desk.call(b"2")
    desk.hear(0, b"", b"one")
    assert desk.resets == [0]
    desk.hear(0, b"", b"one, again")
    assert desk.asked() == [0]
    desk.connect(0)
    desk.hear(0, b"", b"two")
    assert desk.reply_of(first).body == b"one"
    assert desk.reply_of(second).body == b"two"
    assert desk.session.counters.replies_unmatched == 1


@pytest.mark.requirement("LPP-C-06")
def test_each_request_has_all_of_its_attempts() -> None:
    """LPP-C-06."""
    desk = pirate()
    desk.connect(0)
    for _ in range(3):
        call = desk.call()
        for _ in range(2):
            desk.wait(2.5)
            desk.connect(0)
        desk.hear(0, b"", b"at last")
        desk.connect(0)
        assert desk.reply_of(call).attempts == 3


def test_several_servers_are_asked_in_turn_and_the_last_one_that_answered_first() -> None:
    desk = pirate(3)
    desk.connect(0, 1, 2)
    desk.call()
    desk.wait(5.0)
    assert desk.asked() == [0, 1, 2]
    desk.hear(2, b"", b"ok")
    desk.connect(2)
    desk.call()
    assert desk.asked() == [0, 1, 2, 2]


def test_a_server_that_refuses_connections_costs_no_time() -> None:
    desk = pirate(3)
    desk.connect(2)
    call = desk.call()
    desk.disconnect(0)
    desk.disconnect(1)
    assert desk.asked() == [2]
    desk.disconnect(2)  # a broken connection ends its attempt at once
    desk.wait(0.0)
    desk.connect(1)
    assert desk.asked() == [2]
    desk.disconnect(2)  # nobody listens there now
    assert desk.asked() == [2, 1]
    assert not call.is_done


def test_connections_that_break_use_up_the_attempts_and_end_the_call_at_once() -> None:
    desk = pirate()
    call = desk.call()
    for sent in (1, 2, 3):
        desk.connect(0)
        assert len(desk.sent) == sent
        desk.disconnect(0)
        desk.wait(0.0)
    assert isinstance(desk.error_of(call), CallTimeoutError)
    assert call.may_have_executed
    desk.connect(0)
    assert len(desk.sent) == 3


def test_a_message_that_is_no_reply_is_counted_and_changes_nothing() -> None:
    desk = pirate()
    desk.connect(0)
    call = desk.call()
    for frames in ((b"no delimiter", b"x"), (b"",), (b"x",), ()):
        desk.hear(0, *frames)
    assert desk.session.counters.messages_invalid == 4
    desk.hear(0, b"", b"ok")
    assert desk.reply_of(call).body == b"ok"


# --- Freelance model 1 --------------------------------------------------------------------------------------


@pytest.mark.requirement("FL1-C-02")
def test_of_several_servers_none_is_asked_twice() -> None:
    """FL1-C-02."""
    desk = pirate(3, timeout=1.0, once=True)
    desk.connect(0, 1, 2)
    call = desk.call()
    desk.wait(2.9)
    desk.connect(0, 1)
    assert desk.asked() == [0, 1, 2]
    desk.wait(0.2)
    assert isinstance(desk.error_of(call), CallTimeoutError)
    desk.wait(10.0)
    assert desk.asked() == [0, 1, 2]


@pytest.mark.requirement("FL1-C-02")
def test_a_server_that_was_asked_is_not_asked_again_when_the_others_are_unreachable() -> None:
    """FL1-C-02."""
    desk = pirate(3, timeout=1.0, once=True)
    desk.connect(0)
    call = desk.call()
    desk.wait(1.0)
    desk.connect(0)
    desk.disconnect(1, 2)
    desk.disconnect(1, 2)
    desk.wait(0.5)
    assert desk.asked() == [0]
    desk.connect(2)
    assert desk.asked() == [0, 2]
    desk.hear(2, b"", b"ok")
    assert desk.reply_of(call).endpoint == SERVERS[2]


# --- a plain pair -------------------------------------------------------------------------------------------


def test_the_other_server_of_a_pair_is_asked_after_the_settle_delay_and_each_in_turn() -> None:
    """BST-C-01, BST-C-02, BST-C-03, BST-C-04."""
    desk = star()
    desk.connect(0, 1)
    call = desk.call(b"vote")
    times: list[float] = []
    for _ in range(100):
        before = len(desk.sent)
        desk.wait(0.1)
        desk.connect(0, 1)
        if len(desk.sent) > before:
            times.append(round(desk.now - 100.0, 1))
    assert desk.asked() == [0, 1, 0, 1]
    assert times == pytest.approx([3.0, 6.0, 9.0], abs=0.11)
    desk.hear(1, b"", b"served")
    assert desk.reply_of(call).attempts == 4


def test_a_pair_that_is_down_is_not_asked_without_a_pause() -> None:
    """Without a settle delay the client tried thousands of times a second."""
    hasty = SessionSettings(attempt_timeout_s=1.0, settle_delay_s=0.0)
    desk = Desk(PlainSession(SERVERS[:2], now=100.0, settings=hasty), call_s=30.0)
    call = desk.call()
    desk.disconnect(0, 1)
    desk.wait(31.0)
    assert isinstance(desk.error_of(call), NoActiveNodeError)


def test_a_pair_that_never_answers_costs_the_whole_timeout() -> None:
    desk = star()
    desk.connect(0, 1)
    call = desk.call()
    desk.wait(29.9)
    assert not call.is_done
    desk.wait(0.2)
    assert isinstance(desk.error_of(call), CallTimeoutError)


# --- Freelance model 2 --------------------------------------------------------------------------------------


@pytest.mark.requirement("FL2-C-01")
def test_every_connected_server_gets_a_copy_and_the_first_reply_wins() -> None:
    """FL2-C-01."""
    desk = shotgun()
    desk.connect(0, 2)
    call = desk.call(b"who?")
    assert desk.sent == [(node, [b"", b"1", b"who?"]) for node in (0, 2)]
    desk.connect(1)
    assert desk.sent[2:] == [(1, [b"", b"1", b"who?"])]
    desk.hear(2, b"", b"1", b"OK")
    assert desk.reply_of(call).endpoint == SERVERS[2]
    desk.hear(0, b"", b"1", b"OK")
    assert desk.ends(call) == 1
    assert desk.session.counters.replies_unmatched == 1


@pytest.mark.requirement("FL2-C-02")
def test_a_late_reply_with_an_old_number_answers_nobody() -> None:
    """FL2-C-02."""
    desk = shotgun()
    desk.connect(0, 1)
    first = desk.call()
    desk.wait(2.5)
    second = desk.call()
    for number in (b"1", b"0", b"3", b"02", b"2 ", b"PONG", b"", b"-2", b"\xff"):
        desk.hear(0, b"", number, b"late")
    assert isinstance(desk.error_of(first), CallTimeoutError)
    assert not second.is_done
    desk.hear(0, b"", b"2", b"right")
    assert desk.reply_of(second).body == b"right"


@pytest.mark.requirement("FL2-C-03")
def test_the_client_gives_up_after_the_timeout_for_all_servers() -> None:
    """FL2-C-03."""
    desk = shotgun()
    desk.connect(0, 1, 2)
    call = desk.call()
    desk.wait(2.4)
    assert not call.is_done
    desk.wait(0.2)
    error = desk.error_of(call)
    assert isinstance(error, CallTimeoutError)
    assert error.may_have_executed
    unsent = shotgun()
    lost = unsent.call()
    unsent.wait(2.5)
    assert isinstance(unsent.error_of(lost), NoActiveNodeError)


# --- Freelance model 3 --------------------------------------------------------------------------------------


@pytest.mark.requirement("FLP-C-02")
@pytest.mark.requirement("FLP-R-03")
def test_a_pong_before_any_request_and_second_replies_change_nothing_later() -> None:
    """FLP-R-03, FLP-C-02: the control frame is the request's number."""
    desk = flp()
    desk.connect(0)
    desk.hear(0, b"PONG")
    desk.wait(30.0)
    for number in (b"1", b"2", b"3"):
        desk.hear(0, b"PONG")
        call = desk.call(b"body " + number)
        assert desk.sent[-1] == (0, [number, b"body " + number])
        for _ in range(3):
            desk.hear(0, b"PONG")
            desk.hear(0, number, b"re " + number)
        assert desk.reply_of(call).body == b"re " + number
    assert desk.session.counters.replies_unmatched == 6
    assert desk.errors == []


@pytest.mark.requirement("FLP-C-03")
def test_a_server_is_pinged_when_it_is_quiet_and_is_gone_after_three_intervals_of_silence() -> None:
    """FLP-C-03."""
    desk = flp(2)
    desk.connect(0, 1)
    assert desk.sent == [(0, [b"PING"]), (1, [b"PING"])]
    desk.hear(0, b"PONG")
    desk.hear(1, b"PONG")
    desk.wait(1.9)
    assert len(desk.sent) == 2
    for _ in range(3):
        desk.wait(2.0)
        desk.hear(1, b"PONG")
    assert isinstance(desk.session.counters.failovers, int)
    desk.wait(0.2)
    assert ActiveFound(SERVERS[1], 0) in desk.events
    desk.call()
    assert desk.asked() == [1]
    assert sum(node == 0 for node, _ in desk.sent) >= 4


def test_requests_go_to_the_server_that_came_first_and_to_the_next_one_when_it_is_lost() -> None:
    desk = flp()
    desk.connect(2, 0, 1)
    for node in (1, 0, 2):
        desk.hear(node, b"PONG")
    first, second = desk.call(b"a"), desk.call(b"b")
    assert desk.asked() == [1, 1]
    desk.disconnect(1)
    assert desk.sent[-2:] == [(0, [b"1", b"a"]), (0, [b"2", b"b"])]
    desk.hear(0, b"2", b"B")
    desk.hear(0, b"1", b"A")
    assert (desk.reply_of(first).body, desk.reply_of(second).body) == (b"A", b"B")
    assert desk.reply_of(first).attempts == 2
    desk.connect(1)
    desk.hear(1, b"PONG")
    desk.call()
    assert desk.asked()[-1] == 0  # the one that came back stands last


def test_a_server_that_was_not_asked_cannot_answer() -> None:
    desk = flp(2)
    desk.connect(0, 1)
    desk.hear(0, b"PONG")
    desk.hear(1, b"PONG")
    call = desk.call()
    desk.hear(1, b"1", b"a guess")
    assert not call.is_done
    assert desk.session.counters.replies_unmatched == 1
    desk.hear(0, b"1", b"the reply")
    assert desk.reply_of(call).body == b"the reply"


def test_a_request_waits_for_the_first_pong_and_a_server_that_never_sends_one_is_not_asked() -> None:
    desk = flp(2)
    desk.connect(0)
    call = desk.call()
    assert desk.asked() == []
    desk.connect(1)
    desk.hear(1, b"PONG")
    assert desk.asked() == [1]
    desk.wait(3.0)
    assert f"{SERVERS[0]}: connected, does not answer PING" in str(desk.error_of(call))


def test_a_server_that_let_a_request_run_out_and_says_nothing_is_not_asked_next() -> None:
    desk = flp(2)
    desk.connect(0, 1)
    desk.hear(0, b"PONG")
    desk.hear(1, b"PONG")
    desk.call()
    desk.wait(1.9)
    desk.hear(1, b"PONG")
    desk.wait(1.2)
    desk.call()
    assert desk.asked() == [0, 1]


def test_without_a_live_server_the_observers_hear_of_it() -> None:
    desk = flp(1)
    desk.connect(0)
    desk.hear(0, b"PONG")
    desk.disconnect(0)
    assert ActiveLost(SERVERS[0], "disconnected", 0) in desk.events


# --- all of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DESKS)
def test_closing_tells_what_is_known_of_every_call(name: str) -> None:
    desk = DESKS[name]()
    desk.connect(0)
    desk.hear(0, b"PONG")
    call = desk.call()
    desk.take(desk.session.close(desk.now))
    assert isinstance(desk.error_of(call), OutcomeUnknownError)
    assert isinstance(desk.error_of(desk.call()), ClosedError)
    assert desk.session.next_deadline() is None or desk.session.handle_timer(desk.now) == []


@pytest.mark.parametrize("name", ["fl2", "fl3"])
def test_more_requests_than_allowed_are_refused(name: str) -> None:
    desk = DESKS[name]()
    for _ in range(1_000):
        desk.call()
    assert isinstance(desk.error_of(desk.call()), BusyError)


@pytest.mark.parametrize("name", DESKS)
def test_beginning_anew_sends_every_request_again_and_ends_each_once(name: str) -> None:
    desk = DESKS[name]()
    desk.connect(0)
    desk.hear(0, b"PONG")
    calls = [desk.call(b"%d" % number) for number in range(3)]
    desk.take(desk.session.restart(calls, desk.now))
    for _ in range(3):
        desk.connect(0)
        desk.hear(0, b"PONG")
        answer_last(desk, 0)
        if is_numbered(desk):
            for node, frames in desk.sent[-3:]:
                answer(desk, node, frames)
    assert [desk.ends(call) for call in calls] == [1, 1, 1]
    assert [desk.reply_of(call).body for call in calls] == [b"re 0", b"re 1", b"re 2"]


@pytest.mark.parametrize("name", DESKS)
def test_a_call_that_the_session_has_is_not_begun_again(name: str) -> None:
    """An interrupted turn left it in the inbox behind one that was refused."""
    desk = DESKS[name]()
    call = desk.call(b"1")
    desk.take(desk.session.restart([call], desk.now))
    desk.take(desk.session.submit_all([call], desk.now))
    desk.take(desk.session.close(desk.now))
    assert desk.ends(call) == 1


def answer(desk: Desk, node: int, frames: list[bytes]) -> None:
    if frames != [b"PING"]:
        desk.hear(node, *frames[:-1], b"re " + frames[-1])


def answer_last(desk: Desk, node: int) -> None:
    requests = [frames for to, frames in desk.sent if to == node and frames != [b"PING"]]
    if requests:
        answer(desk, node, requests[-1])


NAMES = ["call", "connect", "disconnect", "answer", "pong", "junk", "wait", "abandon", "restart"]
ACTS = st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.integers(0, 50))


@pytest.mark.storm
@pytest.mark.requirement("LPP-C-04")
@pytest.mark.parametrize("name", DESKS)
@settings(max_examples=150, deadline=None)
@given(acts=st.lists(ACTS, max_size=80))
def test_no_reply_is_handed_to_another_request_and_each_call_ends_once(
    name: str, acts: list[tuple[str, int, int]]
) -> None:
    """LPP-C-04."""
    game = Game(DESKS[name]())
    for act, place, number in acts:
        game.play(act, place % game.count, number)
    game.desk.wait(3_600.0)
    for call, reply in game.desk.replies:
        assert reply.frames[-1] == b"re body %d" % game.calls.index(call)
    for call in game.calls:
        assert call.is_done
        assert game.desk.ends(call) <= 1


class Game:
    """A session and its servers. A reset or a break voids what was under way over that connection."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.count = len(desk.session._nodes)
        self.calls: list[Call] = []
        # What each connected server has got; it may answer each any number of times, in any order.
        self._held: dict[int, list[list[bytes]]] = {}
        self._seen = self._resets = 0

    def play(self, act: str, node: int, number: int) -> None:
        getattr(self, f"_{act}")(node, number)
        for reset in self.desk.resets[self._resets :]:
            self._held.pop(reset, None)
        self._resets = len(self.desk.resets)
        for to, frames in self.desk.sent[self._seen :]:
            if to in self._held:
                self._held[to].append(frames)
        self._seen = len(self.desk.sent)

    def _call(self, node: int, number: int) -> None:
        self.calls.append(self.desk.call(b"body %d" % len(self.calls)))

    def _connect(self, node: int, number: int) -> None:
        if node not in self._held:
            self._held[node] = []
            self.desk.connect(node)

    def _disconnect(self, node: int, number: int) -> None:
        self._held.pop(node, None)
        self.desk.disconnect(node)

    def _answer(self, node: int, number: int) -> None:
        if held := self._held.get(node):
            answer(self.desk, node, held[number % len(held)])

    def _pong(self, node: int, number: int) -> None:
        if node in self._held:
            self.desk.hear(node, b"PONG")

    def _junk(self, node: int, number: int) -> None:
        if node in self._held:
            words = [b"", b"PONG", b"1", b"\xff" * 9]
            self.desk.hear(node, *[b"junk", *random.Random(number).choices(words, k=3)][: number % 4])

    def _wait(self, node: int, number: int) -> None:
        self.desk.wait(number / 10)

    def _abandon(self, node: int, number: int) -> None:
        if self.calls:
            call = self.calls[number % len(self.calls)]
            self.desk.take(self.desk.session.abandon(call, self.desk.now))

    def _restart(self, node: int, number: int) -> None:
        self._held.clear()
        begun = [call for call in self.calls if not call.is_done and call.is_begun]
        self.desk.take(self.desk.session.restart(begun, self.desk.now))


@pytest.mark.parametrize("name", DESKS)
def test_a_hundred_thousand_fuzzed_messages_end_neither_the_session_nor_a_call_twice(name: str) -> None:
    desk = DESKS[name]()
    dice = random.Random(20_260_722)
    words = [b"", b"PONG", b"PING", b"1", b"2", b"99999", b"-1", b"\x00", b"\xff" * 300, b"OK"]
    count = len(desk.session._nodes)
    for _ in range(20_000):
        if dice.random() < 0.01:
            desk.connect(dice.randrange(count))
        if dice.random() < 0.01:
            desk.call()
        desk.hear(dice.randrange(count), *dice.choices(words, k=dice.randrange(5)))
        desk.wait(0.01)
    desk.wait(60.0)
    counters = desk.session.counters
    assert counters.messages_invalid
    assert counters.requests == counters.replies + counters.failures
