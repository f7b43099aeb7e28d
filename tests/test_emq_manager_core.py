"""The conversation of an EventMQ job manager with its router, in virtual time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.wire import emq
from bstar.wire.emq_jobs import decode_result, encode_result
from bstar_client.core.emq.manager import (
    WAITING_MAX,
    Close,
    ManagerSession,
    ManagerSettings,
    Open,
    Output,
    Registered,
    Run,
    Send,
)

QUEUES = (emq.Queue(20, "fast"), emq.Queue(10, "default"))
SETTINGS = ManagerSettings(("A", "B"), QUEUES)
JOB = b'["run", {"path": "m", "callable": "f"}]'


class Talk:
    """A session, its clock, and what the router would read."""

    def __init__(self, settings: ManagerSettings = SETTINGS) -> None:
        numbers = itertools.count(1)
        self.now = 100.0
        self.session = ManagerSession(settings, lambda: b"id-%d" % next(numbers), lambda: 1_000.5)
        self.inform = b""

    def start(self) -> list[Output]:
        return self._note(self.session.start(self.now))

    def _note(self, outputs: list[Output]) -> list[Output]:
        for message in said(outputs):
            if isinstance(message, emq.Inform):
                self.inform = message.msgid
        return outputs

    def hears(self, *messages: emq.Message) -> list[Output]:
        return self._note(
            [out for each in messages for out in self.session.receive(emq.encode(each), self.now)]
        )

    def passes(self, seconds: float) -> list[Output]:
        """Time goes by, with all deadlines in it."""
        outputs: list[Output] = []
        until = self.now + seconds
        while (due := self.session.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            outputs += self.session.handle_timer(self.now)
        self.now = until
        return self._note(outputs)

    def frees(self, count: int = 1) -> list[Output]:
        return [out for _ in range(count) for out in self.session.freed(self.now)]

    def register(self, processes: int = 1) -> list[Output]:
        """Connect, and do all that it takes to get requests."""
        self.frees(processes)
        self.start()
        return self.hears(emq.Ack(b"a", self.inform), emq.Heartbeat(b"h", 1.0))


def said(outputs: list[Output]) -> list[emq.Message]:
    return [emq.decode(output.frames) for output in outputs if isinstance(output, Send)]


def kinds(outputs: list[Output]) -> list[type]:
    return [type(message) for message in said(outputs)]


def request(name: bytes) -> emq.Request:
    return emq.Request(name, "default", JOB)


def only_run(outputs: list[Output]) -> Run:
    [run] = outputs
    assert isinstance(run, Run)
    return run


@pytest.mark.requirement("EMQ-R-10")
@pytest.mark.requirement("EMQ-R-01")
def test_it_connects_with_an_identity_of_its_own_and_informs() -> None:
    """EMQ-R-10: queues are a JSON array, and an empty frame is the router's default. EMQ-R-01: identities."""
    opened, sent = Talk().start()
    assert opened == Open("A", b"id-2")
    assert isinstance(sent, Send)
    assert sent.frames == [b"", b"eMQP/1.0", b"INFORM", b"id-1", b'[[20,"fast"],[10,"default"]]', b"worker"]
    _, plain = Talk(ManagerSettings(("A",))).start()
    assert isinstance(plain, Send)
    assert plain.frames[4:] == [b"", b"worker"]


def test_ready_comes_after_the_first_heartbeat_and_once_for_each_free_process() -> None:
    talk = Talk()
    assert talk.frees(2) == []
    talk.start()
    assert talk.hears(emq.Ack(b"a", talk.inform)) == []
    first = talk.hears(emq.Heartbeat(b"h", 1.0))
    assert first[0] == Registered("A")
    assert kinds(first[1:]) == [emq.Ready, emq.Ready]
    assert talk.hears(emq.Heartbeat(b"h", 2.0)) == []
    # A process that starts later is one more.
    assert kinds(talk.frees()) == [emq.Ready]


def test_the_ack_of_another_message_and_a_heartbeat_before_the_ack_register_nobody() -> None:
    talk = Talk()
    talk.frees()
    talk.start()
    assert talk.hears(emq.Heartbeat(b"h", 1.0), emq.Ack(b"a", b"other"), emq.Heartbeat(b"h", 2.0)) == []


def test_a_job_ends_with_its_result_and_the_next_ready() -> None:
    talk = Talk()
    talk.register()
    run = only_run(talk.hears(request(b"r1")))
    assert run.request == request(b"r1")
    [reply] = said(talk.session.ended(run, b'{"value": 3}', talk.now))
    assert reply == emq.Reply(reply.msgid, b"r1", b'{"value": 3}')
    assert kinds(talk.frees()) == [emq.Ready]


