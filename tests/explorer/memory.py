"""A production ``StarMachine`` as a value: what it remembers, and what it does next with that.

A machine is copied by its plain fields, never as an object. One vessel per role is filled with a memory, does
one step, and is read out again; a step that was done before is looked up. Every field of the machine is named
here, either as part of the memory or with the reason why it does not decide anything; a field that is neither
is an error, so that none can be forgotten.

Times are relative to now and end where the machine no longer tells them apart: a deadline that has passed
is 0, an age above the failover timeout is the timeout.
"""

from __future__ import annotations

import math
from collections import deque
from operator import attrgetter
from typing import NamedTuple, Protocol

from bstar.star import (
    Activated,
    EpochHeard,
    Fatal,
    Handover,
    Leave,
    LinkLost,
    Output,
    PeerMessage,
    PeerRefused,
    PersistEpoch,
    Publish,
    Refusal,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Subscription,
    Tick,
    Vote,
)
from bstar.star.cut_off import CutOff, Evidence
from bstar.star.failure_detector import Detector
from bstar.star.peer import Streak
from bstar.wire.peer import PeerState

ROLES = (Role.PRIMARY, Role.BACKUP)
INTERVAL_S = 1.0
NEVER = float("inf")
# The run of a peer that has not been heard, and the start of a rivalry that has not begun.
NOBODY = -1
_NONE = -1.0

# What a machine is asked to do: its name and, for some, one or two arguments.
Event = tuple[object, ...]


class Word(NamedTuple):
    """A state message: what decides something, without what both nodes have in common.

    With an adaptive timeout: what its sender needs, the run that it hears, and the last number of that run.
    """

    state: int
    epoch: int
    run: int
    seq: int
    asks: int
    answers: int
    is_released: bool
    is_leaving: bool
    has_witnesses: bool
    needs_ms: int = 0
    hears: int = NOBODY
    hears_seq: int = 0


class Waits(NamedTuple):
    """What a node with an adaptive timeout remembers of it, and what follows (``failure_detector``).

    An acknowledgement up to ``doubted`` is not trusted, and one up to ``unknown`` is none.
    """

    need_ms: int
    peers_need_ms: int
    published: tuple[tuple[int, int], ...]
    acknowledged: int
    doubted: int
    unknown: int
    heard_ago: float
    silence_ms: int
    absence_ms: int


class Memory(NamedTuple):
    """All that decides what a machine does next. ``due_in`` and ``has_left`` are its own answers about it."""

    state: int
    is_leaving: bool
    is_mute: bool
    epoch: int
    epoch_seen: int
    peer_state: int
    expires_in: float
    published_ago: float
    publish_in: float
    run: int
    seq: int
    token: int
    asking: int
    answers: int
    answers_published: int
    is_released: bool
    is_peer_seen: bool
    is_peer_native: bool
    is_peer_gone: bool
    is_link_lost: bool
    peer_run: int
    peer_seq: int
    past_peers: tuple[tuple[int, int], ...]
    # Of late messages that go on: their run, the last number, and how long ago they began and increased.
    streak: tuple[int, int, float, float] | None
    rival_ago: float
    has_witnesses: bool
    due_in: float
    has_left: bool
    # None if the timeout is fixed.
    waits: Waits | None


class Done(NamedTuple):
    """What came of an event. ``error`` is what the machine raised, or why it ended."""

    memory: Memory
    words: tuple[Word, ...] = ()
    activated: tuple[int, ...] = ()
    persisted: int | None = None
    error: str = ""


