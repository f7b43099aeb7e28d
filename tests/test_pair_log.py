"""What the log says of the pair: from each output to its level and its sentence, and what is said again."""

from __future__ import annotations

import logging
from typing import Any, get_args

import pytest

from bstar.pair.shell import FIRST_S, REMIND_S, PairLog
from bstar.star import (
    Activated,
    ArbiterAnswer,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    ClientsCutOff,
    Deactivated,
    Drained,
    Event,
    Fatal,
    HandoverRefused,
    Output,
    PeerAsked,
    PeerLost,
    PeerMessage,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
    PersistPause,
    Publish,
    Rejoined,
    Report,
    Role,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    TakeoversPaused,
    TakeoversResumed,
    Tick,
    TimeoutAdapted,
    Vote,
)
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
INFO, WARNING = logging.INFO, logging.WARNING
WHY = "The reason."


def change(old: State, new: State, event: Event) -> StateChanged:
    return StateChanged(old, new, event, WHY)


LINES: list[tuple[Any, int, str]] = [
    (change(BACKUP, PASSIVE, Event.PEER_ACTIVE), INFO, "BACKUP -> PASSIVE on PEER_ACTIVE: The reason."),
    (change(PRIMARY, ACTIVE, Event.PEER_BACKUP), INFO, "PRIMARY -> ACTIVE on PEER_BACKUP: The reason."),
    (change(PRIMARY, ACTIVE, Event.CLIENT_REQUEST), INFO, "PRIMARY -> ACTIVE"),
    (change(ACTIVE, PASSIVE, Event.HANDOVER), INFO, "ACTIVE -> PASSIVE on HANDOVER"),
    (change(ACTIVE, PASSIVE, Event.LEAVE), INFO, "ACTIVE -> PASSIVE on LEAVE"),
    (change(PASSIVE, ACTIVE, Event.PEER_PASSIVE), INFO, "PASSIVE -> ACTIVE on PEER_PASSIVE"),
    # A failover, whoever noticed what.
    (change(PASSIVE, ACTIVE, Event.CLIENT_REQUEST), WARNING, "PASSIVE -> ACTIVE on CLIENT_REQUEST"),
    (change(PASSIVE, ACTIVE, Event.PEER_PRIMARY), WARNING, "PASSIVE -> ACTIVE on PEER_PRIMARY"),
    (change(PASSIVE, ACTIVE, Event.PEER_BACKUP), WARNING, "PASSIVE -> ACTIVE on PEER_BACKUP"),
    (change(PASSIVE, ACTIVE, Event.MAJORITY_WON), WARNING, "PASSIVE -> ACTIVE on MAJORITY_WON"),
    # Both were active.
    (change(ACTIVE, PASSIVE, Event.PEER_ACTIVE), WARNING, "ACTIVE -> PASSIVE on PEER_ACTIVE"),
    (change(ACTIVE, ERROR, Event.PEER_ACTIVE), WARNING, "ACTIVE -> ERROR on PEER_ACTIVE"),
    (change(ACTIVE, PASSIVE, Event.STALL), WARNING, "ACTIVE -> PASSIVE on STALL"),
    (change(ACTIVE, PASSIVE, Event.MAJORITY_LOST), WARNING, "ACTIVE -> PASSIVE on MAJORITY_LOST"),
    (change(ACTIVE, PASSIVE, Event.EPOCH_LEARNED), WARNING, "ACTIVE -> PASSIVE on EPOCH_LEARNED"),
    (change(ACTIVE, PASSIVE, Event.CLIENTS_CUT_OFF), WARNING, "ACTIVE -> PASSIVE on CLIENTS_CUT_OFF"),
    (change(BACKUP, ERROR, Event.PEER_MISMATCH), WARNING, "BACKUP -> ERROR on PEER_MISMATCH"),
    (Activated(3, WHY), INFO, "active in epoch 3: The reason."),
    (Deactivated(WHY), INFO, "no longer active: The reason."),
    (PeerSeen(ACTIVE, "ab"), INFO, "peer is there: ACTIVE, run ab"),
    (PeerSeen(ACTIVE, None), INFO, "peer is there: ACTIVE, run unknown"),
    (PeerSeen(PASSIVE, "ab", "fronts: ppp on the backup only"), WARNING, "run ab; fronts: ppp on the backup"),
    (PeerLost(0.3), WARNING, "peer silent for 0.300 s"),
    (PeerLost(0.3, has_left=True), INFO, "peer has left"),
    (
        PeerLost(0.01, is_gone=True),
        WARNING,
        "peer is gone: its endpoint refuses connections, 0.010 s after its last message",
    ),
    (
        TimeoutAdapted(0.3, 0.7),
        INFO,
        "the failover timeout is 0.7 s now, it was 0.3 s: state messages come late",
    ),
    (TimeoutAdapted(2.0, 0.3), INFO, "0.3 s now, it was 2 s: state messages come in time"),
    (PeerAsked(WHY), INFO, "asked the peer whether it serves: The reason."),
    (PeerRejected("pair", "Other name."), logging.ERROR, "peer rejected: Other name."),
    (HandoverRefused("No peer."), WARNING, "the role stays: No peer."),
    (TakeoversPaused(90.0, WHY), INFO, "takeovers are paused for 90 s: The reason."),
    (TakeoversResumed(WHY), INFO, "takeovers are resumed: The reason."),
    (Drained(WHY), INFO, "this node is drained and neither serves nor stands by: The reason."),
    (Rejoined(WHY), INFO, "this node is drained no more: The reason."),
    (Claimed(WHY), INFO, "claims the majority: The reason."),
    (ArbiterSeen(), INFO, "arbiter is there"),
    (ArbiterLost(1.5), WARNING, "arbiter has not answered for 1.500 s"),
    (
        ClientsCutOff(3, 0, 4.25, "hands the role over"),
        WARNING,
        "3 clients have reached only the passive node for 4.2 s: this node hands the role over",
    ),
    (
        ClientsCutOff(0, 2, 9.0, "stays"),
        WARNING,
        "for 9.0 s; 2 more ask for services without a worker there: this node stays",
    ),
]
# The shell tells what becomes of these: an error has a line of its own, the others are no news.
SILENT = {Publish, PersistEpoch, PersistPause, AskArbiter, Fatal}


