"""The Binary Star machine of one node: every state and event, and what the table does not show."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bstar.errors import (
    ConfigurationError,
    DualActiveError,
    DualPassiveError,
    PairError,
    PeerMismatchError,
    RemoteProtocolError,
)
from bstar.star import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    Activated,
    Deactivated,
    EpochHeard,
    Fatal,
    Handover,
    HandoverRefused,
    Ignored,
    Leave,
    LinkLost,
    Output,
    PeerAsked,
    PeerGarbage,
    PeerLost,
    PeerMessage,
    PeerRefused,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
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
from bstar.star.peer import VERDICT_RETRY_S, VERDICT_TIMEOUT_S
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


def test_a_node_says_who_it_is_as_soon_as_its_timer_is_looked_at() -> None:
    """BST-S-01: code, and the period afterwards."""
    machine = machine_of(heartbeat_interval_s=1.0)
    assert machine.next_deadline() == 0.0
    [message] = published(machine.step(Tick(), 0.0))
    assert message.state == PRIMARY
    assert (message.pair, message.role, message.node) == ("test", "primary", "we")
    assert (message.heartbeat_ms, message.timeout_ms) == (1000, 2000)
    assert machine.next_deadline() == 1.0
    assert machine.step(Tick(), 0.999) == []
    assert [message.seq for message in published(machine.step(Tick(), 1.0))] == [2]


def test_whoever_subscribes_is_told_at_once() -> None:
    machine = machine_of()
    machine.step(Tick(), 0.0)
    assert [message.seq for message in published(machine.step(Subscription(), 0.1))] == [2]
    assert machine.next_deadline() == 1.1


def test_a_primary_alone_waits_one_expiry_and_then_for_a_vote() -> None:
    """BST-R-01."""
    machine = machine_of()
    machine.step(Tick(), 0.0)
    machine.step(Vote(), 1.9)
    assert machine.state is PRIMARY
    machine.step(Tick(), 1.95)
    assert machine.state is PRIMARY
    machine.step(Vote(), 2.0)
    assert machine.state is ACTIVE
    assert (machine.counters.votes, machine.counters.requests_refused) == (1, 1)


def test_a_backup_alone_never_serves() -> None:
    """BST-S-04, and scenario 5 of the published behaviour."""
    machine = machine_of(Role.BACKUP)
    for now in range(100):
        machine.step(Tick(), float(now))
        machine.step(Vote(), float(now))
    assert machine.state is BACKUP
    assert machine.retry_after_s(100.0) is None


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


def test_the_peer_is_dead_after_the_failover_timeout_and_not_before() -> None:
    """BST-S-02."""
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(Peer(Role.PRIMARY).says(ACTIVE, epoch=1)), 0.5)
    for now in (1.0, 2.0):
        machine.step(Tick(), now)
    assert machine.step(Vote(), 2.499) == []
    assert machine.step(Tick(), 2.499) == []
    assert machine.next_deadline() == 2.5
    [lost] = machine.step(Tick(), 2.5)
    assert lost == PeerLost(2.0)
    assert Activated in kinds(machine.step(Vote(), 2.5))


def broken(machine: StarMachine, now: float) -> None:
    """Its link to the peer, heard at 9.5, breaks."""
    assert machine.step(LinkLost(), now) == []


def test_a_peer_whose_endpoint_refuses_after_the_link_broke_is_dead_at_once() -> None:
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    assert kinds(machine.step(Vote(), FRESH)) == [], "a broken link alone is no death"
    silent_s = FRESH + 0.002 - (machine.peer.heard_at or 0.0)
    assert machine.step(PeerRefused(), FRESH + 0.002) == [PeerLost(silent_s, is_gone=True)]
    assert machine.peer.is_gone
    assert machine.counters.peers_gone == 1
    assert machine.retry_after_s(FRESH + 0.002) == 0.0
    assert machine.status(FRESH + 0.002).peer_state == 0
    assert Activated in kinds(machine.step(Vote(), FRESH + 0.002))


def test_a_refusal_alone_moves_nothing() -> None:
    """BST-S-04: without a vote nobody takes over."""
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    machine.step(PeerRefused(), FRESH)
    for tick in range(100):
        assert Activated not in kinds(machine.step(Tick(), FRESH + tick * 0.1))


def test_a_refusal_counts_only_after_a_link_that_had_worked() -> None:
    machine = in_state(PASSIVE)
    assert machine.step(PeerRefused(), FRESH) == []
    assert machine.step(Vote(), FRESH) == []

    lonely = machine_of(Role.PRIMARY)
    lonely.step(LinkLost(), 0.5)
    lonely.step(PeerRefused(), 0.5)
    assert lonely.step(Vote(), 1.0) == [], "a starting primary waits as long as ever"


def test_a_refusal_is_void_once_the_peer_is_heard_again() -> None:
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    machine.step(PeerMessage(Peer(node="restarted").says(ACTIVE, epoch=5)), FRESH + 0.01)
    assert machine.step(PeerRefused(), FRESH + 0.02) == []
    assert machine.step(Vote(), FRESH + 0.02) == []


def test_a_peer_that_was_gone_and_speaks_again_is_alive() -> None:
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    machine.step(PeerRefused(), FRESH)
    machine.step(PeerMessage(Peer(node="restarted").says(ACTIVE, epoch=5)), FRESH + 0.1)
    assert not machine.peer.is_gone
    assert machine.step(Vote(), FRESH + 0.2) == []


def test_a_refusal_from_before_a_stall_says_nothing() -> None:
    """Meanwhile the peer may have been started again, and have taken over."""
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    woken = FRESH + 10 * TIMEOUT_S
    machine.step(Stall(10 * TIMEOUT_S), woken)
    assert machine.step(PeerRefused(), woken) == []
    assert machine.step(Vote(), woken + 0.9 * TIMEOUT_S) == []


def test_a_short_stall_does_not_bring_a_dead_peer_back() -> None:
    machine = in_state(PASSIVE)
    broken(machine, FRESH)
    machine.step(PeerRefused(), FRESH)
    machine.step(Stall(0.5), FRESH + 0.5)
    assert Activated in kinds(machine.step(Vote(), FRESH + 0.5))


def test_clients_that_ask_between_the_break_and_the_verdict_are_told_to_ask_again_soon() -> None:
    machine = in_state(PASSIVE)
    usual_s = machine.retry_after_s(FRESH)
    assert usual_s is not None
    assert usual_s > 1.0
    broken(machine, FRESH)
    assert machine.retry_after_s(FRESH) == VERDICT_RETRY_S
    assert machine.status(FRESH).retry_after_ms == 20
    no_verdict = FRESH + VERDICT_TIMEOUT_S
    assert machine.retry_after_s(no_verdict) == pytest.approx(usual_s - VERDICT_TIMEOUT_S)


def test_an_active_node_whose_peer_is_gone_serves_on_and_need_not_wait_for_it_to_leave() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    broken(machine, FRESH)
    machine.step(PeerRefused(), FRESH)
    assert machine.is_active
    [refused] = machine.step(Handover(), FRESH)
    assert refused == HandoverRefused("the peer is silent: start it first")
    machine.step(Leave(), FRESH)
    assert machine.has_left(FRESH)


def test_silence_alone_moves_nothing() -> None:
    """BST-S-04: without a vote nobody takes over."""
    machine = in_state(PASSIVE)
    for tick in range(100):
        machine.step(Tick(), FRESH + tick)
    assert machine.state is PASSIVE


def test_an_active_node_never_steps_down_because_its_peer_is_silent_or_restarts() -> None:
    """BST-S-05."""
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    for tick in range(20):
        machine.step(Tick(), FRESH + tick / 2)
    assert machine.state is ACTIVE
    for word in (BACKUP, PASSIVE):
        machine.step(PeerMessage(peer.says(word)), FRESH + 10)
    assert machine.state is ACTIVE


def test_a_peer_is_seen_once_lost_once_and_seen_again() -> None:
    peer = Peer()
    machine = machine_of()
    machine.step(Tick(), 0.0)
    assert PeerSeen(PASSIVE, "they") in machine.step(PeerMessage(peer.says(PASSIVE)), 0.1)
    assert PeerSeen not in kinds(machine.step(PeerMessage(peer.says(PASSIVE)), 0.2))
    machine.step(Tick(), 1.0)
    assert PeerLost in kinds(machine.step(Tick(), 2.2))
    assert PeerLost not in kinds(machine.step(Tick(), 3.2))
    assert PeerSeen in kinds(machine.step(PeerMessage(peer.says(PASSIVE)), 3.6))


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


def test_every_transition_is_published_at_once() -> None:
    """BST-R-05."""
    peer = Peer()
    machine = machine_of()
    machine.step(Tick(), 0.0)
    outputs = machine.step(PeerMessage(peer.says(BACKUP)), 0.3)
    assert [message.state for message in published(outputs)] == [ACTIVE]
    outputs = machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), 0.4)
    assert [message.state for message in published(outputs)] == [PASSIVE]


def test_the_epoch_is_kept_before_anything_depends_on_it() -> None:
    outputs = machine_of().step(PeerMessage(Peer().says(BACKUP)), 0.0)
    assert kinds(outputs) == [PeerSeen, PersistEpoch, StateChanged, Publish, Activated]


def test_a_node_stops_serving_before_it_says_so() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    assert kinds(machine.step(Handover(), FRESH)) == [StateChanged, Deactivated, Publish]


def test_transitions_are_counted() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Handover(), FRESH)
    assert machine.counters.transitions == {(PRIMARY, PASSIVE): 1, (PASSIVE, ACTIVE): 1, (ACTIVE, PASSIVE): 1}


# --- epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "seen", "epoch"),
    [
        (Role.PRIMARY, 0, 1),
        (Role.PRIMARY, 1, 3),
        (Role.PRIMARY, 2, 3),
        (Role.BACKUP, 0, 2),
        (Role.BACKUP, 1, 2),
        (Role.BACKUP, 2, 4),
    ],
)
def test_an_activation_takes_the_next_epoch_of_its_role(role: Role, seen: int, epoch: int) -> None:
    machine = machine_of(role, epoch=seen)
    peer = Peer(role.peer)
    machine.step(PeerMessage(peer.says(ACTIVE)), 0.0)
    machine.step(PeerMessage(peer.says(BACKUP if role is Role.PRIMARY else PRIMARY)), 0.0)
    assert machine.epoch == machine.epochs.seen == epoch


def test_an_epoch_heard_from_the_peer_is_exceeded() -> None:
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(Peer(Role.PRIMARY).says(ACTIVE, epoch=41)), 0.0)
    machine.publisher.published_at = 2.0
    outputs = machine.step(Vote(), 2.0)
    assert [output.epoch for output in outputs if isinstance(output, Activated)] == [42]


def test_a_learned_epoch_in_which_nobody_serves_is_exceeded() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    outputs = machine.step(EpochHeard(7), FRESH)
    assert machine.is_active
    assert machine.epoch == 9
    assert kinds(outputs) == [PersistEpoch, Publish, Activated]


def test_a_learned_epoch_of_the_peer_is_exceeded_when_the_peer_answers_that_it_does_not_serve() -> None:
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    outputs = machine.step(EpochHeard(6), FRESH)
    assert machine.state is PASSIVE
    assert kinds(outputs) == [StateChanged, Deactivated, PeerAsked, Publish]
    (question,) = [output.message.asks for output in outputs if isinstance(output, Publish)]
    machine.step(PeerMessage(peer.says(PASSIVE, answers=question)), FRESH + 0.01)
    assert machine.is_active
    assert machine.epoch == 7


def test_an_own_epoch_of_a_run_long_gone_is_exceeded_though_the_peer_is_silent() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.publisher.published_at = SILENT
    machine.step(EpochHeard(9), SILENT)
    assert machine.is_active
    assert machine.epoch == 11


def test_a_learned_epoch_in_which_the_silent_peer_may_serve_is_respected() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.publisher.published_at = SILENT
    outputs = machine.step(EpochHeard(6), SILENT)
    assert machine.state is PASSIVE
    assert machine.questions.asking
    assert kinds(outputs) == [StateChanged, Deactivated, PeerAsked, Publish]
    # If it was only a memory, one timeout and a vote bring us back, above it.
    machine.step(Tick(), SILENT + 1)
    machine.step(Vote(), SILENT + 1.9)
    assert not machine.is_active
    machine.step(Vote(), SILENT + 2)
    assert machine.epoch == 7


def test_a_node_that_was_cut_off_does_not_take_the_role_back_because_it_hears_a_worker_first() -> None:
    """The peer could not hear us and took over, a moment after its last word, PASSIVE, had reached us. A
    worker's word of the new epoch comes before the peer's.
    """
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    now = FRESH + 0.5
    machine.step(PeerMessage(peer.says(PASSIVE)), now)
    machine.step(EpochHeard(6), now)
    assert machine.state is PASSIVE
    assert machine.questions.asking
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=6)), now + 0.01)
    assert machine.state is PASSIVE
    assert machine.epoch == 1


def test_an_epoch_learned_while_passive_is_remembered_for_the_next_activation() -> None:
    peer = Peer()
    machine = in_state(PASSIVE, peer=peer)
    assert machine.step(EpochHeard(100), FRESH) == []
    machine.step(PeerMessage(peer.says(BACKUP)), FRESH)
    assert machine.epoch == 101


def test_lower_epochs_teach_nothing() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    assert machine.step(EpochHeard(machine.epoch), FRESH) == []
    assert machine.step(EpochHeard(0), FRESH) == []


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, 2**64, EPOCH_STEP_MAX + 2])
def test_nobody_can_use_the_epochs_up(epoch: int) -> None:
    machine = in_state(ACTIVE, peer=Peer())
    assert machine.step(EpochHeard(epoch), FRESH) == []
    assert machine.epochs.seen == 1
    assert machine.epochs.ignored == 1


def test_a_peer_with_an_impossible_epoch_is_ignored() -> None:
    machine = in_state(PASSIVE, peer=(peer := Peer()))
    machine.step(PeerMessage(peer.says(BACKUP, epoch=EPOCH_MAX + 1)), FRESH)
    assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.EPOCH] == 1


def test_a_peer_with_a_long_history_is_believed() -> None:
    """A node that lost its disk takes the next epoch above those that its peer took meanwhile."""
    machine = machine_of()
    machine.step(PeerMessage(Peer().says(ACTIVE, epoch=EPOCH_STEP_MAX * 10)), 0.0)
    assert machine.state is PASSIVE
    assert machine.epochs.seen == EPOCH_STEP_MAX * 10


# --- both active ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "is_yielding"), [(Role.PRIMARY, False), (Role.BACKUP, True)])
def test_on_equal_or_unknown_epochs_the_primary_wins(role: Role, is_yielding: bool) -> None:
    for message in (bare(ACTIVE), Peer(role.peer).says(ACTIVE, epoch=3)):
        machine = in_state(ACTIVE, role)
        machine.epochs.own = machine.epochs.seen = 3
        machine.step(PeerMessage(message), FRESH)
        assert machine.state is (PASSIVE if is_yielding else ACTIVE)


def test_the_policy_exit_ends_the_node_with_a_status_of_its_own() -> None:
    """BST-R-04."""
    machine = in_state(ACTIVE, peer=(peer := Peer()), on_dual_active="exit")
    outputs = machine.step(PeerMessage(peer.says(ACTIVE)), FRESH)
    assert kinds(outputs) == [StateChanged, Deactivated, Fatal]
    assert error_of(outputs).exit_code == 70
    assert "both nodes are active" in str(error_of(outputs))


def test_both_passive_ends_the_node_with_another_status() -> None:
    """BST-R-04."""
    outputs = in_state(PASSIVE).step(PeerMessage(bare(PASSIVE)), FRESH)
    assert kinds(outputs) == [StateChanged, Fatal]
    assert error_of(outputs).exit_code == 71
    assert "both nodes are passive" in str(error_of(outputs))


def test_a_node_in_error_does_nothing_more() -> None:
    machine = in_state(ERROR)
    peer = Peer()
    assert machine.next_deadline() is None
    assert not machine.is_active
    for outputs in (
        machine.step(Tick(), 100.0),
        machine.step(PeerMessage(peer.says(BACKUP, asks=3)), 100.0),
        machine.step(PeerGarbage(RemoteProtocolError("peer-state", "x")), 100.0),
        machine.step(Vote(), 100.0),
        machine.step(Stall(50.0), 100.0),
        machine.step(EpochHeard(5), 100.0),
        machine.step(Subscription(), 100.0),
        machine.step(Leave(), 100.0),
    ):
        assert outputs == []
    assert kinds(machine.step(Handover(), 100.0)) == [HandoverRefused]
    assert machine.has_left(100.0)
    assert machine.status(100.0).state == 5


# --- stalls -----------------------------------------------------------------------------------------------


def stalled_machine(gap_s: float = 5.0, *, peer: Peer | None = None) -> tuple[StarMachine, float, int]:
    machine = in_state(ACTIVE, peer=peer or Peer())
    now = FRESH + gap_s
    outputs = machine.step(Stall(gap_s), now)
    [message] = published(outputs)
    return machine, now, message.asks


def test_a_node_that_was_away_for_the_failover_timeout_steps_down_and_asks() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    outputs = machine.step(Stall(1.5), FRESH + 1.5)
    assert kinds(outputs) == [StateChanged, Deactivated, PeerAsked, Publish]
    assert published(outputs)[0].asks > 0
    assert machine.counters.stalls == 1


def test_what_counts_is_the_age_of_our_last_publication() -> None:
    """The peer's patience began with our last message, not with the beginning of our pause."""
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Stall(1.4), FRESH + 1.4)
    assert machine.is_active
    machine.step(Tick(), FRESH + 1.4)
    machine.step(Stall(1.9), FRESH + 3.3)
    assert machine.is_active
    machine.step(Stall(0.1), FRESH + 3.4)
    assert not machine.is_active


