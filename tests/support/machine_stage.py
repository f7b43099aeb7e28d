"""One Binary Star machine, ``we``, and the words of its peer: one line of a script each.

``primary`` or ``backup`` makes a machine, with settings behind it; ``ACTIVE`` and the other states one that
came there by ordinary ways and heard its peer at 9.5; ``standing-by`` and ``serving`` one with an arbiter.
Every other line begins with its time, or with several (``0,1.9``, or ``0-9/0.5`` in steps). ``peer`` is a
message of the other node, numbered by its run (``node=``), and ``bare`` one of a published peer. ``asks`` and
``answers`` count questions: ``#1`` is the first. ``beat`` lets the machine live until then, ``live`` lets
clients ask as well; ``published`` says that it published last at that time, although the script does not show
it. ``look`` tells what a client or an operator would learn.

Seen: ``->`` is sent, ``=`` tells what has changed of the machine's view.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.star import (
    ArbiterAnswer,
    AskArbiter,
    EpochHeard,
    Handover,
    Leave,
    LinkLost,
    Output,
    PauseKept,
    PauseTakeovers,
    PeerGarbage,
    PeerMessage,
    PeerRefused,
    Promotion,
    Publish,
    ResumeTakeovers,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Subscription,
    Tick,
    Vote,
)
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState, decode
from support.starwire import text_of

ARBITER = "tcp://arbiter:5010"
HEARD_AT = 9.5
# What of a message every one has, or what nobody waits for.
_DULL = ("pair", "role", "node", "heartbeat_ms", "timeout_ms", "arbiter", "state", "epoch", "seq")
_PLAIN = PeerState(1)
_FACTS: dict[str, Callable[[Any], object]] = {
    "highest known": lambda it: it.epochs.seen if it.epochs.seen != it.epoch else None,
    "unbelieved": lambda it: it.epochs.ignored,
    "silent at": lambda it: round(it.peer.expires_at, 3),
    "gone": lambda it: it.peer.is_gone,
    "asking": lambda it: it.questions.asking != 0,
    "claiming": lambda it: it.quorum is not None and it.quorum.is_claiming,
    "serves until": lambda it: None if math.isinf(it.serve_until) else round(it.serve_until, 3),
    "votes": lambda it: it.counters.votes,
    "refused": lambda it: it.counters.requests_refused,
    "stalls": lambda it: it.counters.stalls,
    "majorities lost": lambda it: it.counters.majorities_lost,
    "pause ends at": lambda it: None if math.isinf(it.pause.until) else round(it.pause.until, 3),
}


def _value(text: str) -> Any:
    """A word of a script as what it stands for."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _options(words: list[str]) -> dict[str, Any]:
    """``name=value``, or ``name`` for a flag."""
    pairs = (word.partition("=") for word in words)
    return {name: _value(value) if is_given else True for name, is_given, value in pairs}


def _times(word: str) -> list[float]:
    begin, is_range, rest = word.partition("-")
    if not is_range:
        return [float(each) for each in word.split(",")]
    end, _, step = rest.partition("/")
    count = round((float(end) - float(begin)) / float(step))
    return [float(begin) + number * float(step) for number in range(count + 1)]