# What a machine counts or reports, what it is made of, and what is the same for every node of the pair.
_DECIDES_NOTHING = frozenset(
    {
        "settings",
        "is_active",  # always state is ACTIVE, which is checked
        "node",
        "counters",
        "_is_given",  # only for a counter
        "pause",  # nobody pauses takeovers here
        "quorum",  # None: there is no arbiter here
        "serve_until",  # for ever while active
        "_failover_timeout_s",  # for reports, and for the patience of cut_off
        "peer.detector",  # ``waits`` is what it remembers
        # The pace follows from the detector; there are no published peers.
        "peer.pace",
        "peer._published_pace",
        "peer._native_pace",
        "peer._adaptive_pace",
        "peer._is_peer_adaptive",
        "peer._is_published",
        "peer._silent_since",
        "peer._settings",
        "peer.fronts_apart",  # a text for people
        "peer._fronts",
        "peer._is_published_awaited",
        "peer._rival",  # nor a third node
        # The silence is counted from peer.expires_at. With an adaptive timeout ``waits`` has it.
        "peer.heard_at",
        "peer.has_left",  # only chooses the words of a report
        "peer.runs",  # a part of a part: what decides something in it is below
        "peer.strangers",  # there are none here
        "publisher._settings",
        "publisher.node",
        "publisher._peer",
        "publisher._questions",
        "publisher._quorum",
        "publisher._pause",
        "publisher.drained_why",  # nobody drains a node here; a text for people
        "publisher.is_grant_due",
        "epochs.ignored",
        "epochs._role",
        "epochs._workers_claims",  # bounds of 2^32 and more, which no claim here comes near
        "epochs._peers_claims",
        # When witnesses are believed, and when the role follows them: here at once and always.
        "cut_off.served_at",
        "cut_off.is_suspended",
        "cut_off.handovers",
        "cut_off._is_off",
        "cut_off._reported",
        "cut_off._patience_s",
        "cut_off._lone_patience_s",
        "cut_off._settling_s",
        "cut_off._moved_at",
    }
)
_REMEMBERED = frozenset(
    {
        "state",
        "is_leaving",
        "is_released",
        "epochs.own",
        "epochs.seen",
        "peer.state",
        "peer.expires_at",
        "peer.is_gone",
        "peer.is_seen",
        "peer.link_lost_at",
        "peer.dual_since",
        "peer.runs.is_native",
        "peer.runs.node",
        "peer.runs.seq",
        "peer.runs.past",
        "peer.runs.streak",
        "publisher.seq",
        "publisher.published_at",
        "publisher.due_at",
        "publisher.is_mute",
        "questions.token",
        "questions.asking",
        "questions.answers",
        "questions.answers_published",
        "cut_off._clients",
    }
)


# The fields of a detector: what ``waits`` has, or what follows from the settings and the last number.
_DETECTOR = frozenset(
    {
        "need_ms",
        "peers_need_ms",
        "_published",
        "_acknowledged",
        "_known_from",
        "_trusts_from",
        "_last_number",
        "_min_ms",
        "_max_ms",
        "_lateness",
        "is_turning",
    }
)

# Parts of the machine whose fields count as its own.
_PARTS = ("peer", "peer.runs", "publisher", "epochs", "questions", "cut_off")


class Witnesses(CutOff):
    """Clients that do not reach the active node: there, or not. They are believed at once, nobody is served,
    and the role need not settle, so that it may move at any moment.
    """

    def evidence(self, now: float) -> Evidence:
        return Evidence(clients=2, for_s=100.0) if self._clients else Evidence()

    def why_stay(self, evidence: Evidence, now: float) -> str:
        return ""


class FreeDetector(Detector):
    """Whatever was measured: a word that ``is_turning`` changes the need to the other bound."""

    def __init__(self, settings: StarSettings, now: float) -> None:
        super().__init__(settings, now)
        self.is_turning = False

    def observe(self, silence_s: float, now: float) -> None:
        if self.is_turning:
            self.need_ms = self._min_ms + self._max_ms - self.need_ms


def check_fields(machine: StarMachine) -> None:
    """Every field of the machine is known here."""
    detector = machine.peer.detector
    assert detector is None or vars(detector).keys() == _DETECTOR, (
        f"tests/explorer/memory.py does not know these fields: {vars(detector).keys() ^ _DETECTOR}"
    )
    fields = {name for name in vars(machine) if name not in _PARTS}
    fields |= {f"{part}.{name}" for part in _PARTS for name in vars(attrgetter(part)(machine))}
    unknown = fields - _REMEMBERED - _DECIDES_NOTHING
    gone = (_REMEMBERED | _DECIDES_NOTHING) - fields
    assert not unknown, (
        f"tests/explorer/memory.py does not say what these fields of StarMachine decide: {unknown}"
    )
    assert not gone, f"tests/explorer/memory.py names fields that StarMachine no longer has: {gone}"


def settings_of(role: Role, timeout_s: float, timeout_max_s: float) -> StarSettings:
    return StarSettings(
        pair="explored",
        role=role,
        heartbeat_interval_s=INTERVAL_S,
        failover_timeout_s=timeout_s,
        failover_timeout_max_s=timeout_max_s,
    )


def machine_of(
    machine_class: type[StarMachine], settings: StarSettings, run: int, epoch: int, now: float
) -> StarMachine:
    machine = machine_class(settings, node=name_of(settings.role, run), epoch=epoch, now=now)
    machine.cut_off = Witnesses(settings.failover_timeout_s, now, is_off=False)
    if machine.peer.detector is not None and type(machine.peer.detector) is Detector:
        machine.peer.detector = FreeDetector(settings, now)
    return machine


def name_of(role: Role, run: int) -> str:
    return f"{role.value}-{run}"


