"""The conversation of an EventMQ client with its routers, in virtual time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.wire import emq
from bstar_client.core.emq.calls import CallOutput, CallSettings, EmqCalls, Failed, Pending, Result, Sent
from bstar_client.core.emq.manager import Close, Open, Send

FRAMES = [b"frames"]
RESULT = b'{"value": 1}'


class Talk:
    def __init__(self, wire: emq.Wire = emq.Wire.PUBLISHED) -> None:
        numbers = itertools.count(1)
        self.now = 0.0
        self.wire = wire
        self.calls = EmqCalls(CallSettings(("A", "B"), wire=wire), lambda: b"id-%d" % next(numbers))

    def connect(self) -> Talk:
        self.calls.start(self.now)
        self.calls.connected(self.now)
        return self

    def ask(
        self, name: bytes, deadline: float = 10.0, *, result: bool = True, sure: bool = False
    ) -> list[CallOutput]:
        return self.calls.submit(Pending(name, FRAMES, deadline, result, sure), self.now)

    def hears(self, message: emq.Message) -> list[CallOutput]:
        return self.calls.receive(emq.encode(message, wire=self.wire), self.now)

    def passes(self, seconds: float) -> list[CallOutput]:
        outputs: list[CallOutput] = []
        until = self.now + seconds
        while (due := self.calls.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            outputs += self.calls.handle_timer(self.now)
        self.now = until
        return outputs


def test_nothing_is_sent_before_there_is_a_connection() -> None:
    talk = Talk()
    assert talk.calls.start(0.0) == [Open("A", b"id-1")]
    assert talk.ask(b"r", result=False) == []
    assert talk.calls.connected(0.0) == [Send(FRAMES), Sent(b"r")]
    assert talk.calls.connected(0.0) == []


@pytest.mark.requirement("EMQ-R-08")
def test_no_reply_is_a_condition_of_success() -> None:
    """EMQ-R-08: a request that waits at the router has none, and is sent all the same."""
    talk = Talk().connect()
    assert talk.ask(b"r", result=False) == [Send(FRAMES), Sent(b"r")]
    assert talk.passes(60.0) == []


def test_a_result_ends_the_call_and_the_news_of_a_worker_does_not() -> None:
    talk = Talk().connect()
    assert talk.ask(b"r") == [Send(FRAMES)]
    assert talk.hears(emq.Reply(b"m", b"r")) == []
    assert talk.hears(emq.Reply(b"m", b"r", RESULT)) == [Result(b"r", RESULT)]
    assert talk.hears(emq.Reply(b"m", b"r", RESULT)) == []
    assert talk.hears(emq.Reply(b"m", b"stranger", RESULT)) == []


def test_routers_take_turns_until_one_is_there() -> None:
    talk = Talk()
    talk.calls.start(0.0)
    talk.ask(b"r")
    opened = [output.router for output in talk.passes(6.5) if isinstance(output, Open)]
    assert opened == ["B", "A", "B"]
    assert talk.passes(10.0)[-1] != Failed(b"r", True, True)


def test_what_no_router_got_in_time_was_not_sent() -> None:
    talk = Talk()
    talk.calls.start(0.0)
    talk.ask(b"r", 1.0)
    assert talk.passes(1.5) == [Failed(b"r", False, True)]
    assert talk.calls.connected(talk.now) == []


def test_what_was_sent_and_has_no_result_in_time_may_have_been_executed() -> None:
    talk = Talk().connect()
    talk.ask(b"r", 1.0)
    assert talk.passes(1.5) == [Failed(b"r", True, True)]


def test_a_broken_connection_loses_a_call_and_a_repeatable_one_is_sent_again() -> None:
    talk = Talk().connect()
    talk.ask(b"plain")
    talk.ask(b"sure", sure=True)
    talk.hears(emq.Reply(b"m", b"sure"))
    assert talk.calls.lost("x", talk.now) == [Close("x"), Failed(b"plain", True, False)]
    assert talk.passes(0.2) == [Open("B", b"id-2")]
    assert talk.calls.connected(talk.now) == [Send(FRAMES)]
    assert talk.hears(emq.Reply(b"m", b"sure", RESULT)) == [Result(b"sure", RESULT)]


@pytest.mark.requirement("EMQ-G-07")
def test_what_a_farewell_names_goes_to_the_next_router() -> None:
    """EMQ-G-07: nothing more is sent to a router that said KBYE; the passive node of a pair does."""
    talk = Talk().connect()
    talk.ask(b"first")
    talk.ask(b"short", result=False)
    assert talk.hears(emq.Goodbye(b"first")) == []
    assert talk.ask(b"later") == []
    assert talk.hears(emq.Goodbye(b"short")) == [Close("the router said KBYE")]
    assert talk.passes(0.2) == [Open("B", b"id-2")]
    assert talk.calls.connected(talk.now) == [Send(FRAMES), Send(FRAMES), Sent(b"short"), Send(FRAMES)]


@pytest.mark.requirement("EMQ-G-06")
def test_a_router_that_says_disconnect_gets_a_farewell_and_nothing_more() -> None:
    """EMQ-G-06: what is under way may end, what comes later goes to the next router."""
    talk = Talk().connect()
    talk.ask(b"old")
    [farewell] = talk.hears(emq.Disconnect(b"d"))
    assert isinstance(farewell, Send)
    assert isinstance(emq.decode(farewell.frames), emq.Goodbye)
    assert talk.ask(b"later") == []
    assert talk.hears(emq.Reply(b"m", b"old", RESULT)) == [
        Result(b"old", RESULT),
        Close("the router said KBYE"),
    ]
    assert talk.passes(0.2) == [Open("B", b"id-3")]


def test_what_a_farewell_does_not_name_is_never_sent_twice() -> None:
    """A router that served a moment ago may have given it to a worker."""
    talk = Talk().connect()
    talk.ask(b"old")
    talk.ask(b"sure", sure=True)
    talk.ask(b"short", result=False)
    talk.ask(b"new")
    assert talk.hears(emq.Goodbye(b"new")) == []
    told = talk.passes(0.99)
    assert told == []
    assert talk.passes(0.02) == [Close("the router said KBYE"), Failed(b"old", True, False)]
    assert talk.passes(0.2) == [Open("B", b"id-2")]
    assert talk.calls.connected(talk.now) == [Send(FRAMES), Send(FRAMES)]
    assert talk.hears(emq.Reply(b"m", b"sure", RESULT)) == [Result(b"sure", RESULT)]
    assert talk.hears(emq.Reply(b"m", b"new", RESULT)) == [Result(b"new", RESULT)]


def test_results_are_still_taken_after_a_farewell() -> None:
    talk = Talk().connect()
    talk.ask(b"at-work")
    assert talk.hears(emq.Goodbye(b"g")) == []
    assert talk.hears(emq.Goodbye(b"g2")) == []
    assert talk.hears(emq.Reply(b"m", b"at-work", RESULT)) == [
        Result(b"at-work", RESULT),
        Close("the router said KBYE"),
    ]


def test_on_the_specifications_wire_a_reply_names_its_request_by_its_own_msgid() -> None:
    talk = Talk(emq.Wire.SPECIFICATION).connect()
    talk.ask(b"one")
    talk.ask(b"two")
    assert talk.hears(emq.Reply(b"m", b"two")) == []
    assert talk.hears(emq.Reply(b"m", b"two", RESULT)) == [Result(b"two", RESULT)]
    # One that names nothing is nobody's, although there is one request only.
    assert talk.calls.receive([b"", emq.VERSION, b"REPLY", b"m", RESULT], talk.now) == []
    assert talk.calls.receive([b"", emq.VERSION, b"KBAI", b"one"], talk.now) == [
        Close("the router said KBYE")
    ]


def test_it_is_quiet_when_no_message_may_have_to_go_to_another_router() -> None:
    talk = Talk().connect()
    talk.ask(b"call")
    quiet = [talk.calls.is_quiet]
    talk.ask(b"job", result=False)
    quiet.append(talk.calls.is_quiet)
    talk.hears(emq.Reply(b"m", b"job"))
    quiet.append(talk.calls.is_quiet)
    talk.ask(b"other", result=False)
    talk.passes(5.1)
    quiet.append(talk.calls.is_quiet)
    assert quiet == [True, False, True, True]


def test_octets_that_are_no_message_are_counted() -> None:
    talk = Talk().connect()
    assert talk.calls.receive([b"x"], 0.0) == []
    assert talk.hears(emq.Ready(b"m")) == []
    assert talk.calls.invalid == 2


@given(
    st.lists(
        st.one_of(
            st.lists(
                st.one_of(st.binary(max_size=8), st.sampled_from([b"", emq.VERSION, b"REPLY"])), max_size=6
            ),
            st.sampled_from(
                [emq.encode(each) for each in (emq.Goodbye(b"g"), emq.Reply(b"m", b"0", RESULT))]
            ),
            st.tuples(st.booleans(), st.booleans()),
            st.floats(0, 5),
            st.sampled_from(["connected", "lost"]),
        ),
        max_size=40,
    )
)
def test_whatever_happens_each_call_has_one_end(steps: list[object]) -> None:
    talk = Talk()
    talk.calls.start(0.0)
    asked: set[bytes] = set()
    ended: list[bytes] = []
    for step in [*steps, 100.0]:
        outputs: list[CallOutput] = []
        if isinstance(step, list):
            outputs = talk.calls.receive(step, talk.now)
        elif isinstance(step, tuple):
            name = b"%d" % len(asked)
            asked.add(name)
            outputs = talk.ask(name, talk.now + 3.0, sure=step[0])
        elif isinstance(step, float):
            outputs = talk.passes(step)
        elif step == "connected":
            outputs = talk.calls.connected(talk.now)
        else:
            outputs = talk.calls.lost("x", talk.now)
        ended += [each.msgid for each in outputs if isinstance(each, Result | Failed)]
    assert sorted(ended) == sorted(asked)