@pytest.mark.parametrize("entry", ["receive", "handle_timer", "handover", "learn_epoch", "subscribed"])
def test_a_stall_is_noticed_whoever_calls_first(entry: str) -> None:
    machine = in_state(ACTIVE, peer=(peer := Peer()))
    now = FRESH + 3
    outputs = {
        "receive": lambda: machine.step(PeerMessage(peer.says(PASSIVE)), now),
        "handle_timer": lambda: machine.step(Tick(), now),
        "handover": lambda: machine.step(Handover(), now),
        "learn_epoch": lambda: machine.step(EpochHeard(50), now),
        "subscribed": lambda: machine.step(Subscription(), now),
    }[entry]()
    assert kinds(outputs)[:4] == [StateChanged, Deactivated, PeerAsked, Publish]
    assert not machine.is_active


def test_backlog_from_before_the_question_counts_for_nothing() -> None:
    peer = Peer()
    machine, now, _ = stalled_machine(peer=peer)
    for word in (PASSIVE, BACKUP, PASSIVE):
        machine.step(PeerMessage(peer.says(word)), now)
        assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.BACKLOG] == 3
    assert machine.peer.expires_at == now + TIMEOUT_S


def test_an_answer_brings_the_role_back_at_once() -> None:
    peer = Peer()
    machine, now, token = stalled_machine(peer=peer)
    machine.step(PeerMessage(peer.says(PASSIVE, answers=token)), now + 0.01)
    assert machine.is_active
    assert machine.epoch == 3