@pytest.mark.parametrize(("output", "level", "text"), LINES, ids=lambda value: type(value).__name__)
def test_each_output_has_its_level_and_its_sentence(output: object, level: int, text: str) -> None:
    assert isinstance(output, Report)
    assert output.level == level
    assert text in output.text


def test_every_output_stands_in_the_table() -> None:
    assert {type(output) for output, _, _ in LINES} | SILENT == set(get_args(Output))
    assert {kind for kind in get_args(Output) if not issubclass(kind, Report)} == SILENT


def machine_of(role: Role, *, arbiter: str = "") -> StarMachine:
    settings = StarSettings(
        pair="p", role=role, heartbeat_interval_s=0.1, failover_timeout_s=0.3, arbiter=arbiter
    )
    return StarMachine(settings, node="n", epoch=0, now=0.0)


def run(log: PairLog, machine: StarMachine, begin: float, end: float) -> None:
    """Second by second, as the shell does it."""
    for second in range(round(begin), round(end) + 1):
        for output in machine.step(Tick(), float(second)):
            if isinstance(output, Report):
                log.report(output)
        log.remind(machine.trouble(float(second)), float(second))


def test_a_lone_backup_says_what_it_waits_for_and_says_it_again(caplog: pytest.LogCaptureFixture) -> None:
    machine = machine_of(Role.BACKUP)
    log = PairLog(0.0)
    run(log, machine, 0, FIRST_S - 1)
    assert not caplog.records
    run(log, machine, FIRST_S, 3 * REMIND_S)
    texts = [record.getMessage() for record in caplog.records if record.levelno == WARNING]
    assert len(texts) == 3
    assert "never starts alone: start the primary, or mend the link" in texts[0]
    assert [text.partition(":")[0] for text in texts] == ["for 5 s", "for 65 s", "for 125 s"]
    # When the primary is there, it is over; when it is lost again, it begins anew.
    caplog.clear()
    machine.step(PeerMessage(PeerState(3, "p", "primary", "m", 1, 1, 100, 300)), 3 * REMIND_S)
    run(log, machine, 3 * REMIND_S, 3 * REMIND_S)
    assert not caplog.records
    assert machine.trouble(4 * REMIND_S) == ""  # PASSIVE: the next request makes it active


def test_a_node_without_peer_and_arbiter_says_so(caplog: pytest.LogCaptureFixture) -> None:
    machine = machine_of(Role.PRIMARY, arbiter="tcp://c:5010")
    log = PairLog(0.0)
    run(log, machine, 0, REMIND_S)
    told = [record.getMessage() for record in caplog.records if "for 5 s" in record.getMessage()]
    assert len(told) == 1
    assert "neither the peer nor the arbiter answers" in told[0]
    machine.step(ArbiterAnswer(Answer(node="n", number=1, is_granted=False)), REMIND_S)
    assert machine.trouble(REMIND_S) == ""


def test_a_claim_that_each_request_repeats_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, logger="bstar.pair")
    machine = machine_of(Role.PRIMARY, arbiter="tcp://c:5010")
    log = PairLog(0.0)
    claims = 0
    for step in range(1, 601):  # a minute; a request every three seconds, a heartbeat ten times a second
        now = step / 10
        outputs = machine.step(Tick(), now)
        if step % 30 == 0:
            outputs += machine.step(Vote(), now)
        for output in outputs:
            claims += type(output) is Claimed
            if isinstance(output, Report):
                log.report(output)
    assert claims == 20
    log.report(Claimed("Our own ballot is free again."))
    assert len([each for each in caplog.records if "claims the majority" in each.getMessage()]) == 1
    log.report(PeerSeen(PASSIVE, "m"))
    log.report(Claimed("No backup is to be heard, but the majority is to be won."))
    assert len([each for each in caplog.records if "claims the majority" in each.getMessage()]) == 2


@pytest.mark.parametrize(
    ("gap_s", "age_s", "is_heeded", "level"),
    [
        (0.06, 0.16, False, logging.DEBUG),
        (0.206, 0.301, False, WARNING),
        (0.206, 0.301, True, WARNING),
        (0.25, 0.27, True, WARNING),
    ],
)
def test_a_pause_is_told_with_its_length_and_the_age_that_decides(
    gap_s: float, age_s: float, is_heeded: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    PairLog(0.0).stalled(gap_s, age_s, 0.3, is_heeded=is_heeded)
    [record] = caplog.records
    assert record.levelno == level
    assert record.getMessage() == (
        f"the process was away for {gap_s:.3f} s; its last state message is {age_s:.3f} s old, the failover "
        "timeout 0.3 s"
    )
