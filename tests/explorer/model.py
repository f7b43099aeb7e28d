"""The pair: two processes, the two directions of the peer link, and what may befall them.

A situation is a value. An action makes the next one of it, with the machines of ``memory`` doing what the
nodes do; this file knows of states only who serves. Time goes in ticks of one heartbeat interval. Within a
tick everything may happen in any order; a tick may pass only when nothing is left that must have happened
by then: a timer that is due, a word that has travelled for as long as words travel, a connection that could
be made.

The link is publish and subscribe. A direction keeps its order. A reader gets one word or, of those that
have come, a later one (the newest of a burst: the earlier ones are skipped, as ``BinaryStar`` does it).
When a connection breaks, what was on its way is lost, or its last word is still read, before or after the
words of the next connection: that is a stray. A frozen process reads nothing; when it goes on, its reactor
first tells of the stall.

Faults are bounded: a situation carries what is left of the budget of its configuration.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bstar.star import State
from explorer.memory import INTERVAL_S, Done, Event, Machines, Memory, Word

DOWN, AWAKE, FROZEN = range(3)
# The connection broke; the reader was told, and tries to connect; it was refused.
_BROKE, _MISSED, _REFUSED = 1, 2, 3
_ACTIVE = int(State.ACTIVE)
_PASSIVE = int(State.PASSIVE)

# What happens: its name, who does it or whose words they are, and which or how.
Action = tuple[str, int, int]
UNBOUNDED = -1
TICK: Action = ("tick", 0, 0)
HEAL: Action = ("heal", 0, 0)


# Both have started: the primary serves, the backup stands by, and each has read every word.
SETTLED: tuple[Action, ...] = (
    ("start", 0, 0),
    ("start", 1, 0),
    ("connect", 0, 0),
    ("connect", 1, 0),
    ("hear", 0, 0),
    ("hear", 1, 1),
    ("hear", 0, 0),
)


class Budget(NamedTuple):
    """How much of each may still happen, and how much altogether. What workers tell is no fault, and may be
    UNBOUNDED.
    """

    losses: int = 0
    repeats: int = 0
    delays: int = 0
    cuts: int = 0
    crashes: int = 0
    freezes: int = 0
    handovers: int = 0
    stops: int = 0
    witnesses: int = 0
    turns: int = 0
    learns: int = 0
    total: int = UNBOUNDED


class Process(NamedTuple):
    """One node. ``last`` is the epoch of its last activation in any of its runs. A frozen one's memory is
    that of the moment when it froze; it meant to look at the clock again ``nap_s`` later.
    """

    life: int
    memory: Memory | None
    last: int
    frozen: int
    nap_s: float


class Line(NamedTuple):
    """One direction of the link: words with their ages, in order, and strays of an earlier connection.
    ``verdict`` is how far the reader is with the question whether the speaker's process is gone.
    """

    is_cut: bool
    is_up: bool
    waits: int
    verdict: int
    words: tuple[tuple[int, Word], ...]
    strays: tuple[tuple[int, Word], ...]


class Situation(NamedTuple):
    """Everything at one moment. ``shaky`` is the number of ticks after which the link counts as sound;
    ``top`` is the highest epoch that workers have seen.
    """

    processes: tuple[Process, Process]
    lines: tuple[Line, Line]
    shaky: int
    top: int
    budget: Budget


class Finding(enum.Enum):
    """What is looked for. The value is the letter of docs/simulation.md and what it says."""

    TWO_SERVE = "(a) two nodes serve although the link is sound"
    TWO_SERVE_FOR_A_MESSAGE = "(a) two nodes serve while the word of the later one is under way"
    TWO_SERVE_UNHEARD = "(a) two nodes serve while the link is not sound"
    LATE_TO_YIELD = "(a) a node believes that its peer waits longer than the peer does"
    SERVES_ON = "(a) a node that was away for the failover timeout serves on"
    EPOCH_TAKEN_AGAIN = "(b) an activation takes an epoch that is not above every earlier one of its node"
    EPOCH_SHARED = "(b) both nodes were active in one epoch"
    BELOW_AN_EPOCH = "(b) a node is active below an epoch that it knows of"
    STUCK = "(f) the faults are over and not exactly one node serves for good"
    ENDED = "(f) a node raises an error or ends"


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What may happen. ``travel`` is for how many ticks a word may be under way, ``reconnect`` after how
    many a connection is there; ``in_flight`` bounds the words under way per direction: one more, and the
    oldest is read as part of a burst. ``memory`` is what a restart finds: the epoch is kept, lost, or
    either. ``prefix`` has happened before anything else may: SETTLED, or nothing.

    With a ``timeout_max`` the failover timeout adapts: each node needs ``timeout`` or ``timeout_max`` for its
    peer, and changes that when it hears a word (``turns``), whatever it measured.
    """

    name: str
    about: str
    budget: Budget
    timeout: int = 2
    timeout_max: int = 0
    travel: int = 0
    reconnect: int = 0
    in_flight: int = 2
    memory: str = "kept"
    cuts: tuple[int, ...] = (3,)
    expected: frozenset[Finding] = frozenset()
    calm_ticks_max: int = 8
    prefix: tuple[Action, ...] = ()

    @property
    def longest(self) -> int:
        """The longest failover timeout, in ticks."""
        return max(self.timeout, self.timeout_max)