def test_a_restarted_peer_that_answers_brings_the_role_back() -> None:
    machine, now, token = stalled_machine()
    machine.step(PeerMessage(Peer(node="a new run").says(BACKUP, answers=token)), now + 0.01)
    assert machine.is_active


def test_a_peer_that_took_over_ends_the_question() -> None:
    peer = Peer()
    machine, now, _ = stalled_machine(peer=peer)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), now)
    assert machine.state is PASSIVE
    assert not machine.questions.asking


def test_the_memory_of_a_peer_that_was_active_below_us_does_not_end_the_question() -> None:
    """It may have yielded to us since, and if both settled for passive nobody would serve."""
    peer = Peer()
    machine, now, token = stalled_machine(peer=peer)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=0)), now + 0.1)
    assert machine.questions.asking
    # But while it says that it serves no vote counts here.
    machine.step(Tick(), now + 1.0)
    machine.step(Vote(), now + 2.05)
    assert not machine.is_active
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=0, answers=token)), now + 2.06)
    assert machine.is_active


def test_a_stalled_node_whose_peer_is_dead_serves_again_after_one_timeout_and_a_vote() -> None:
    machine, now, _ = stalled_machine()
    machine.step(Tick(), now + 1.0)
    machine.step(Vote(), now + 1.999)
    assert machine.counters.votes == 0
    machine.step(Vote(), now + 2.0)
    assert machine.counters.votes == 1
    assert machine.is_active
    assert not machine.questions.asking


