"""Edges of the Binary Star's rules of evidence: one more or one less, a moment before or after."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from bstar.pair import arbiter as arbiter_server
from bstar.pair.arbiter import ArbiterServer
from bstar.pair.shell import PairShell
from bstar.star import PeerMessage, Role, StarMachine, StarSettings, State
from bstar.wire import peer
from bstar.wire.arbiter import Question, encode_question
from bstar.wire.peer import PeerState

NOW = 10.0


def word(state: State, *, node: str = "they", seq: int = 1, epoch: int = 0) -> PeerState:
    return PeerState(int(state), "test", "primary", node, seq, epoch, 1000, 2000)


@pytest.fixture
def machine() -> StarMachine:
    """A passive backup that has just heard that its peer serves in epoch 5."""
    made = StarMachine(StarSettings(pair="test", role=Role.BACKUP), node="we", epoch=0, now=NOW)
    made.step(PeerMessage(word(State.ACTIVE, seq=7, epoch=5)), NOW)
    assert made.state is State.PASSIVE
    return made


# --- promises are dated after the question that they answer ------------------------------------------------


class Clock:
    """Reading a message takes two seconds."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time


class Dates:
    """A machine that notes when it was told something."""

    def __init__(self) -> None:
        self.dates: list[float] = []

    def step(self, given: object, now: float) -> list[object]:
        self.dates.append(now)
        return []

    receive = step


def test_a_node_dates_its_ballot_after_the_claim_was_read() -> None:
    clock, machine = Clock(), Dates()

    def messages() -> Iterator[list[bytes]]:
        yield peer.encode(word(State.ACTIVE))
        clock.time += 2

    star: Any = SimpleNamespace(step=machine.step, _reactor=clock)
    PairShell._on_peer(star, messages(), NOW)
    assert machine.dates == [NOW + 2]


def test_the_arbiter_dates_its_ballot_after_the_question_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, machine = Clock(), Dates()
    waiting = [[b"node", *encode_question(Question("claim", "test", "primary", "they", 1, 2000))]]

    def receive(_: object) -> list[bytes]:
        if not waiting:
            raise zmq.Again
        clock.time += 2
        return waiting.pop()

    monkeypatch.setattr(arbiter_server, "receive", receive)
    server: Any = SimpleNamespace(
        machine=machine, drops={}, _socket=None, _reactor=clock, _carry_out=lambda outputs, routing_id: None
    )
    ArbiterServer._on_readable(server, NOW)
    assert machine.dates == [NOW + 2]