class Model:
    """What may happen in a situation, and what it leads to. ``findings`` are those of the last action."""

    def __init__(self, configuration: Configuration, machines: Machines) -> None:
        self.configuration = configuration
        self.machines = machines
        self.findings: list[tuple[Finding, str]] = []

    def beginning(self) -> Situation:
        """Both processes are down; nothing has happened yet."""
        process = Process(DOWN, None, 0, 0, 0.0)
        line = Line(False, False, 0, 0, (), ())
        return Situation((process, process), (line, line), 0, 0, self.configuration.budget)

    # --- what may happen ------------------------------------------------------------------------------------

    def actions(self, situation: Situation) -> Iterator[Action]:
        """All that may happen now."""
        processes, lines, _, top, budget = situation
        configuration = self.configuration
        for who in (0, 1):
            process, incoming, outgoing = processes[who], lines[1 - who], lines[who]
            if process.life == DOWN:
                if configuration.memory != "lost" or process.last == 0:
                    yield "start", who, 0
                if configuration.memory != "kept" and process.last != 0:
                    yield "start", who, 1
                continue
            memory = process.memory
            assert memory is not None
            if process.life == AWAKE:
                if memory.due_in <= 0.0:
                    yield "timer", who, 0
                if may_vote(process):
                    yield "vote", who, 0
                for number in range(len(incoming.words)):
                    yield "hear", who, number
                    if budget.turns:
                        yield "turn", who, number
                for number in range(len(incoming.strays)):
                    yield "stray", who, number
                if _is_connectable(outgoing, processes):
                    yield "connect", who, 0
                if incoming.verdict == _BROKE:
                    yield "missed", who, 0
                elif incoming.verdict == _MISSED and processes[1 - who].life == DOWN and not incoming.is_cut:
                    yield "refuse", who, 0
                elif incoming.verdict == _REFUSED:
                    yield "refused", who, 0
                if budget.learns and top > memory.epoch_seen:
                    yield "learn", who, 0
                if budget.handovers and memory.state == _ACTIVE:
                    yield "handover", who, 0
                if budget.witnesses and not memory.has_witnesses and memory.state == _PASSIVE:
                    yield "witness", who, 0
                if budget.stops and not memory.is_leaving:
                    yield "stop", who, 0
                if memory.is_leaving and memory.has_left:
                    yield "end", who, 0
                if budget.freezes:
                    yield "freeze", who, 0
            elif process.frozen:
                yield "thaw", who, 0
            if budget.crashes:
                yield "crash", who, 0
                if outgoing.words:
                    yield "crash", who, 1
            if outgoing.words:
                if budget.losses:
                    for number in range(len(outgoing.words)):
                        yield "lose", who, number
                if budget.repeats:
                    yield "repeat", who, 0
        if lines[0].is_cut or lines[1].is_cut:
            yield HEAL
        elif budget.cuts:
            for which in configuration.cuts:
                yield "cut", which, 0
                if any(which >> who & 1 and lines[who].words for who in (0, 1)):
                    yield "cut", which, 1
        if self._may_time_pass(situation):
            yield TICK

    def _may_time_pass(self, situation: Situation) -> bool:
        processes, lines, _, _, budget = situation
        for who in (0, 1):
            process = processes[who]
            if process.life == AWAKE:
                assert process.memory is not None
                if process.memory.due_in <= 0.0:
                    return False
                if self._is_overdue(lines[1 - who]) and not budget.delays:
                    return False
                line = lines[who]
                if line.waits >= self.configuration.reconnect and _is_connectable(line, processes):
                    return False
        return True

    def _is_overdue(self, line: Line) -> bool:
        travel = self.configuration.travel
        return any(age >= travel for age, _ in line.words[:1] + line.strays)

    # --- what it leads to -----------------------------------------------------------------------------------

    def next(self, situation: Situation, action: Action) -> Situation:
        """Let it happen."""
        self.findings = []
        verb, who, which = action
        match verb:
            case "tick":
                after = self._tick(situation)
            case "timer" | "vote" | "handover" | "stop" | "witness":
                spent = {"handover": "handovers", "stop": "stops", "witness": "witnesses"}.get(verb)
                after = situation if spent is None else _spend(situation, spent)
                after = self._call(after, who, ("leave",) if verb == "stop" else (verb,))
            case "learn":
                is_bounded = situation.budget.learns != UNBOUNDED
                after = _spend(situation, "learns") if is_bounded else situation
                after = self._call(after, who, ("learn", situation.top))
            case "hear":
                after = self._hear(situation, who, which)
            case "turn":
                after = self._hear(_spend(situation, "turns"), who, which, "turn")
            case "stray":
                after = self._hear_stray(situation, who, which)
            case "missed" | "refuse" | "refused":
                line = situation.lines[1 - who]
                line = line._replace(verdict=(line.verdict + 1) % 4)
                after = _with_line(situation, 1 - who, line)
                after = after if verb == "refuse" else self._call(after, who, (verb,))
            case "connect":
                line = situation.lines[who]
                # Who connects is not refused; a verdict that is on its way comes all the same.
                verdict = line.verdict if line.verdict == _REFUSED else 0
                line = line._replace(is_up=True, waits=0, verdict=verdict)
                after = self._call(_with_line(situation, who, line), who, ("subscribed",))
            case "start":
                after = self._start(situation, who, is_blank=which == 1)
            case "crash":
                after = _end(_spend(situation, "crashes"), who, is_last_word_read=which == 1)
            case "end":
                after = _end(situation, who, is_last_word_read=True)
            case "freeze":
                after = self._freeze(_spend(situation, "freezes"), who)
            case "thaw":
                after = self._thaw(situation, who)
            case "lose":
                line = situation.lines[who]
                words = line.words[:which] + line.words[which + 1 :]
                after = _with_line(_spend(situation, "losses"), who, line._replace(words=words))
                after = after._replace(shaky=self.configuration.longest)
            case "repeat":
                line = situation.lines[who]
                line = line._replace(strays=(*line.strays, line.words[0]))
                after = _with_line(_spend(situation, "repeats"), who, line)
            case "cut":
                after = self._cut(_spend(situation, "cuts"), who, is_last_word_read=which == 1)
            case "heal":
                one, other = (line._replace(is_cut=False) for line in situation.lines)
                after = situation._replace(lines=(one, other))
            case _:
                raise AssertionError(f"no such action: {action!r}")
        self._look(after)
        return after

    def _call(self, situation: Situation, who: int, event: Event, after_s: float = 0.0) -> Situation:
        memory = situation.processes[who].memory
        assert memory is not None
        return self._carry_out(situation, who, self.machines.call(who, memory, event, after_s))

    def _carry_out(self, situation: Situation, who: int, done: Done) -> Situation:
        processes, lines, shaky, top, budget = situation
        process, line = processes[who], lines[who]
        if done.error:
            self.findings.append((Finding.ENDED, f"the {_NAMES[who]} {done.error}"))
        last = process.last
        for epoch in done.activated:
            if epoch <= last:
                self.findings.append(
                    (Finding.EPOCH_TAKEN_AGAIN, f"the {_NAMES[who]} takes epoch {epoch} after {last}")
                )
            if epoch == processes[1 - who].last:
                self.findings.append((Finding.EPOCH_SHARED, f"both have taken epoch {epoch}"))
            last = epoch
            top = max(top, epoch)
        process = Process(AWAKE, done.memory, last, 0, 0.0)
        if done.words and line.is_up:
            words = line.words + tuple((0, word) for word in done.words)
            line = line._replace(words=words[-self.configuration.in_flight :])
            lines = (line, lines[1]) if who == 0 else (lines[0], line)
        processes = (process, processes[1]) if who == 0 else (processes[0], process)
        return Situation(processes, lines, shaky, top, budget)

    def _hear(self, situation: Situation, who: int, number: int, verb: str = "hear") -> Situation:
        line = situation.lines[1 - who]
        _, word = line.words[number]
        after = _with_line(situation, 1 - who, line._replace(words=line.words[number + 1 :]))
        return self._call(after, who, (verb, word))

    def _hear_stray(self, situation: Situation, who: int, number: int) -> Situation:
        line = situation.lines[1 - who]
        _, word = line.strays[number]
        strays = line.strays[:number] + line.strays[number + 1 :]
        return self._call(_with_line(situation, 1 - who, line._replace(strays=strays)), who, ("hear", word))

    def _start(self, situation: Situation, who: int, *, is_blank: bool) -> Situation:
        process = situation.processes[who]
        memory = self.machines.start(
            who, _fresh_run(situation, who), 0 if is_blank else process.last, _fresh_token(situation, who)
        )
        after = _with_process(situation, who, Process(AWAKE, memory, process.last, 0, 0.0))
        return self._call(after, who, ("begin",))

    def _freeze(self, situation: Situation, who: int) -> Situation:
        process = situation.processes[who]
        assert process.memory is not None
        # Reactor.turn: it looks up when something is due, and after half an interval at the latest.
        nap_s = min(INTERVAL_S / 2, process.memory.due_in)
        return _with_process(situation, who, process._replace(life=FROZEN, frozen=0, nap_s=nap_s))

    def _thaw(self, situation: Situation, who: int) -> Situation:
        process = situation.processes[who]
        away_s = process.frozen * INTERVAL_S
        after = self._call(situation, who, ("thaw", away_s - process.nap_s), away_s)
        if process.frozen >= self.configuration.longest and serves(after.processes[who]):
            self.findings.append((Finding.SERVES_ON, f"the {_NAMES[who]} serves on"))
        return after

    def _cut(self, situation: Situation, which: int, *, is_last_word_read: bool) -> Situation:
        after = situation._replace(shaky=self.configuration.longest)
        for who in (0, 1):
            if which >> who & 1:
                line = _broken(after.lines[who], is_last_word_read=is_last_word_read)
                after = _with_line(after, who, line._replace(is_cut=True))
        return after

    def _tick(self, situation: Situation) -> Situation:
        processes, lines, shaky, top, budget = situation
        timeout = self.configuration.longest
        is_late = any(
            process.life == AWAKE and self._is_overdue(line)
            for process, line in zip(processes, lines[::-1], strict=True)
        )
        if is_late:
            budget = budget._replace(delays=budget.delays - 1)
        is_broken = any(
            line.is_cut or (shaky and not line.is_up and DOWN not in (one.life, other.life))
            for line, one, other in ((lines[0], *processes), (lines[1], *processes))
        )
        shaky = timeout if is_broken or is_late else max(0, shaky - 1)
        self.machines.pass_time(INTERVAL_S)
        one, other = (self._age_process(who, processes[who]) for who in (0, 1))
        to, back = (
            _age_line(lines[who], _is_connectable(lines[who], processes), processes[1 - who].life == AWAKE)
            for who in (0, 1)
        )
        return Situation((one, other), (to, back), shaky, top, budget)

    def _age_process(self, who: int, process: Process) -> Process:
        if process.life == DOWN:
            return process
        if process.life == FROZEN:
            return process._replace(frozen=process.frozen + 1)
        assert process.memory is not None
        return process._replace(memory=self.machines.later(who, process.memory, INTERVAL_S))

    def _look(self, situation: Situation) -> None:
        """Two must not serve, except where nobody can know of the other."""
        one, other = situation.processes
        self._compare_timeouts(one, other)
        self._compare_timeouts(other, one)
        for process in (one, other):
            if process.life == AWAKE and process.memory is not None:
                memory = process.memory
                if memory.state == _ACTIVE and memory.epoch != memory.epoch_seen:
                    self.findings.append((Finding.BELOW_AN_EPOCH, f"{memory.epoch} < {memory.epoch_seen}"))
        if not (serves(one) and serves(other)):
            return
        assert one.memory is not None
        assert other.memory is not None
        if situation.shaky:
            self.findings.append((Finding.TWO_SERVE_UNHEARD, "both serve"))
            return
        # The one that is to yield: is the word that tells it under way to it, or its connection being made?
        # Whoever connects is told at once.
        lower, higher = (one, 1) if one.memory.epoch < other.memory.epoch else (other, 0)
        assert lower.memory is not None
        epoch, line = lower.memory.epoch, situation.lines[higher]
        is_told = any(word.state == _ACTIVE and word.epoch > epoch for _, word in line.words + line.strays)
        if (is_told or not line.is_up) and self._may_a_word_be_late(situation.budget):
            self.findings.append((Finding.TWO_SERVE_FOR_A_MESSAGE, "both serve, and the word is under way"))
        else:
            self.findings.append((Finding.TWO_SERVE, "both serve"))

    def _compare_timeouts(self, one: Process, other: Process) -> None:
        """Whoever is frozen does at first by what it knew, so it counts, too."""
        if (
            one.memory is None
            or other.memory is None
            or one.memory.waits is None
            or other.memory.waits is None
        ):
            return
        absence_ms, silence_ms = one.memory.waits.absence_ms, other.memory.waits.silence_ms
        if absence_ms > silence_ms:
            self.findings.append((Finding.LATE_TO_YIELD, f"{absence_ms} > {silence_ms} ms"))

    def _may_a_word_be_late(self, budget: Budget) -> bool:
        """Whether anything explains that the nodes do not know of each other: a process was away, or words
        take their time.
        """
        whole = self.configuration.budget
        used = (budget.freezes, budget.crashes, budget.stops) != (whole.freezes, whole.crashes, whole.stops)
        return used or self.configuration.travel > 0


