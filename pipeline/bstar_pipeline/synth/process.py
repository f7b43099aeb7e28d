"""One run of one process of a synthetic pair: when it lived, on which machine, and what it wrote.

Times in here are true; ``Machine`` turns them into what the process's clocks showed.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bstar import records


@dataclass(slots=True)
class Machine:
    """``mono`` counts from ``booted_us``. The wall clock is ahead by ``skew_us`` and by every step so far."""

    id: str
    host: str
    booted_us: int
    skew_us: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def mono(self, true_us: int) -> int:
        """The monotonic clock."""
        return true_us - self.booted_us

    def wall_ahead(self, true_us: int) -> int:
        """By how much the wall clock was ahead of the truth."""
        place = bisect_right(self.steps, true_us, key=lambda step: step[0])
        return self.skew_us + sum(step for _, step in self.steps[:place])


@dataclass(frozen=True, slots=True)
class Event:
    """A record to be written: its type and its own fields."""

    true_us: int
    kind: type[records.Base]
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Phase:
    """From ``since_us`` on a broker's pulses say ``state``."""

    since_us: int
    state: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a broker served; ``process`` is its place in the pair's list."""

    process: int
    since_us: int
    until_us: int
    epoch: int


@dataclass(slots=True)
class Process:
    """``end``: "stop" (in good order), "kill" (without a word), "" (it lives on when the journal ends).

    ``away``: times in which it stood still. ``lost_from_us``: what it did from then on was in its buffer when
    it was killed. ``is_followed``: a later run of the same node sealed its last segment.
    """

    pair: str
    node: str
    boot: str
    source: Literal["broker", "client", "worker"]
    machine: Machine
    started_us: int
    service: str = ""
    rank: int = 0
    ended_us: int = 0
    end: Literal["", "stop", "kill"] = ""
    lost_from_us: int | None = None
    torn: bytes = b""
    is_followed: bool = False
    events: list[Event] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    away: list[tuple[int, int]] = field(default_factory=list)

    def note(self, true_us: int, kind: type[records.Base], **fields: Any) -> None:
        """Write a record."""
        self.events.append(Event(true_us, kind, fields))

    def pulses(self, every_us: int, since_us: int, until_us: int) -> list[tuple[int, Phase]]:
        """The pulses in [since, until)."""
        first = -(-(since_us - self.started_us) // every_us)
        beats = []
        for beat in range(self.started_us + max(1, first) * every_us, until_us, every_us):
            if any(a <= beat < b for a, b in self.away):
                continue
            place = bisect_right(self.phases, beat, key=lambda phase: phase.since_us)
            if place:
                beats.append((beat, self.phases[place - 1]))
        return beats


class Serving(NamedTuple):
    """A node while it serves in this epoch."""

    node: Process
    epoch: int
