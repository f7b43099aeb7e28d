"""Properties of the native client's session in virtual time; test_client_scripts.py has what it does."""

from __future__ import annotations

import queue
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.wire import native
from bstar.wire.messages import NodeStatus
from bstar.wire.native_broker import NativeAsker
from bstar_client.calls.delivery import Delivery
from bstar_client.core.calls import Call
from bstar_client.core.outputs import Deliver
from support.client_desk import ACTIVE, CLIENT_ID, CODEC, PASSIVE, SILENT, Desk, status


def test_identities_are_the_client_id_and_a_number_from_one(served: Desk) -> None:
    first, second = served.call(), served.call()
    assert first.identity == CLIENT_ID + (1).to_bytes(8, "big")
    assert second.identity == CLIENT_ID + (2).to_bytes(8, "big")


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


# --- batches ------------------------------------------------------------------------------------------------


def together(
    desk: Desk, *bodies: bytes, service: bytes = b"echo", timeout: float | None = 30.0
) -> list[Call]:
    """Calls that are begun in one turn."""
    deadline = None if timeout is None else desk.now + timeout
    calls = [Call(service, [body], deadline, begun_at=desk.now) for body in bodies]
    desk.take(desk.session.submit_all(calls, desk.now))
    return calls


@pytest.mark.requirement("BSN-G-15")
def test_many_calls_are_several_batches(served: Desk) -> None:
    together(served, *[b"x"] * 2_500)
    assert served.batches == 3
    together(served, *[bytes(16_000)] * 100)
    assert served.batches == 5


def test_a_batch_of_replies_that_cannot_be_read_is_counted(served: Desk) -> None:
    calls = together(served, b"a", b"b")
    served.hear(0, [b"", native.encode_finals(CLIENT_ID, 1, [1], [b""])[0], b"xyz", b""])
    assert (served.session.counters.messages_invalid, served.session.outstanding) == (1, len(calls))