_NAMES = ("primary", "backup")


def may_vote(process: Process) -> bool:
    """Whether a client's question could make it serve."""
    return process.life == AWAKE and process.memory is not None and process.memory.state != _ACTIVE


def serves(process: Process) -> bool:
    """A frozen node serves nobody."""
    return process.life == AWAKE and process.memory is not None and process.memory.state == _ACTIVE


def _is_connectable(line: Line, processes: tuple[Process, Process]) -> bool:
    return not line.is_up and not line.is_cut and processes[0].life == AWAKE == processes[1].life


def _with_line(situation: Situation, who: int, line: Line) -> Situation:
    lines = situation.lines
    return situation._replace(lines=(line, lines[1]) if who == 0 else (lines[0], line))


def _with_process(situation: Situation, who: int, process: Process) -> Situation:
    processes = situation.processes
    return situation._replace(processes=(process, processes[1]) if who == 0 else (processes[0], process))


def _spend(situation: Situation, name: str) -> Situation:
    budget = situation.budget
    if name != "learns" and budget.total != UNBOUNDED:
        if budget.total == 1:
            return situation._replace(budget=Budget(learns=budget.learns))
        budget = budget._replace(total=budget.total - 1)
    return situation._replace(budget=budget._replace(**{name: getattr(budget, name) - 1}))