def run_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def message_of(word: Word, role: Role, machine: StarMachine) -> PeerState:
    """The word as the node of ``role`` says it to this machine. It names no other node that it hears: there
    is no rival here.
    """
    settings = machine.settings
    is_heard = word.hears != NOBODY and name_of(settings.role, word.hears) == machine.node
    return PeerState(
        state=word.state,
        pair=settings.pair,
        role=role.value,
        node=name_of(role, word.run),
        seq=word.seq,
        epoch=word.epoch,
        heartbeat_ms=settings.heartbeat_ms,
        timeout_ms=settings.failover_timeout_ms,
        asks=word.asks,
        answers=word.answers,
        released=word.is_released,
        leaving=word.is_leaving,
        cut_off=2 if word.has_witnesses else 0,
        cut_off_ms=100_000 if word.has_witnesses else 0,
        timeout_max_ms=settings.failover_timeout_max_ms if settings.is_adaptive else 0,
        needs_ms=word.needs_ms,
        hears=machine.node if is_heard else "",
        hears_seq=word.hears_seq if is_heard else 0,
    )


def word_of(message: PeerState) -> Word:
    assert message.node is not None
    assert message.seq is not None
    assert message.epoch is not None
    return Word(
        message.state,
        message.epoch,
        run_of(message.node),
        message.seq,
        message.asks,
        message.answers,
        message.released,
        message.leaving,
        message.cut_off > 0,
        *((message.needs_ms, *_heard_by(message)) if message.timeout_max_ms else ()),
    )


def _heard_by(message: PeerState) -> tuple[int, int]:
    return (run_of(message.hears), message.hears_seq) if message.hears else (NOBODY, 0)


def recall(machine: StarMachine, now: float) -> Memory:
    """Read the machine out."""
    assert machine.is_active == (machine.state is State.ACTIVE) == (now < machine.serve_until)
    assert machine.quorum is None
    timeout_s = machine.settings.failover_timeout_max_ms / 1000
    due = machine.next_deadline()
    rival = machine.peer.dual_since
    return Memory(
        state=int(machine.state),
        is_leaving=machine.is_leaving,
        is_mute=machine.publisher.is_mute,
        epoch=machine.epoch,
        epoch_seen=machine.epochs.seen,
        peer_state=int(machine.peer.state or 0),
        expires_in=max(0.0, machine.peer.expires_at - now),
        published_ago=min(timeout_s, now - machine.publisher.published_at),
        publish_in=0.0 if machine.publisher.is_mute else max(0.0, machine.publisher.due_at - now),
        run=run_of(machine.node),
        seq=machine.publisher.seq,
        token=machine.questions.token,
        asking=machine.questions.asking,
        answers=machine.questions.answers,
        answers_published=machine.questions.answers_published,
        is_released=machine.is_released,
        is_peer_seen=machine.peer.is_seen,
        is_peer_native=machine.peer.runs.is_native,
        is_peer_gone=machine.peer.is_gone,
        # When it was lost is for clients: it tells them when to ask again.
        is_link_lost=machine.peer.link_lost_at is not None,
        peer_run=NOBODY if machine.peer.runs.node is None else run_of(machine.peer.runs.node),
        peer_seq=machine.peer.runs.seq,
        past_peers=tuple(sorted((run_of(name), seq) for name, seq in machine.peer.runs.past.items())),
        streak=_streak_of(machine.peer.runs.streak, now, timeout_s),
        rival_ago=_NONE if rival is None else min(timeout_s, now - rival),
        has_witnesses=bool(machine.cut_off._clients),
        due_in=NEVER if due is None else max(0.0, due - now),
        has_left=machine.has_left(now),
        waits=_waits_of(machine, now),
    )


def _waits_of(machine: StarMachine, now: float) -> Waits | None:
    detector, heard_at = machine.peer.detector, machine.peer.heard_at
    if detector is None:
        return None
    assert detector._last_number == machine.publisher.seq
    assert machine.peer.pace.silence_s == detector.silence_ms / 1000
    assert machine.peer.pace.absence_s == detector.absence_ms / 1000
    return Waits(
        need_ms=detector.need_ms,
        peers_need_ms=detector.peers_need_ms,
        published=tuple(detector._published),
        acknowledged=detector._acknowledged,
        doubted=detector._trusts_from - 1,
        unknown=detector._known_from - 1,
        heard_ago=NEVER if heard_at is None else min(detector._max_ms / 1000, now - heard_at),
        silence_ms=detector.silence_ms,
        absence_ms=detector.absence_ms,
    )


