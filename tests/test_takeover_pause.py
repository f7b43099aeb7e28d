"""An operator pauses takeovers: silence moves no role, words do, and it ends by itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.pair.shell import PauseFile
from bstar.star import (
    PauseKept,
    PauseTakeovers,
    PeerMessage,
    PersistPause,
    Publish,
    ResumeTakeovers,
    Role,
    StarMachine,
    StarSettings,
    State,
    TakeoversPaused,
    TakeoversResumed,
)
from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar.wire.epochs import EPOCH_MAX
from bstar.wire.peer import PAUSE_WHY_CHARS_MAX, PeerState, decode, encode
from bstar_broker.core.readiness import readiness, why_role_stays
from bstar_broker.core.snapshot import Standing
from bstar_cli.diagnosis import Reason, Seen, judge
from support.node_states import looked, node_state
from support.pairs import Pair, standing_pair

LONG_S = 600.0


def word(seq: int, state: State, *, epoch: int = 1, **changes: Any) -> PeerMessage:
    said = PeerState(int(state), "test", "primary", "they", seq, epoch, 1000, 2000)
    return PeerMessage(msgspec.structs.replace(said, **changes))


@pytest.fixture
def passive() -> StarMachine:
    """A passive backup whose primary serves in epoch 1 and was heard at time 0."""
    machine = StarMachine(StarSettings(pair="test", role=Role.BACKUP), node="we", epoch=0, now=0.0)
    machine.step(word(1, State.ACTIVE), 0.0)
    assert not is_active(machine)
    return machine


def is_active(machine: StarMachine) -> bool:
    return machine.state is State.ACTIVE


def of(kind: type[Any], outputs: list[Any]) -> list[Any]:
    return [output for output in outputs if type(output) is kind]


def said(outputs: list[Any]) -> PeerState:
    message: PeerState = of(Publish, outputs)[-1].message
    return message


# --- what the nodes tell each other -------------------------------------------------------------------------


def test_the_peer_hears_of_a_pause_and_of_its_end(passive: StarMachine) -> None:
    message = said(passive.step(PauseTakeovers(LONG_S, "a: b"), 1.0))
    assert (message.pause, message.paused_ms, message.pause_why) == (2, 600_000, "a: b")
    peer = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="they, later", epoch=0, now=1.0)
    outputs = peer.step(PeerMessage(decode(encode(message))), 1.0)
    assert of(TakeoversPaused, outputs) == [TakeoversPaused(600.0, "a: b")]
    assert of(PersistPause, outputs) == [PersistPause(2, 600.0, "a: b")]
    outputs = peer.step(ResumeTakeovers("c"), 2.0)
    assert said(outputs).pause == 3, "the primary's orders have odd numbers"
    outputs = passive.step(PeerMessage(said(outputs)), 2.0)
    assert of(TakeoversResumed, outputs) == [TakeoversResumed("c")]
    assert not passive.pause.is_on(2.0)
    assert passive.pause.peer_number == 3


def test_what_a_peer_says_is_bounded(passive: StarMachine) -> None:
    passive.step(word(2, State.ACTIVE, pause=EPOCH_MAX + 1, paused_ms=1000), 0.5)
    assert not passive.pause.is_on(0.5)
    text = "x" * 3 * PAUSE_WHY_CHARS_MAX
    passive.step(word(3, State.ACTIVE, pause=5, paused_ms=2**32 - 1, pause_why=text), 0.5)
    assert passive.pause.rest_s(0.5) == PAUSE_S_MAX
    assert len(passive.pause.why) == PAUSE_WHY_CHARS_MAX


# --- over a restart -----------------------------------------------------------------------------------------


def test_a_pause_is_kept_with_its_end(tmp_path: Path) -> None:
    now = [1000.0]
    file = PauseFile(tmp_path, lambda: now[0])
    assert file.load() is None
    file.keep(PersistPause(4, 60.0, "a: b"))
    now[0] += 20
    assert file.load() == PauseKept(4, 40.0, "a: b")
    now[0] += 100
    assert file.load() == PauseKept(4, 0.0, "a: b")
    file.keep(PersistPause(6, 0.0, "c"))
    assert file.load() == PauseKept(6, 0.0, "c")


def test_a_file_that_cannot_be_read_or_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = PauseFile(tmp_path)
    for damaged in (b"{", b'{"number":2,"until":1,"why":"\xff"}'):
        file.path.write_bytes(damaged)
        assert file.load() is None
    PauseFile(Path("/proc/none")).keep(PersistPause(1, 1.0, ""))
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING, logging.ERROR]


# --- what people see ----------------------------------------------------------------------------------------

PAUSED: dict[str, Any] = {"paused_for_s": 1740.0, "pause_why": "ann@c1: new switch"}


def test_the_status_says_who_paused_and_why() -> None:
    states = [
        node_state(role="primary", state="ACTIVE", is_active=True, peer_state="PASSIVE", **PAUSED),
        node_state(**PAUSED),
    ]
    seen = [Seen(f"tcp://{n}", looked(state)) for n, state in enumerate(states)]
    verdict = judge(seen)
    assert verdict.reason is Reason.PAUSED
    assert verdict.why == (
        "the primary serves, but the primary says: takeovers are paused for 29 min more "
        "(ann@c1: new switch): bstar resume ends that"
    )
    assert why_role_stays(states[0], is_if_healthy=False) == "takeovers are paused: bstar resume first"


def test_a_node_that_the_pause_holds_back_is_not_ready() -> None:
    held = node_state(is_held=True, is_peer_fresh=False, retry_after_s=1.0, **PAUSED)
    assert held.readiness.reason is Standing.HELD
    assert not held.readiness.is_ready
    beside_a_living_peer = node_state(is_held=True, **PAUSED)
    assert readiness(beside_a_living_peer.pair, is_draining=False).reason is Standing.STANDS_BY
    verdict = judge([Seen("tcp://b", looked(held))])
    assert verdict.reason is Reason.HELD


# --- the commands, on a real pair ---------------------------------------------------------------------------


def bstar(pair: Pair, command: str, role: str, *options: str) -> tuple[int, str]:
    """One command with the configuration of that node: its exit status, and what it says."""
    config = str(getattr(pair, role).config_path)
    argv = [sys.executable, "-m", "bstar_cli", command, "--config", config, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.loopback
def test_a_pause_prevents_the_takeover_and_its_end_allows_it() -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        status, text = bstar(pair, "pause", "primary", "--for", "1h", "--reason", "new switch")
        assert (status, "are paused until " in text) == (0, True), text
        state = pair.backup.wait_for("paused", lambda state: state.pair.is_paused)
        assert state.pair.pause_why.endswith(": new switch")
        assert bstar(pair, "switchover", "primary") == (
            1,
            "refused: takeovers are paused: bstar resume first\n",
        )
        pair.primary.kill()
        refused = pair.backup.wait_for(
            "held", lambda state: state.readiness.reason == "held"
        ).pair.requests_refused
        pair.backup.wait_for("asked", lambda state: state.pair.requests_refused > refused + 5)
        assert not pair.backup.state().pair.is_active
        pair.backup.kill()
        pair.backup.start()
        assert pair.backup.state().pair.is_paused, "it is kept over a restart"
        pair.primary.start()
        load.wait_for_replies()
        active = next(node for node in pair.nodes if node.state().pair.is_active)
        other = next(node for node in pair.nodes if node is not active)
        other.wait_for("stands by", lambda state: state.pair.state == "PASSIVE")
        active.kill()
        other.wait_for("held", lambda state: state.readiness.reason == "held")
        status, text = bstar(pair, "resume", other.role)
        assert (status, "the peer does not know of the end of the pause" in text) == (1, True), text
        load.wait_for_replies()
        assert other.state().pair.is_active
        assert bstar(pair, "resume", other.role) == (1, "refused: takeovers are not paused\n")
        load.verify()
        assert "takeovers are paused for 3600 s" in pair.primary.log()