def _broken(line: Line, *, is_last_word_read: bool) -> Line:
    """The connection is gone."""
    strays = line.words[-1:] if is_last_word_read and line.words else line.strays
    return line._replace(is_up=False, waits=0, words=(), strays=strays)


def _end(situation: Situation, who: int, *, is_last_word_read: bool) -> Situation:
    """The process is gone, with all that was on its way to it."""
    process, lines = situation.processes[who], situation.lines
    after = _with_process(situation, who, Process(DOWN, None, process.last, 0, 0.0))
    line = _broken(lines[who], is_last_word_read=is_last_word_read)
    if lines[who].is_up and not line.is_cut:
        line = line._replace(verdict=_BROKE)
    after = _with_line(after, who, line)
    return _with_line(after, 1 - who, Line(lines[1 - who].is_cut, False, 0, 0, (), ()))


def _age_line(line: Line, is_connectable: bool, is_read: bool) -> Line:
    # A verdict that takes longer is none: the failover timeout decides.
    verdict = 0 if is_read else line.verdict
    if not line.words and not line.strays and not is_connectable and verdict == line.verdict:
        return line
    return line._replace(
        waits=line.waits + 1 if is_connectable else line.waits,
        verdict=verdict,
        words=tuple((age + 1, word) for age, word in line.words),
        strays=tuple((age + 1, word) for age, word in line.strays),
    )


def _fresh_run(situation: Situation, who: int) -> int:
    """A name for a run that nobody remembers."""
    line, peer = situation.lines[who], situation.processes[1 - who].memory
    names = [word.run for _, word in line.words + line.strays]
    if peer is not None:
        names += [peer.peer_run, *(run for run, _ in peer.past_peers)]
        if peer.streak is not None:
            names.append(peer.streak[0])
    return max(names, default=-1) + 1


def _fresh_token(situation: Situation, who: int) -> int:
    """The highest token of this asker that is still to be seen somewhere."""
    line, back, peer = situation.lines[who], situation.lines[1 - who], situation.processes[1 - who].memory
    tokens = [word.asks for _, word in line.words + line.strays]
    tokens += [word.answers for _, word in back.words + back.strays]
    if peer is not None:
        tokens += [peer.answers, peer.answers_published]
    return max(tokens, default=0)