def _streak_of(streak: Streak | None, now: float, timeout_s: float) -> tuple[int, int, float, float] | None:
    """One that has paused for the failover timeout is over."""
    if streak is None or now - streak.rose_at >= timeout_s:
        return None
    return run_of(streak.node), streak.seq, min(timeout_s, now - streak.since), now - streak.rose_at


def remind(machine: StarMachine, memory: Memory, now: float) -> None:
    """Make the machine one that remembers this."""
    role = machine.settings.role
    machine.state = State(memory.state)
    machine.is_active = machine.state is State.ACTIVE
    machine.serve_until = math.inf if machine.is_active else -math.inf
    machine.node = machine.publisher.node = name_of(role, memory.run)
    machine.is_leaving = memory.is_leaving
    machine.epochs.own = memory.epoch
    machine.epochs.seen = memory.epoch_seen
    machine.peer.state = State(memory.peer_state) if memory.peer_state else None
    machine.peer.heard_at = None
    machine.peer.expires_at = now + memory.expires_in
    machine.publisher.seq = memory.seq
    machine.publisher.published_at = now - memory.published_ago
    machine.publisher.due_at = now + memory.publish_in
    machine.publisher.is_mute = memory.is_mute
    machine.questions.token = memory.token
    machine.questions.asking = memory.asking
    machine.questions.answers = memory.answers
    machine.questions.answers_published = memory.answers_published
    machine.is_released = memory.is_released
    machine.peer.is_seen = memory.is_peer_seen
    machine.peer.runs.is_native = memory.is_peer_native
    machine.peer.is_gone = memory.is_peer_gone
    machine.peer.link_lost_at = now if memory.is_link_lost else None
    machine.peer.runs.node = None if memory.peer_run == NOBODY else name_of(role.peer, memory.peer_run)
    machine.peer.runs.seq = memory.peer_seq
    machine.peer.runs.past = {name_of(role.peer, run): seq for run, seq in memory.past_peers}
    machine.peer.runs.streak = None
    if memory.streak is not None:
        run, seq, since_ago, rose_ago = memory.streak
        machine.peer.runs.streak = Streak(name_of(role.peer, run), seq, now - since_ago, now - rose_ago)
    machine.peer.dual_since = None if memory.rival_ago == _NONE else now - memory.rival_ago
    machine.cut_off.forget()
    if memory.has_witnesses:
        machine.cut_off.refuse(b"", now, has_worker=True)
    if memory.waits is not None:
        _remind_waits(machine, memory.waits, now)


def _remind_waits(machine: StarMachine, waits: Waits, now: float) -> None:
    detector = machine.peer.detector
    assert detector is not None
    detector.need_ms = waits.need_ms
    detector.peers_need_ms = waits.peers_need_ms
    detector._published = deque(waits.published)
    detector._last_number = machine.publisher.seq
    detector._acknowledged = waits.acknowledged
    detector._trusts_from = waits.doubted + 1
    detector._known_from = waits.unknown + 1
    machine.peer.heard_at = None if waits.heard_ago == NEVER else now - waits.heard_ago
    machine.peer.pace = machine.peer._pace()


def perform(machine: StarMachine, event: Event, now: float) -> list[Output]:
    """Do with the machine what its shell does on this event."""
    match event:
        case ("begin",) | ("timer",):
            return machine.step(Tick(), now)
        case ("vote",):
            return machine.step(Vote(), now)
        case ("hear", Word() as word):
            role = machine.settings.role.peer
            return machine.step(PeerMessage(message_of(word, role, machine)), now)
        case ("turn", Word() as word):
            detector = machine.peer.detector
            assert isinstance(detector, FreeDetector)
            detector.is_turning = True
            outputs = perform(machine, ("hear", word), now)
            detector.is_turning = False
            return outputs
        case ("subscribed",):
            return machine.step(Subscription(), now)
        case ("missed",):
            return machine.step(LinkLost(), now)
        case ("refused",):
            return machine.step(PeerRefused(), now)
        case ("learn", int() as epoch):
            return machine.step(EpochHeard(epoch), now)
        case ("handover",):
            return machine.step(Handover(), now)
        case ("leave",):
            return machine.step(Leave(), now)
        case ("witness",):
            machine.step(Refusal(b"", has_worker=True), now)
            return []
        case ("thaw", float() as gap_s):
            # Reactor._look: the stall first, then what is due, then what came meanwhile.
            outputs = machine.step(Stall(gap_s), now) if gap_s > INTERVAL_S / 2 else []
            due = machine.next_deadline()
            return outputs if due is None or now < due else outputs + machine.step(Tick(), now)
    raise AssertionError(f"no such event: {event!r}")


