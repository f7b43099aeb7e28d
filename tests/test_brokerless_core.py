"""The sessions of clients without a broker in virtual time: Lazy Pirate, Freelance 1 to 3, a plain pair.

Here is what all of them do; the scripts of the client have what each does.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import BusyError, ClosedError, OutcomeUnknownError
from bstar_client.core.calls import Call
from support.brokerless_desk import Desk, flp, is_numbered, pirate, shotgun, star

DESKS: dict[str, Callable[[], Desk]] = {
    "lazy": lambda: pirate(2),
    "fl1": lambda: pirate(3, once=True),
    "star": star,
    "fl2": shotgun,
    "fl3": flp,
}


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