def test_a_peer_that_was_only_asked_is_not_heard() -> None:
    """It counts as there until its answer is overdue, but whoever looks is told when it was heard."""
    peer = Peer()
    machine, now, token = stalled_machine(peer=peer)
    assert now < machine.peer.expires_at
    assert not machine.peer.is_heard(now)
    machine.step(PeerMessage(peer.says(PASSIVE, answers=token)), now + 0.01)
    assert machine.peer.is_heard(now + 0.01)
    assert machine.peer.is_heard(now + 0.009 + TIMEOUT_S)
    assert not machine.peer.is_heard(now + 0.01 + TIMEOUT_S)


def test_a_peer_that_was_offered_the_role_is_heard_no_longer_than_it_spoke() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Handover(), FRESH + 1.0)
    assert machine.peer.expires_at == FRESH + 1.0 + TIMEOUT_S
    assert machine.peer.is_heard(FRESH + 1.0)
    assert not machine.peer.is_heard(SILENT)


def test_a_peer_that_has_left_or_is_gone_is_not_heard() -> None:
    machine = in_state(ACTIVE, peer=(peer := Peer()))
    machine.step(PeerMessage(peer.says(PASSIVE, leaving=True)), FRESH)
    assert not machine.peer.is_heard(FRESH)
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(LinkLost(), FRESH)
    assert machine.peer.is_heard(FRESH)
    machine.step(PeerRefused(), FRESH)
    assert not machine.peer.is_heard(FRESH)
    assert not machine_of().peer.is_heard(0.0)