@pytest.mark.requirement("EMQ-G-05")
@pytest.mark.requirement("EMQ-G-04")
def test_it_beats_when_it_has_sent_nothing_for_an_interval() -> None:
    """EMQ-G-05: heartbeats at intervals of 3 s. EMQ-G-04: another message takes a heartbeat's place."""
    talk = Talk()
    talk.register()
    beats = said(talk.passes(6.5))
    assert beats == [emq.Heartbeat(beat.msgid, 1_000.5) for beat in beats]
    assert len(beats) == 2
    # At 6.5 s a READY, so the next heartbeat is due at 9.5 s, not at 9 s.
    assert kinds(talk.frees()) == [emq.Ready]
    assert kinds(talk.passes(2.9)) == []
    assert kinds(talk.passes(0.2)) == [emq.Heartbeat]


@pytest.mark.requirement("EMQ-W-01")
def test_after_silence_it_begins_again_at_the_other_router_with_a_fresh_identity() -> None:
    """EMQ-W-01: the worker restarts the conversation when the broker is gone."""
    talk = Talk()
    talk.register(2)
    talk.passes(14.9)
    # Any message is a sign of life.
    assert talk.hears(emq.Heartbeat(b"h", 2.0)) == []
    assert not any(isinstance(output, Close) for output in talk.passes(14.9))
    assert [type(output) for output in talk.passes(0.2) if not isinstance(output, Send)] == [Close]
    assert talk.hears(emq.Heartbeat(b"h", 3.0)) == []
    opened, sent = talk.passes(1.0)
    assert isinstance(opened, Open)
    assert opened.router == "B"
    assert kinds([sent]) == [emq.Inform]
    told = talk.hears(emq.Ack(b"a", talk.inform), emq.Heartbeat(b"h", 4.0))
    assert kinds(told) == [emq.Ready, emq.Ready]
    # And back to the first.
    talk.session.lost("x", talk.now)
    again = talk.passes(1.0)[0]
    assert isinstance(again, Open)
    assert again.router == "A"
    assert again.identity != opened.identity


def test_without_an_ack_it_goes_to_the_other_router() -> None:
    talk = Talk()
    talk.start()
    assert talk.passes(4.9) == []
    assert talk.passes(0.2) == [Close("the router is silent for 5 s")]
    assert isinstance(talk.passes(1.0)[0], Open)


@pytest.mark.requirement("EMQ-G-07")
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_a_farewell_of_the_router_ends_the_connection(word: bytes) -> None:
    """EMQ-G-07: after KBYE or KBAI nothing is sent to that router."""
    talk = Talk()
    talk.register()
    run = only_run(talk.hears(request(b"r1")))
    assert talk.session.receive([b"", emq.VERSION, word, b"m"], talk.now) == [Close("the router said KBYE")]
    assert talk.session.ended(run, b'{"value": 1}', talk.now) == []
    assert talk.frees() == []
    assert talk.session.drops == {"late-reply": 1}


@pytest.mark.requirement("EMQ-G-06")
def test_a_disconnect_of_the_router_is_answered_by_a_farewell() -> None:
    """EMQ-G-06: KBYE, and then nothing more; the running job ends."""
    talk = Talk()
    talk.register()
    run = only_run(talk.hears(request(b"r1")))
    outputs = talk.hears(emq.Disconnect(b"d"))
    assert kinds(outputs[:1]) == [emq.Goodbye]
    assert outputs[1:] == [Close("the router sent DISCONNECT")]
    assert not talk.session.is_idle
    assert talk.session.ended(run, b'{"value": 1}', talk.now) == []
    assert talk.session.is_idle


def test_a_result_goes_to_no_other_connection() -> None:
    talk = Talk()
    talk.register(2)
    run = only_run(talk.hears(request(b"r1")))
    talk.session.lost("x", talk.now)
    talk.passes(1.0)
    told = talk.hears(emq.Ack(b"a", talk.inform), emq.Heartbeat(b"h", 1.0))
    assert kinds(told) == [emq.Ready]
    assert talk.session.ended(run, b'{"value": 1}', talk.now) == []
    assert kinds(talk.frees()) == [emq.Ready]


def test_a_request_without_a_free_process_waits_for_one() -> None:
    talk = Talk()
    talk.register()
    first = only_run(talk.hears(request(b"r1")))
    assert talk.hears(request(b"r2")) == []
    talk.session.ended(first, b'{"value": 1}', talk.now)
    # The process takes what waits, so there is no READY.
    second = only_run(talk.frees())
    assert second.request.msgid == b"r2"
    talk.session.ended(second, b'{"value": 1}', talk.now)
    assert kinds(talk.frees()) == [emq.Ready]


def test_too_many_requests_are_answered_by_an_error_value() -> None:
    talk = Talk()
    talk.register(0)
    for number in range(WAITING_MAX):
        assert talk.hears(request(b"r%d" % number)) == []
    [reply] = said(talk.hears(request(b"last")))
    assert isinstance(reply, emq.Reply)
    assert reply.about == b"last"
    assert reply.value is not None
    assert "refused" in decode_result(reply.value)
    assert talk.session.drops == {"overload": 1}