def _sum_up(machine: StarMachine, outputs: list[Output], now: float) -> Done:
    persisted: int | None = None
    error = ""
    words: list[Word] = []
    activated: list[int] = []
    for output in outputs:
        match output:
            case Publish(message):
                words.append(word_of(message))
            case PersistEpoch(epoch):
                persisted = epoch
            case Activated(epoch, _):
                activated.append(epoch)
            case Fatal(fatal):
                error = f"ended with status {fatal.exit_code}: {fatal}"
            case _:
                pass
    return Done(recall(machine, now), tuple(words), tuple(activated), persisted, error)


class Machines(Protocol):
    """Who steps the nodes of the model."""

    def start(self, who: int, run: int, epoch: int, token: int) -> Memory:
        """A new run. Its tokens differ from those of every earlier run; here they are above ``token``."""

    def call(self, who: int, memory: Memory, event: Event, after_s: float = 0.0) -> Done:
        """Let the node who remembers this do that, ``after_s`` seconds later without a turn of its loop."""

    def later(self, who: int, memory: Memory, after_s: float) -> Memory:
        """The same memory after some time."""

    def pass_time(self, seconds: float) -> None:
        """The clock goes on."""


class Vessels:
    """The production machines, one per role, that do each step once; afterwards it is looked up.

    ``machine_class`` is StarMachine, or a broken one in a test that wants to see it caught.
    """

    def __init__(
        self, timeout_s: float, machine_class: type[StarMachine] = StarMachine, *, timeout_max_s: float = 0.0
    ) -> None:
        self._machine_class = machine_class
        self._settings = [settings_of(role, timeout_s, timeout_max_s) for role in ROLES]
        self._machines = [machine_of(machine_class, settings, 0, 0, 0.0) for settings in self._settings]
        for machine in self._machines:
            check_fields(machine)
        self._begun: dict[tuple[int, int], Memory] = {}
        self._done: dict[tuple[object, ...], Done] = {}
        self._later: dict[tuple[int, float, Memory], Memory] = {}
        self.steps = 0

    def start(self, who: int, run: int, epoch: int, token: int) -> Memory:
        memory = self._begun.get((who, epoch))
        if memory is None:
            machine = machine_of(self._machine_class, self._settings[who], 0, epoch, 0.0)
            memory = self._begun[who, epoch] = recall(machine, 0.0)
        return memory._replace(run=run, token=token)

    def call(self, who: int, memory: Memory, event: Event, after_s: float = 0.0) -> Done:
        key = (who, memory, event, after_s)
        done = self._done.get(key)
        if done is None:
            self.steps += 1
            machine = self._machines[who]
            remind(machine, memory, 0.0)
            try:
                done = _sum_up(machine, perform(machine, event, after_s), after_s)
            except Exception as error:  # noqa: BLE001 - whatever it raises is what was looked for
                done = Done(memory, error=f"raised {type(error).__name__}: {error}")
            self._done[key] = done
        return done

    def pass_time(self, seconds: float) -> None:
        """Memories know only of now."""

    def later(self, who: int, memory: Memory, after_s: float) -> Memory:
        key = (who, after_s, memory)
        later = self._later.get(key)
        if later is None:
            machine = self._machines[who]
            remind(machine, memory, 0.0)
            later = self._later[key] = recall(machine, after_s)
        return later


class LiveMachines:
    """The same face over machines that live through everything themselves, with a clock that goes on."""

    def __init__(
        self, timeout_s: float, machine_class: type[StarMachine] = StarMachine, *, timeout_max_s: float = 0.0
    ) -> None:
        self.now = 1_000.0
        self.outputs: list[tuple[int, list[Output]]] = []
        self._machine_class = machine_class
        self._settings = [settings_of(role, timeout_s, timeout_max_s) for role in ROLES]
        self._machines: list[StarMachine | None] = [None, None]
        self._runs = 0

    def start(self, who: int, run: int, epoch: int, token: int) -> Memory:
        """A new run, named by ourselves: a machine remembers names that the model has forgotten."""
        self._runs += 1
        machine = self._machines[who] = machine_of(
            self._machine_class, self._settings[who], self._runs, epoch, self.now
        )
        return recall(machine, self.now)

    def call(self, who: int, memory: Memory, event: Event, after_s: float = 0.0) -> Done:
        machine = self._machines[who]
        assert machine is not None
        outputs = perform(machine, event, self.now)
        self.outputs.append((who, outputs))
        return _sum_up(machine, outputs, self.now)

    def later(self, who: int, memory: Memory, after_s: float) -> Memory:
        machine = self._machines[who]
        assert machine is not None
        return recall(machine, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