def test_an_answer_to_an_older_question_is_no_answer() -> None:
    peer = Peer()
    machine, now, first = stalled_machine(peer=peer)
    later = now + 4.0
    [message] = published(machine.step(Stall(4.0), later))
    assert message.asks == first + 1
    machine.step(PeerMessage(peer.says(PASSIVE, answers=first)), later)
    assert not machine.is_active
    machine.step(PeerMessage(peer.says(PASSIVE, answers=message.asks)), later)
    assert machine.is_active


def test_questions_of_different_runs_have_different_tokens() -> None:
    tokens = set()
    for node in ("run-1", "run-2"):
        machine = StarMachine(settings(), node=node, epoch=0, now=0.0)
        machine.step(PeerMessage(Peer().says(BACKUP)), 0.0)
        tokens.add(published(machine.step(Stall(9.0), 9.0))[0].asks)
    assert len(tokens) == 2


@pytest.mark.parametrize(("theirs", "is_resuming"), [(2, True), (6, False)])
def test_when_both_ask_the_one_that_was_active_last_resumes(theirs: int, is_resuming: bool) -> None:
    """BST-S-05: two nodes that slept together must not have moved the role when they wake."""
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    machine.step(EpochHeard(3), FRESH)
    assert machine.epoch == 5
    now = FRESH + 60
    token = published(machine.step(Stall(60.0), now))[0].asks
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=theirs, asks=99, answers=token)), now)
    assert machine.is_active is is_resuming


def test_time_in_which_we_did_not_listen_is_not_the_peers_silence() -> None:
    machine = in_state(PASSIVE, peer=Peer())
    machine.step(Subscription(), FRESH)
    machine.step(Stall(1.6), FRESH + 1.6)
    assert machine.step(Vote(), FRESH + 1.6) == []
    assert machine.peer.expires_at == FRESH - 0.5 + TIMEOUT_S + 1.6


def test_a_pause_does_not_make_a_dead_peer_alive() -> None:
    machine = in_state(PASSIVE, peer=Peer())
    for tick in range(10):
        machine.step(Tick(), FRESH + tick)
    machine.step(Stall(0.5), FRESH + 10.0)
    assert Activated in kinds(machine.step(Vote(), FRESH + 10.0))


def test_a_passive_node_that_was_away_does_not_trust_old_news_either() -> None:
    """A primary that was starting when we fell asleep may serve by now."""
    peer = Peer(Role.PRIMARY)
    machine = in_state(PASSIVE, Role.BACKUP, peer=peer)
    token = published(machine.step(Stall(5.0), FRESH + 5.0))[0].asks
    machine.step(PeerMessage(peer.says(PRIMARY)), FRESH + 5.0)
    assert machine.state is PASSIVE
    machine.step(PeerMessage(peer.says(PRIMARY, answers=token)), FRESH + 5.0)
    assert machine.state is ACTIVE


# --- a deaf peer ------------------------------------------------------------------------------------------


def test_an_active_node_whose_active_peer_cannot_hear_it_steps_down() -> None:
    """Of two that serve one must stop; the one that can hear is the one that can know."""
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    machine.step(EpochHeard(7), FRESH)
    at = FRESH
    while at < FRESH + TIMEOUT_S:
        machine.step(Tick(), at)
        machine.step(PeerMessage(peer.says(ACTIVE, epoch=4)), at)
        assert machine.is_active
        at += 0.5
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=4)), at)
    assert machine.state is PASSIVE
    assert machine.questions.asking


def test_a_rival_that_yields_and_comes_back_is_not_deaf() -> None:
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    machine.step(EpochHeard(7), FRESH)
    for tick in range(8):
        at = FRESH + tick / 2
        machine.step(Tick(), at)
        machine.step(PeerMessage(peer.says(ACTIVE if tick % 2 else PASSIVE, epoch=4)), at)
    assert machine.is_active


# --- handover and leaving ---------------------------------------------------------------------------------


def test_a_handover_is_offered_and_ends_when_it_is_taken() -> None:
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    [message] = published(machine.step(Handover(), FRESH))
    assert (message.state, message.released, message.leaving) == (PASSIVE, True, False)
    machine.step(PeerMessage(peer.says(PASSIVE)), FRESH + 0.1)
    assert machine.state is PASSIVE
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 0.2)
    [message] = published(machine.step(Subscription(), FRESH + 0.3))
    assert not message.released


def test_the_peer_takes_an_offered_role_without_a_vote() -> None:
    peer = Peer(Role.PRIMARY)
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=1)), 0.0)
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=1, released=True)), 0.5)
    assert machine.is_active
    assert machine.epoch == 2


def test_an_offer_from_before_our_own_activation_is_void() -> None:
    """The peer repeats it until it has read that we took it; we may have handed the role back by then."""
    peer = Peer(Role.PRIMARY)
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=1)), 0.0)
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=1, released=True)), 0.1)
    machine.step(Handover(), 0.2)
    assert machine.state is PASSIVE
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=1, released=True)), 0.3)
    assert machine.state is PASSIVE


