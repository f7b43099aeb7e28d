"""The Binary Star machine of one node: every state and event, and what the table does not show."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bstar.errors import ConfigurationError, DualActiveError, DualPassiveError, PairError, RemoteProtocolError
from bstar.star import (
    Fatal,
    Handover,
    Ignored,
    Output,
    PeerGarbage,
    PeerMessage,
    PeerRejected,
    PeerSeen,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    Subscription,
    Tick,
    Vote,
)
from bstar.wire.messages import NEVER_MS
from bstar.wire.peer import PeerState, decode

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
TIMEOUT_S = 2.0
FRESH, SILENT = 10.0, 10.0 + TIMEOUT_S


def settings(role: Role = Role.PRIMARY, **changes: Any) -> StarSettings:
    return StarSettings(pair="test", role=role, **changes)


def machine_of(role: Role = Role.PRIMARY, *, epoch: int = 0, **changes: Any) -> StarMachine:
    return StarMachine(settings(role, **changes), node="we", epoch=epoch, now=0.0)


class Peer:
    """The other node as a script: every message has the next number."""

    def __init__(self, role: Role = Role.BACKUP, node: str = "they") -> None:
        self.role = role
        self.node = node
        self.seq = 0

    def says(self, state: State, **changes: Any) -> PeerState:
        self.seq += 1
        fields: dict[str, Any] = {
            "state": int(state),
            "pair": "test",
            "role": self.role.value,
            "node": self.node,
            "seq": self.seq,
            "epoch": 0,
            "heartbeat_ms": 1000,
            "timeout_ms": 2000,
        }
        return PeerState(**(fields | changes))


def bare(state: State) -> PeerState:
    """What a published peer says: the state code and nothing else."""
    return decode([b"%d" % state])


def published(outputs: list[Output]) -> list[PeerState]:
    return [output.message for output in outputs if isinstance(output, Publish)]


def kinds(outputs: list[Output]) -> list[type]:
    return [type(output) for output in outputs]


def error_of(outputs: list[Output]) -> PairError:
    [fatal] = [output for output in outputs if isinstance(output, Fatal)]
    return fatal.error


def in_state(
    state: State, role: Role = Role.PRIMARY, *, peer: Peer | None = None, epoch: int = 0, **changes: Any
) -> StarMachine:
    """A machine that has come to ``state`` by ordinary ways and heard its peer at ``FRESH - 0.5``."""
    machine = machine_of(role, epoch=epoch, **changes)
    at = FRESH - 0.5
    machine.publisher.published_at = at  # it has been publishing all along
    words: list[State] = {
        PRIMARY: [PASSIVE],
        BACKUP: [PASSIVE],
        ACTIVE: [ACTIVE, (role.peer is Role.PRIMARY and PRIMARY) or BACKUP, PASSIVE],
        PASSIVE: [ACTIVE],
        ERROR: [],
    }[state]
    for word in words:
        machine.step(PeerMessage(bare(word) if peer is None else peer.says(word)), at)
    if state is ERROR:
        machine.step(PeerMessage(Peer(role).says(PASSIVE)), at)
    assert machine.state is state
    return machine


# --- the published table ----------------------------------------------------------------------------------

# The published table, with the reactor's column for PRIMARY (BST-R-01): what each state does on each word.
PUBLISHED: dict[State, tuple[State, State, State, State]] = {
    PRIMARY: (PRIMARY, ACTIVE, PASSIVE, PRIMARY),
    BACKUP: (BACKUP, BACKUP, PASSIVE, BACKUP),
    ACTIVE: (ACTIVE, ACTIVE, ERROR, ACTIVE),
    PASSIVE: (ACTIVE, ACTIVE, PASSIVE, ERROR),
}
PUBLISHED_VOTES: dict[State, tuple[State, State]] = {
    PRIMARY: (PRIMARY, ACTIVE),
    BACKUP: (BACKUP, BACKUP),
    ACTIVE: (ACTIVE, ACTIVE),
    PASSIVE: (PASSIVE, ACTIVE),
}
ROLES = {PRIMARY: (Role.PRIMARY,), BACKUP: (Role.BACKUP,), ACTIVE: tuple(Role), PASSIVE: tuple(Role)}
PLACES = [(state, role) for state, roles in ROLES.items() for role in roles]


@pytest.mark.parametrize("word", [PRIMARY, BACKUP, ACTIVE, PASSIVE])
@pytest.mark.parametrize(("state", "role"), PLACES)
def test_a_published_peer_meets_the_published_table(state: State, role: Role, word: State) -> None:
    """BST-S-03, with the policy that is the published one."""
    machine = in_state(state, role, on_dual_active="exit")
    outputs = machine.step(PeerMessage(bare(word)), FRESH)
    next_state = PUBLISHED[state][word - 1]
    assert machine.state is next_state
    assert machine.is_active is (next_state is ACTIVE)
    changed = [(o.old, o.new) for o in outputs if isinstance(o, StateChanged)]
    assert changed == ([] if next_state is state else [(state, next_state)])
    if next_state is ERROR:
        assert type(error_of(outputs)) is (DualActiveError if word is ACTIVE else DualPassiveError)


@pytest.mark.parametrize(("state", "role"), PLACES)
@pytest.mark.parametrize("now", [FRESH, SILENT])
def test_a_client_request_meets_the_published_table(state: State, role: Role, now: float) -> None:
    """BST-S-03, BST-S-04: only silence lets a vote count. BST-R-01: for a primary that starts as well."""
    machine = in_state(state, role)
    machine.step(PeerMessage(bare(machine.peer.state or PASSIVE)), FRESH - 0.001)
    machine.publisher.published_at = now
    assert machine.step(Vote(), now) == [] or not machine.is_active or now == SILENT
    assert machine.state is PUBLISHED_VOTES[state][now == SILENT]


# --- every state, event and circumstance ------------------------------------------------------------------

EPOCHS = {"unknown": None, "lower": -1, "higher": +1}
CIRCUMSTANCES = [
    {
        "word": word,
        "epoch": epoch,
        "is_fresh": is_fresh,
        "asks": asks,
        "released": released,
        "leaving": leaving,
        "policy": policy,
    }
    for word, epoch, is_fresh, asks, (released, leaving), policy in itertools.product(
        (PRIMARY, BACKUP, ACTIVE, PASSIVE),
        EPOCHS,
        (True, False),
        (0, 7),
        ((False, False), (True, False), (True, True)),
        ("yield", "exit"),
    )
    # What a published peer says has no details.
    if epoch != "unknown" or not (asks or released)
]


def expected(state: State, role: Role, c: dict[str, Any]) -> State:
    """The twin of the machine for one message in a settled state, in the plainest words there are."""
    word, epoch, is_native = c["word"], c["epoch"], c["epoch"] != "unknown"
    is_above = epoch == "higher"
    if state is PRIMARY:
        given = word is PASSIVE and bool(c["leaving"])
        return {BACKUP: ACTIVE, ACTIVE: PASSIVE}.get(word, ACTIVE if given else PRIMARY)
    if state is BACKUP:
        given = word is PASSIVE and bool(c["leaving"])
        return {ACTIVE: PASSIVE}.get(word, ACTIVE if given else BACKUP)
    if state is ACTIVE:
        if word is not ACTIVE:
            # An epoch above ours in which nobody serves: we take one above it and go on.
            return ACTIVE
        if c["policy"] == "exit":
            return ERROR
        return PASSIVE if is_above or (not is_native and role is Role.BACKUP) else ACTIVE
    assert state is PASSIVE
    if word in (PRIMARY, BACKUP):
        return ACTIVE
    if word is ACTIVE:
        return PASSIVE
    if c["released"] and is_above:
        return ACTIVE
    return PASSIVE if is_native else ERROR


@pytest.mark.parametrize(("state", "role"), PLACES)
def test_every_state_and_message_against_the_twin(state: State, role: Role) -> None:
    for circumstance in CIRCUMSTANCES:
        peer = Peer(role.peer)
        machine = in_state(state, role, peer=peer, on_dual_active=circumstance["policy"], epoch=10)
        now = FRESH if circumstance["is_fresh"] else SILENT
        machine.publisher.published_at = now
        own = machine.epoch
        epoch = circumstance["epoch"]
        if epoch == "unknown":
            message = bare(circumstance["word"])  # type: ignore[arg-type]
        else:
            message = peer.says(
                circumstance["word"],  # type: ignore[arg-type]
                epoch=max(0, own + 1) if epoch == "higher" else max(0, own - 1),
                asks=circumstance["asks"],
                released=circumstance["released"],
                leaving=circumstance["leaving"],
            )
        outputs = machine.step(PeerMessage(message), now)
        assert machine.state is expected(state, role, circumstance), circumstance
        assert machine.is_active is (machine.state is ACTIVE)
        if machine.is_active:
            assert machine.epoch == machine.epochs.seen, circumstance
        if circumstance["asks"] and machine.state is not ERROR:
            # Asked is answered at once, not at the next heartbeat.
            assert published(outputs)[-1].answers == circumstance["asks"], circumstance


# --- starting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"heartbeat_interval_s": 0.0}, "heartbeat_interval_s"),
        ({"heartbeat_interval_s": 31.0, "failover_timeout_s": 90.0}, "heartbeat_interval_s"),
        ({"heartbeat_interval_s": 1.0, "failover_timeout_s": 1.9}, "at least two"),
        ({"on_dual_active": "shrug"}, "on_dual_active"),
        ({"on_clients_cut_off": "shrug"}, "on_clients_cut_off"),
    ],
)
def test_timing_that_cannot_work_is_refused(changes: dict[str, Any], word: str) -> None:
    """BST-S-02: one lost message must not move the role."""
    with pytest.raises(ConfigurationError, match=word):
        settings(**changes)


def test_timing_is_compared_in_milliseconds() -> None:
    assert settings(heartbeat_interval_s=0.1, failover_timeout_s=0.2).failover_timeout_ms == 200


# --- silence ----------------------------------------------------------------------------------------------


def test_nodes_with_different_fronts_are_a_pair_and_say_so() -> None:
    peer = Peer()
    machine = machine_of(fronts=("emq", "ppp"))
    outputs = machine.step(Subscription(), 0.05)
    assert [it.message.fronts for it in outputs if isinstance(it, Publish)] == ["emq,ppp"]
    outputs = machine.step(PeerMessage(peer.says(PASSIVE, fronts="ppp,pzq")), 0.1)
    [seen] = [it for it in outputs if isinstance(it, PeerSeen)]
    assert "fronts: emq on the primary only and pzq on the backup only" in seen.differs
    machine.step(PeerMessage(peer.says(PASSIVE, fronts="ppp,emq")), 0.2)
    assert machine.peer.fronts_apart == ""
    machine.step(PeerMessage(peer.says(PASSIVE, fronts="\x1b[2J,,ppp,emq")), 0.3)
    assert machine.peer.fronts_apart == "", "a name is letters and digits"
    machine.step(PeerMessage(peer.says(PASSIVE)), 0.4)
    assert "fronts: emq, ppp on the primary only" in machine.peer.fronts_apart


@pytest.mark.parametrize("frames", [[b"5"], [b"0"], [b"abc"], [b""], [b"31"], [], [b"BSTP01", b"3", b"{"]])
@pytest.mark.parametrize(("state", "role"), PLACES)
def test_what_is_no_state_message_is_no_sign_of_life(state: State, role: Role, frames: list[bytes]) -> None:
    """BST-R-02."""
    machine = in_state(state, role)
    expires_at = machine.peer.expires_at
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frames)
    outputs = machine.step(PeerGarbage(caught.value), FRESH)
    assert machine.state is state
    assert machine.peer.expires_at == expires_at
    assert kinds(outputs) == [PeerRejected]
    # It is counted each time and reported once.
    assert machine.step(PeerGarbage(caught.value), FRESH) == []
    assert machine.counters.peer_ignored[Ignored.INVALID] == 2


# --- transitions ------------------------------------------------------------------------------------------


def test_transitions_are_counted() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Handover(), FRESH)
    assert machine.counters.transitions == {(PRIMARY, PASSIVE): 1, (PASSIVE, ACTIVE): 1, (ACTIVE, PASSIVE): 1}


# --- both active ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "is_yielding"), [(Role.PRIMARY, False), (Role.BACKUP, True)])
def test_on_equal_or_unknown_epochs_the_primary_wins(role: Role, is_yielding: bool) -> None:
    for message in (bare(ACTIVE), Peer(role.peer).says(ACTIVE, epoch=3)):
        machine = in_state(ACTIVE, role)
        machine.epochs.own = machine.epochs.seen = 3
        machine.step(PeerMessage(message), FRESH)
        assert machine.state is (PASSIVE if is_yielding else ACTIVE)


# --- stalls -----------------------------------------------------------------------------------------------


def test_questions_of_different_runs_have_different_tokens() -> None:
    tokens = set()
    for node in ("run-1", "run-2"):
        machine = StarMachine(settings(), node=node, epoch=0, now=0.0)
        machine.step(PeerMessage(Peer().says(BACKUP)), 0.0)
        tokens.add(published(machine.step(Stall(9.0), 9.0))[0].asks)
    assert len(tokens) == 2


# --- strangers --------------------------------------------------------------------------------------------

STRANGE = [
    ({"pair": "other"}, "pair"),
    ({"role": "primary"}, "role"),
    ({"heartbeat_ms": 999}, "heartbeat_interval_s"),
    ({"timeout_ms": 3000}, "failover_timeout_s"),
    ({"node": "we"}, "hears itself"),
]


@pytest.mark.parametrize(("changes", "text"), STRANGE)
@pytest.mark.parametrize("state", [ACTIVE, PASSIVE])
def test_a_stranger_does_not_harm_a_settled_node(state: State, changes: dict[str, Any], text: str) -> None:
    machine = in_state(state, peer=Peer())
    expires_at = machine.peer.expires_at
    stranger = Peer(node="stranger")
    [rejected] = machine.step(PeerMessage(stranger.says(BACKUP, **changes)), FRESH)
    assert isinstance(rejected, PeerRejected)
    assert text in rejected.text
    assert machine.step(PeerMessage(stranger.says(BACKUP, **changes)), FRESH) == []
    assert machine.state is state
    assert machine.peer.expires_at == expires_at
    assert machine.counters.peer_ignored[Ignored.MISMATCH] == 2


def test_reports_about_strangers_do_not_pile_up() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    for number in range(1000):
        machine.step(PeerMessage(Peer(node=f"stranger {number}").says(BACKUP, pair="x")), FRESH)
    assert len(machine.peer.strangers.reported) <= 16


# --- late messages ----------------------------------------------------------------------------------------


def test_a_peer_that_restarts_in_a_loop_does_not_grow_our_memory() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    for number in range(1000):
        machine.step(PeerMessage(Peer(node=f"run {number}").says(BACKUP)), FRESH)
    assert len(machine.peer.runs.past) <= 16


# --- a number that the peer never reached -------------------------------------------------------------------

FORGED = 2**62


def passive_after_a_forged_number(peer: Peer) -> StarMachine:
    """The peer serves in epoch 2 and has sent more than ten messages when somebody forges one of its run."""
    peer.seq = 10
    machine = in_state(PASSIVE, peer=peer)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2, seq=FORGED)), FRESH)
    return machine


@pytest.mark.parametrize("count", [1, 2])
def test_old_messages_that_are_replayed_again_and_again_are_never_believed(count: int) -> None:
    peer = Peer()
    old = [peer.says(PASSIVE, epoch=2) for _ in range(count)]
    machine = passive_after_a_forged_number(peer)
    for number in range(400):
        machine.step(PeerMessage(old[number % count]), FRESH + 0.1 * number)
    assert machine.counters.peer_ignored[Ignored.STALE] == 400
    assert machine.peer.heard_at == FRESH


def test_late_messages_that_end_before_the_failover_timeout_are_never_believed() -> None:
    peer = Peer()
    late = [peer.says(BACKUP) for _ in range(40)]
    machine = passive_after_a_forged_number(peer)
    for burst, at in ((late[:10], 0.1), (late[10:20], 1.9), (late[20:30], 3.9), (late[30:], 10.0)):
        for message in burst:
            machine.step(PeerMessage(message), FRESH + at)
    assert machine.counters.peer_ignored[Ignored.STALE] == 40
    assert machine.state is PASSIVE


def test_messages_of_two_runs_are_not_one_streak() -> None:
    peer, guest = Peer(), Peer(node="guest")
    machine = passive_after_a_forged_number(peer)
    machine.step(PeerMessage(guest.says(ACTIVE, epoch=2, seq=FORGED)), FRESH)
    after = FRESH + TIMEOUT_S
    machine.step(Tick(), after - 0.5)
    for number in range(40):
        machine.step(
            PeerMessage((peer, guest)[number % 2].says(ACTIVE, epoch=2, seq=11 + number // 20)), after
        )
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2, seq=13)), after + 1.5)
    machine.step(PeerMessage(guest.says(ACTIVE, epoch=2, seq=14)), after + 2.5)
    assert machine.counters.peer_ignored[Ignored.STALE] == 42


# --- what a node tells about itself -----------------------------------------------------------------------


def test_the_status_tells_when_a_vote_could_succeed() -> None:
    machine = in_state(PASSIVE, peer=Peer(), epoch=8)
    status = machine.status(FRESH)
    assert (status.state, status.epoch, status.peer_state) == (4, 8, 3)
    assert (status.peer_age_ms, status.retry_after_ms) == (500, 1500)
    assert (status.heartbeat_ms, status.failover_timeout_ms) == (1000, 2000)
    status = machine.status(SILENT)
    assert (status.peer_state, status.retry_after_ms) == (0, 0)
    assert machine_of(Role.BACKUP).status(0.0).retry_after_ms == NEVER_MS
    assert machine_of().status(0.0).peer_age_ms == NEVER_MS
    assert in_state(ACTIVE, peer=Peer()).retry_after_s(FRESH) == 0.0