def test_a_process_that_dies_idle_and_its_successor_have_one_ready() -> None:
    talk = Talk()
    talk.register()
    talk.session.died()
    assert talk.frees() == []
    only_run(talk.hears(request(b"r1")))


@pytest.mark.requirement("EMQ-R-05")
def test_a_drain_finishes_what_runs_and_then_says_kbye() -> None:
    """EMQ-R-05: KBYE is sent, when the last result has gone; no READY comes after the drain has begun."""
    talk = Talk()
    talk.register(2)
    run = only_run(talk.hears(request(b"r1")))
    assert talk.session.drain(talk.now) == []
    # The router knows of a free process: its request is done, too.
    other = only_run(talk.hears(request(b"r2")))
    assert kinds(talk.passes(7.0)) == [emq.Heartbeat] * 2
    assert kinds(talk.session.ended(run, b'{"value": 1}', talk.now)) == [emq.Reply]
    assert talk.frees() == []
    last = talk.session.ended(other, b'{"value": 1}', talk.now)
    assert kinds(last) == [emq.Reply, emq.Goodbye]
    assert isinstance(last[1], Send)
    assert last[1].frames[2] == b"KBYE"
    assert talk.frees() == []
    assert talk.passes(100.0) == []


def test_an_idle_manager_leaves_at_once_and_a_leaving_one_says_it_once() -> None:
    talk = Talk()
    talk.register()
    assert kinds(talk.session.drain(talk.now)) == [emq.Goodbye]
    assert talk.session.leave() == []
    assert talk.hears(request(b"late")) == []


def test_a_drain_without_a_connection_makes_none() -> None:
    talk = Talk()
    talk.start()
    talk.session.lost("x", talk.now)
    assert talk.session.drain(talk.now) == []
    assert talk.session.next_deadline() is None
    assert talk.session.is_idle


MESSAGES: tuple[emq.Message, ...] = (
    emq.Ack(b"a", b"id-1"), emq.Heartbeat(b"h", 1.0), request(b"r"), emq.Goodbye(b"g"), emq.Disconnect(b"d"),
    emq.Reply(b"m", b"r"), emq.Ready(b"y"), emq.Status(b"s"), emq.Schedule(b"s", "q", JOB, interval_s=1),
)  # fmt: skip


@given(
    st.lists(
        st.one_of(
            st.sampled_from([emq.encode(message) for message in MESSAGES]),
            st.lists(st.one_of(st.binary(max_size=8), st.sampled_from([b"", emq.VERSION])), max_size=7),
            st.floats(0, 20),
            st.sampled_from(["freed", "ended", "lost", "drain"]),
        ),
        max_size=40,
    )
)
def test_whatever_happens_there_are_never_more_readies_than_processes(steps: list[object]) -> None:
    talk = Talk()
    opened = sum(isinstance(output, Open) for output in talk.start())
    running: list[Run] = []
    free = slots = 0
    for step in steps:
        outputs: list[Output] = []
        if isinstance(step, list):
            outputs = talk.session.receive(step, talk.now)
            slots -= step[2:3] == [b"REQUEST"] and slots > 0
        elif isinstance(step, float):
            outputs = talk.passes(step)
        elif step == "freed" and free + len(running) < 3:
            outputs, free = talk.session.freed(talk.now), free + 1
        elif step == "ended" and running:
            outputs = talk.session.ended(running.pop(), b'{"value": 1}', talk.now)
            outputs, free = outputs + talk.session.freed(talk.now), free + 1
        elif step == "lost":
            outputs = talk.session.lost("x", talk.now)
        elif step == "drain":
            outputs = talk.session.drain(talk.now)
        for output in outputs:
            if isinstance(output, Open):
                opened += 1
                slots = 0
            elif isinstance(output, Close):
                opened -= 1
                slots = 0
            elif isinstance(output, Run):
                running.append(output)
                free -= 1
            elif isinstance(output, Send):
                assert opened == 1
                slots += output.frames[2] == b"READY"
        assert 0 <= opened <= 1
        assert free >= 0
        assert slots <= free


@pytest.mark.parametrize(("wire", "value"), [(emq.Wire.PUBLISHED, None), (emq.Wire.SPECIFICATION, True)])
def test_a_job_that_returns_nothing_replies_true_by_the_specification(
    wire: emq.Wire, value: bool | None
) -> None:
    talk = Talk(ManagerSettings(("A",), wire=wire))
    talk.frees()
    talk.start()
    for message in (emq.Ack(b"a", talk.inform), emq.Heartbeat(b"h", 1.0)):
        talk.session.receive(emq.encode(message, wire=wire), talk.now)
    run = only_run(talk.session.receive(emq.encode(request(b"r1"), wire=wire), talk.now))
    [reply] = talk.session.ended(run, encode_result(None), talk.now)
    assert isinstance(reply, Send)
    assert decode_result(reply.frames[-1] if wire is emq.Wire.SPECIFICATION else reply.frames[-2]) is value