def test_an_offer_that_was_taken_is_over_though_we_missed_the_moment() -> None:
    """The peer's epoch shows that it has been active since; now neither serves, and somebody must ask."""
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    machine.step(Handover(), FRESH)
    outputs = machine.step(PeerMessage(peer.says(PASSIVE, epoch=2)), FRESH + 0.5)
    assert PeerAsked in kinds(outputs)
    [message] = published(outputs)
    assert message.asks
    assert not message.released


def test_a_node_whose_offer_nobody_takes_serves_again_after_silence_and_a_vote() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Handover(), FRESH)
    machine.step(Tick(), FRESH + 1)
    machine.step(Vote(), FRESH + 1.9)
    assert not machine.is_active
    machine.step(Vote(), FRESH + 2.0)
    assert machine.is_active


def test_an_offer_to_a_peer_last_heard_a_while_ago_is_not_taken_back_while_the_answer_travels() -> None:
    machine = in_state(ACTIVE, peer=(peer := Peer()))
    machine.step(Handover(), SILENT - 0.01)
    machine.step(Vote(), SILENT)
    assert machine.state is PASSIVE
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), SILENT + 0.05)
    assert machine.state is PASSIVE


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda: in_state(PASSIVE, peer=Peer()), "ask the active node"),
        (lambda: in_state(ACTIVE), "published"),
        (lambda: in_state(ACTIVE, peer=Peer()), "silent"),
    ],
)
def test_a_handover_that_cannot_succeed_is_refused(prepare: object, text: str) -> None:
    machine = prepare()  # type: ignore[operator]
    now = SILENT if text == "silent" else FRESH
    machine.publisher.published_at = now
    state = machine.state
    [refused] = [o for o in machine.step(Handover(), now) if isinstance(o, HandoverRefused)]
    assert text in refused.text
    assert machine.state is state


def test_a_handover_to_a_peer_that_is_just_starting_is_refused() -> None:
    machine = in_state(ACTIVE, peer=(peer := Peer()))
    machine.step(PeerMessage(peer.says(BACKUP)), FRESH)
    [refused] = machine.step(Handover(), FRESH)
    assert isinstance(refused, HandoverRefused)
    assert "try again" in refused.text


def test_an_active_node_that_leaves_gives_the_role_up_and_goes_on_saying_so() -> None:
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    outputs = machine.step(Leave(), FRESH)
    [message] = published(outputs)
    assert (message.state, message.released, message.leaving) == (PASSIVE, True, True)
    assert Deactivated in kinds(outputs)
    assert machine.step(Leave(), FRESH) == []
    assert not machine.has_left(FRESH)
    [message] = published(machine.step(Tick(), FRESH + 1.0))
    assert message.leaving
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 1.1)
    assert machine.has_left(FRESH + 1.1)


def test_nothing_moves_a_node_that_leaves() -> None:
    peer = Peer()
    machine = in_state(ACTIVE, peer=peer)
    machine.step(Leave(), FRESH)
    machine.step(PeerMessage(peer.says(BACKUP)), FRESH)
    machine.step(PeerMessage(peer.says(PASSIVE)), FRESH)
    machine.step(EpochHeard(50), FRESH)
    machine.step(Stall(30.0), FRESH + 30)
    machine.step(Vote(), FRESH + 30)
    assert machine.state is PASSIVE
    assert machine.retry_after_s(FRESH + 30) is None
    assert kinds(machine.step(Handover(), FRESH + 30)) == [HandoverRefused]


def test_a_vote_does_not_move_a_node_that_leaves_although_its_peer_is_silent() -> None:
    machine = in_state(PASSIVE, peer=Peer())
    machine.step(Leave(), FRESH)
    machine.step(Vote(), SILENT + 1)
    assert machine.state is PASSIVE
    assert machine.counters.requests_refused == 1


def test_a_node_that_leaves_does_not_wait_for_a_silent_peer() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    machine.step(Leave(), FRESH)
    assert not machine.has_left(SILENT - 0.51)
    assert machine.has_left(SILENT - 0.5)


def test_a_passive_node_that_leaves_falls_silent() -> None:
    machine = in_state(PASSIVE, peer=Peer())
    assert machine.step(Leave(), FRESH) == []
    assert machine.has_left(FRESH)
    assert published(machine.step(Tick(), FRESH + 1.2)) == []
    assert machine.step(Subscription(), FRESH + 1.3) == []


def test_a_starting_node_takes_the_role_of_one_that_leaves() -> None:
    """Otherwise a backup that meets its primary in this moment would wait for ever."""
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(Peer(Role.PRIMARY).says(PASSIVE, epoch=5, released=True, leaving=True)), 0.1)
    assert machine.is_active
    assert machine.epoch == 6


def test_a_starting_node_does_not_take_a_role_that_is_only_handed_over() -> None:
    """The peer learns from our BACKUP that nobody is there to take it, and resumes."""
    machine = machine_of(Role.BACKUP)
    machine.step(PeerMessage(Peer(Role.PRIMARY).says(PASSIVE, epoch=5, released=True)), 0.1)
    assert machine.state is BACKUP


def test_the_votes_of_clients_need_not_wait_for_a_peer_that_said_it_leaves() -> None:
    machine = in_state(PASSIVE, peer=(peer := Peer()))
    machine.step(PeerMessage(peer.says(PASSIVE, leaving=True)), FRESH)
    machine.step(Vote(), FRESH)
    assert machine.is_active