class MachineStage:
    """``run`` carries one line out and returns what is seen of it."""

    def __init__(self) -> None:
        self.machine: Any = None
        self._now = 0.0
        self._seq: defaultdict[str, int] = defaultdict(int)
        self._tokens: list[int] = []
        self._facts: dict[str, object] = {}

    def run(self, line: str) -> list[str]:
        """Carry the line out; what is seen."""
        if line.startswith("# "):
            return []
        first, *words = shlex.split(line)
        if first in State.__members__:
            self._come_to(State[first], words)
        elif first in ("standing-by", "serving"):
            self._with_arbiter(first, words)
        elif first in ("primary", "backup"):
            self._make(first, _options(words))
        else:
            return self._at(_times(first), words)
        self._facts = self._look_at_facts()
        return []

    # --- machines -------------------------------------------------------------------------------------------

    def _make(self, role: str, options: dict[str, Any]) -> None:
        node, epoch = options.pop("node", "we"), options.pop("epoch", 0)
        now = options.pop("at", 0.0)
        settings = StarSettings(pair="test", role=Role(role), **options)
        self.machine = StarMachine(settings, node=node, epoch=epoch, now=now)
        self._now = now
        self._seq.clear()
        self._tokens.clear()

    def _come_to(self, state: State, words: list[str]) -> None:
        role = "backup" if "backup" in words else "primary"
        is_bare = "bare" in words
        options = _options([word for word in words if word not in ("backup", "bare")])
        seq, node = options.pop("seq", 0), options.pop("by", "they")
        self._make(role, options)
        self._seq[node] = seq
        self.machine.publisher.published_at = HEARD_AT
        ways = {
            State.ACTIVE: ["ACTIVE", "BACKUP" if role == "primary" else "PRIMARY", "PASSIVE"],
            State.PASSIVE: ["ACTIVE"],
            State.ERROR: [],
        }
        for word in ways.get(state, ["PASSIVE"]):
            message = decode([b"%d" % State[word]]) if is_bare else self._word([word, f"node={node}"])
            self.machine.step(PeerMessage(message), HEARD_AT)
        if state is State.ERROR:
            self.machine.step(PeerMessage(self._word(["PASSIVE", f"role={role}", "node=stranger"])), HEARD_AT)
        self._now = HEARD_AT
        if self.machine.state is not state:
            raise AssertionError(f"the machine is {self.machine.state.name}")

    def _with_arbiter(self, how: str, words: list[str]) -> None:
        role = words[0] if words else "primary"
        self._make(role, {"arbiter": ARBITER})
        self._beat(9.9)
        if how == "standing-by":
            self._step(PeerMessage(self._word(["ACTIVE", f"epoch={1 + (role == 'primary')}"])), 10.0)
            return
        self.machine.publisher.due_at = 10.5
        outputs = self._step(PeerMessage(self._word(["BACKUP"])), 10.0)
        [claim] = [output.message.seq for output in outputs if isinstance(output, Publish)]
        self._step(PeerMessage(self._word(["BACKUP", f"granted={claim}", "granted_to=we"])), 10.0)

    # --- lines ----------------------------------------------------------------------------------------------

    def _at(self, times: list[float], words: list[str]) -> list[str]:
        word, *rest = words
        now = times[0]
        if word == "look":
            return [self._look(now) for now in times]
        if word in ("published", "due"):
            setattr(self.machine.publisher, f"{word}_at", now)
            return []
        seen: list[str] = []
        known: set[str] = set()
        for now in times:
            if word == "beat":
                outputs = self._beat(now)
            elif word == "live":
                outputs = self._step(Tick(), now) + self._step(Vote(), now)
            else:
                outputs = self._step(self._input(word, rest), now)
            when = f"{now:g}: " if len(times) > 1 else ""
            for text in self._described(outputs):
                # What comes again and again while time passes, as a heartbeat does, is seen once.
                if text not in known or not (when or word == "beat"):
                    seen.append(f"{when}{text}")
                known.add(text)
        return [*seen, *self._changes()]

    def _step(self, given: Any, now: float) -> list[Output]:
        self._now = now
        outputs: list[Output] = self.machine.step(given, now)
        return outputs

    def _beat(self, until: float) -> list[Output]:
        outputs: list[Output] = []
        while (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            outputs += self._step(Tick(), deadline)
        return outputs

    def _input(self, word: str, rest: list[str]) -> Any:
        text = " ".join(rest)
        inputs: dict[str, Callable[[], Any]] = {
            "peer": lambda: PeerMessage(self._word(rest)),
            "bare": lambda: PeerMessage(decode([b"%d" % State[text]])),
            "garbage": lambda: PeerGarbage(RemoteProtocolError(rest[0], " ".join(rest[1:]))),
            "link-lost": LinkLost,
            "refused": PeerRefused,
            "subscribe": Subscription,
            "arbiter": lambda: ArbiterAnswer(Answer(**({"node": "we"} | _options(rest)))),
            "vote": Vote,
            "worker-names": lambda: EpochHeard(int(text)),
            "stall": lambda: Stall(float(text)),
            "tick": Tick,
            "handover": Handover,
            "leave": Leave,
            "promote": lambda: Promotion(is_trial=text == "trial"),
            "pause": lambda: PauseTakeovers(float(rest[0]), " ".join(rest[1:])),
            "paused-before": lambda: PauseKept(int(rest[0]), float(rest[1]), " ".join(rest[2:])),
            "resume": lambda: ResumeTakeovers(text),
        }
        return inputs[word]()

    def _word(self, words: list[str]) -> PeerState:
        """A message of the peer; its run numbers it unless the line does."""
        options = _options(words[1:])
        for name in ("asks", "answers"):
            if str(options.get(name, "")).startswith("#"):
                options[name] = self._tokens[int(options[name][1:]) - 1]
        settings = self.machine.settings
        state = State[words[0]]
        node = options.get("node", "they")
        self._seq[node] += 1
        fields: dict[str, Any] = {
            "pair": "test",
            "role": settings.role.peer.value,
            "node": node,
            "seq": self._seq[node],
            "epoch": 0,
            "heartbeat_ms": 1000,
            "timeout_ms": 2000,
            "arbiter": settings.arbiter,
            "claims": bool(settings.arbiter) and state is State.ACTIVE,
        }
        if options.get("seq", 0) > self._seq[node]:
            self._seq[node] -= 1
        return PeerState(int(state), **(fields | options))

    # --- what is seen ---------------------------------------------------------------------------------------

    def _described(self, outputs: list[Output]) -> Iterator[str]:
        for output in outputs:
            match output:
                case Publish(message):
                    yield f"-> {State(message.state).name} {message.epoch}{self._details(message)}"
                case AskArbiter(question):
                    number = "" if question.verb == "look" else f" {question.number}"
                    yield f"-> arbiter: {question.verb}{number}"
                case _:
                    yield text_of(output)

    def _details(self, message: PeerState) -> str:
        found = []
        for name, value in msgspec.structs.asdict(message).items():
            if name in _DULL or value == getattr(_PLAIN, name):
                continue
            text = f"{name}={value}"
            if name == "asks" and value not in self._tokens:
                self._tokens.append(value)
            if name in ("asks", "answers") and value in self._tokens:
                text = f"{name}=#{self._tokens.index(value) + 1}"
            found.append(f" {name if value is True else text}")
        return "".join(found)

    def _look_at_facts(self) -> dict[str, object]:
        facts = {name: fact(self.machine) for name, fact in _FACTS.items()}
        ignored = self.machine.counters.peer_ignored
        return facts | {f"ignored as {reason.value}": count for reason, count in ignored.items()}

    def _changes(self) -> list[str]:
        before, self._facts = self._facts, self._look_at_facts()
        changed = [
            name if value is True else f"no longer {name}" if value is False else f"{name} {value}"
            for name, value in self._facts.items()
            if value is not None and value != before.get(name)
        ]
        return [f"= {', '.join(changed)}"] if changed else []

    def _look(self, now: float) -> str:
        it = self.machine
        retry_s, due = it.retry_after_s(now), it.next_deadline()
        status = it.status(now)
        peer = State(status.peer_state).name if status.peer_state else "silent"
        words = [
            f"{State(status.state).name} in epoch {status.epoch}",
            f"peer {peer}{', heard' if it.peer.is_heard(now) else ''}",
            "a vote never counts" if retry_s is None else f"a vote counts in {round(retry_s, 3):g} s",
            "nothing is due" if due is None or due == math.inf else f"due at {round(due, 3):g}",
        ]
        return "; ".join([*words, "has left"] if it.has_left(now) else words)