def test_a_goodbye_that_queued_up_while_the_node_was_away_does_not_make_votes_count_at_once() -> None:
    """The peer may have come back meanwhile, as another run that is yet to be heard, and serve."""
    peer = Peer()
    machine = in_state(PASSIVE, peer=peer)
    machine.step(Stall(60.0), FRESH + 60)
    machine.step(PeerMessage(peer.says(PASSIVE, epoch=1, released=True, leaving=True)), FRESH + 60)
    machine.step(Vote(), FRESH + 60)
    assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.BACKLOG] == 1
    machine.step(Tick(), FRESH + 61)
    machine.step(Vote(), FRESH + 62)
    assert machine.is_active, "nobody has answered for a failover timeout"


# --- strangers --------------------------------------------------------------------------------------------

STRANGE = [
    ({"pair": "other"}, "pair"),
    ({"role": "primary"}, "role"),
    ({"heartbeat_ms": 999}, "heartbeat_interval_s"),
    ({"timeout_ms": 3000}, "failover_timeout_s"),
    ({"node": "we"}, "hears itself"),
]


@pytest.mark.parametrize(("changes", "text"), STRANGE)
def test_a_node_that_starts_ends_when_its_peer_cannot_be_one(changes: dict[str, Any], text: str) -> None:
    """BST-S-06, BST-S-01 (timing equal on both sides)."""
    machine = machine_of()
    outputs = machine.step(PeerMessage(Peer().says(BACKUP, **changes)), 0.1)
    error = error_of(outputs)
    assert isinstance(error, PeerMismatchError)
    assert error.exit_code == 72
    assert text in str(error)


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


@pytest.mark.parametrize(
    ("epoch", "node", "state"), [(0, "z", ACTIVE), (1, "a", ACTIVE), (1, "z", ERROR), (2, "a", ERROR)]
)
def test_of_two_active_strangers_the_lower_claim_ends(epoch: int, node: str, state: State) -> None:
    machine = in_state(ACTIVE, peer=Peer())
    assert machine.epoch == 1
    machine.step(PeerMessage(Peer(node=node).says(ACTIVE, pair="other", epoch=epoch)), FRESH)
    assert machine.state is state


def test_a_foreign_version_is_a_stranger() -> None:
    error = RemoteProtocolError("peer-version", "the peer speaks b'BSTP99'")
    assert isinstance(error_of(machine_of().step(PeerGarbage(error), 0.1)), PeerMismatchError)
    machine = in_state(ACTIVE, peer=Peer())
    assert kinds(machine.step(PeerGarbage(error), FRESH)) == [PeerRejected]
    assert machine.is_active


def test_reports_about_strangers_do_not_pile_up() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    for number in range(1000):
        machine.step(PeerMessage(Peer(node=f"stranger {number}").says(BACKUP, pair="x")), FRESH)
    assert len(machine.peer.strangers.reported) <= 16


# --- late messages ----------------------------------------------------------------------------------------


def test_a_late_message_is_ignored() -> None:
    peer = Peer()
    machine = in_state(PASSIVE, peer=peer)
    late = peer.says(BACKUP)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH)
    assert machine.step(PeerMessage(late), FRESH) == []
    assert machine.step(PeerMessage(late), FRESH + 0.1) == []
    assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.STALE] == 2


def test_late_messages_of_an_earlier_run_are_ignored_while_the_new_run_lives() -> None:
    old, new = Peer(node="run-1"), Peer(node="run-2")
    machine = in_state(PASSIVE, peer=old)
    machine.step(PeerMessage(new.says(ACTIVE, epoch=2)), FRESH)
    machine.step(PeerMessage(old.says(BACKUP)), FRESH)
    assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.STALE] == 1


def test_an_earlier_run_is_heard_again_when_the_later_one_was_a_passing_guest() -> None:
    old, guest = Peer(node="run-1"), Peer(node="guest")
    machine = in_state(PASSIVE, peer=old)
    machine.step(PeerMessage(guest.says(ACTIVE, epoch=2)), FRESH)
    for at in (FRESH + 1, FRESH + 2):
        machine.step(Tick(), at)
    machine.step(PeerMessage(old.says(ACTIVE, epoch=2)), FRESH + 2)
    assert machine.peer.expires_at == FRESH + 2 + TIMEOUT_S
    machine.step(PeerMessage(guest.says(BACKUP)), FRESH + 2.1)
    assert machine.state is PASSIVE


def test_an_earlier_run_that_is_heard_again_does_not_repeat_itself() -> None:
    old, guest = Peer(node="run-1"), Peer(node="guest")
    machine = in_state(PASSIVE, peer=old)
    late = old.says(BACKUP)
    machine.step(PeerMessage(old.says(ACTIVE, epoch=2)), FRESH)
    machine.step(PeerMessage(guest.says(ACTIVE, epoch=2)), FRESH)
    machine.step(Tick(), FRESH + 1)
    machine.step(PeerMessage(late), FRESH + 2)
    assert machine.state is PASSIVE
    assert machine.counters.peer_ignored[Ignored.STALE] == 1


def test_a_late_word_of_a_run_never_met_does_not_hide_the_run_that_serves() -> None:
    """Else the node counts the peer as silent that speaks all the time, and serves beside it."""
    unmet, peer = Peer(node="run-1"), Peer(node="run-2")
    machine = in_state(PASSIVE, peer=peer)
    machine.step(PeerMessage(unmet.says(ACTIVE, epoch=2)), FRESH)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=4)), FRESH + 1)
    assert machine.peer.expires_at == FRESH + 1 + TIMEOUT_S
    assert machine.epochs.seen == 4


def test_a_node_that_a_late_word_of_a_run_never_met_made_active_yields_to_the_run_that_serves() -> None:
    unmet, peer = Peer(Role.PRIMARY, "run-1"), Peer(Role.PRIMARY, "run-2")
    machine = in_state(PASSIVE, peer=peer, role=Role.BACKUP)
    machine.step(PeerMessage(unmet.says(PRIMARY)), FRESH)
    assert machine.is_active
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=machine.epoch + 1)), FRESH)
    assert machine.state is PASSIVE


def test_a_peer_that_restarts_in_a_loop_does_not_grow_our_memory() -> None:
    machine = in_state(ACTIVE, peer=Peer())
    for number in range(1000):
        machine.step(PeerMessage(Peer(node=f"run {number}").says(BACKUP)), FRESH)
    assert len(machine.peer.runs.past) <= 16


def test_a_new_run_of_the_peer_is_not_told_the_answer_to_its_predecessor() -> None:
    old, new = Peer(node="run-1"), Peer(node="run-2")
    machine = in_state(PASSIVE, peer=old)
    assert published(machine.step(PeerMessage(old.says(ACTIVE, asks=5)), FRESH))[0].answers == 5
    machine.step(PeerMessage(new.says(ACTIVE)), FRESH)
    assert published(machine.step(Subscription(), FRESH))[0].answers == 0


# --- a number that the peer never reached -------------------------------------------------------------------

FORGED = 2**62


def passive_after_a_forged_number(peer: Peer) -> StarMachine:
    """The peer serves in epoch 2 and has sent more than ten messages when somebody forges one of its run."""
    peer.seq = 10
    machine = in_state(PASSIVE, peer=peer)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2, seq=FORGED)), FRESH)
    return machine


def test_after_a_forged_number_the_peer_is_believed_again_after_a_failover_timeout() -> None:
    peer = Peer()
    machine = passive_after_a_forged_number(peer)
    for at in (0.5, 1.5):
        machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + at)
        assert machine.peer.heard_at == FRESH
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 2.5)
    assert machine.peer.expires_at == FRESH + 2.5 + TIMEOUT_S
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 3.5)
    assert machine.peer.expires_at == FRESH + 3.5 + TIMEOUT_S
    assert machine.counters.peer_ignored[Ignored.STALE] == 2
    assert machine.peer.runs.streak is None


def test_repetitions_do_not_keep_the_peer_from_being_believed_again() -> None:
    peer = Peer()
    machine = passive_after_a_forged_number(peer)
    first, second = peer.says(ACTIVE, epoch=2), peer.says(ACTIVE, epoch=2)
    for message, at in ((first, 0.5), (second, 1.5), (first, 1.6), (second, 1.7)):
        machine.step(PeerMessage(message), FRESH + at)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 2.5)
    assert machine.peer.expires_at == FRESH + 2.5 + TIMEOUT_S


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


def test_a_young_message_ends_a_streak_of_late_ones() -> None:
    peer = Peer()
    late = [peer.says(BACKUP) for _ in range(4)]
    machine = in_state(PASSIVE, peer=peer)
    for number, message in enumerate(late):
        machine.step(PeerMessage(message), FRESH + number)
        machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + number + 0.1)
    assert machine.counters.peer_ignored[Ignored.STALE] == 4
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


def test_a_run_with_a_forged_number_is_believed_again_though_another_forged_run_came_after_it() -> None:
    peer = Peer()
    machine = passive_after_a_forged_number(peer)
    machine.step(PeerMessage(Peer(node="guest").says(ACTIVE, epoch=2, seq=FORGED)), FRESH)
    for at in (1.0, 2.0):
        machine.step(Tick(), FRESH + at)
        machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + at)
        assert machine.peer.heard_at == FRESH
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=2)), FRESH + 3.0)
    assert machine.peer.expires_at == FRESH + 3.0 + TIMEOUT_S


# --- a published peer -------------------------------------------------------------------------------------


def test_a_passive_published_peer_is_never_told_that_we_are_passive() -> None:
    """It would take it for the end of the pair and exit; in silence it takes over with the next vote."""
    for end in ("stall", "leave"):
        machine = in_state(ACTIVE)
        assert machine.peer.state is PASSIVE
        outputs = machine.step(Stall(9.0), FRESH + 9) if end == "stall" else machine.step(Leave(), FRESH)
        assert Deactivated in kinds(outputs)
        assert published(outputs) == []
        assert machine.has_left(FRESH) is (end == "leave")


def test_a_stalled_node_with_a_published_peer_yields_to_one_that_took_over() -> None:
    machine = in_state(ACTIVE)
    machine.step(Stall(9.0), FRESH + 9)
    machine.step(PeerMessage(bare(PASSIVE)), FRESH + 9)
    assert machine.peer.state is PASSIVE
    outputs = machine.step(PeerMessage(bare(ACTIVE)), FRESH + 9.1)
    assert not machine.questions.asking
    assert machine.state is PASSIVE
    assert [message.state for message in published(outputs + machine.step(Tick(), FRESH + 10.2))] == [PASSIVE]


def test_a_stalled_node_with_a_passive_published_peer_serves_after_one_timeout_and_a_vote() -> None:
    machine = in_state(ACTIVE)
    machine.step(Stall(9.0), FRESH + 9)
    for tick in (0.0, 1.0, 1.9):
        machine.step(PeerMessage(bare(PASSIVE)), FRESH + 9 + tick)
        machine.step(Tick(), FRESH + 9 + tick)
    machine.step(Vote(), FRESH + 11)
    assert machine.is_active


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
