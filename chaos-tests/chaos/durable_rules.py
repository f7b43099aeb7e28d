"""What the histories of durable requests may show.

The names of the rules: **kept**, a request whose submit was acknowledged is in the store until its close was
asked for. **ended**, each of them has ended when the run is over. **answered**, its answer was made by one
of its executions, is the same for everybody who fetches it, and stays. **withdrawn**, nothing is begun after
a close or a cancel was acknowledged; what a worker had been sent before may still begin, so a second is
allowed for. **alive**, no request becomes a dead letter: handlers do not fail, and workers are not killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bstar_testing.rules import Violation
from chaos.history import Asked, Begin, Line, Operation, Told

UNDER_WAY_S = 1.0
"""How long after a close was acknowledged a worker may begin what it was sent before."""


@dataclass(slots=True)
class Life:
    """What happened to one request. Times are None where it did not happen."""

    body: str
    stored_at: float | None = None
    close_asked_at: float | None = None
    withdrawn_at: float | None = None
    is_cancelled: bool = False
    answer: str | None = None
    last: str = ""
    submits: int = 0
    begins: list[Begin] = field(default_factory=list)
    broken: list[Violation] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """It was acknowledged, and nobody has asked to close it."""
        return self.stored_at is not None and self.close_asked_at is None

    def begun(self, line: Begin, worker: str) -> None:
        """A worker begins it."""
        self.begins.append(line)
        if self.withdrawn_at is not None and line.at > self.withdrawn_at + UNDER_WAY_S:
            late_s = line.at - self.withdrawn_at
            self._break("withdrawn", f"{worker} began it {late_s:.3f} s after it was closed or cancelled")

    def told(self, operation: Operation, outcome: str, text: str, at: float) -> None:
        """A client hears about it."""
        if outcome == "failed":
            return
        if operation is Operation.SUBMIT:
            self.stored_at = self.stored_at or at
            return
        self._look(operation, outcome, text)
        if operation is Operation.CLOSE:
            self.withdrawn_at = self.withdrawn_at or at
        elif operation is Operation.CANCEL and outcome == "cancelled":
            self.withdrawn_at = self.withdrawn_at or at
            self.is_cancelled = True

    def _look(self, operation: Operation, outcome: str, text: str) -> None:
        state = "answered" if outcome == "answer" else outcome
        what = f"{operation.value} was told: {state}"
        if state == "unknown" and self.is_open:
            self._break("kept", f"{what}; its submit was acknowledged and nobody has closed it")
        if state == "dead":
            self._break("alive", f"{what}: {text}")
        if self.answer is not None and state not in ("answered", "unknown"):
            self._break("answered", f"{what}; it had the answer {self.answer}")
        if self.is_cancelled and state not in ("cancelled", "unknown"):
            self._break("answered", f"{what}; it had been cancelled")
        if outcome == "answer":
            if self.answer not in (None, text):
                self._break("answered", f"its answer was {self.answer} and is {text}")
            self.answer = text
        if operation is Operation.RESULT:
            self.last = state

    def judge(self, executions: Iterable[str]) -> Iterator[Violation]:
        """At the end of the run. ``executions`` are the replies that workers made for it."""
        yield from self.broken
        if self.is_open and self.last not in ("answered", "cancelled", "dead"):
            yield self._violation("ended", f"in the end a fetch was told: {self.last or 'nothing'}")
        if self.answer is not None and self.answer not in executions:
            yield self._violation("answered", f"no execution of it made its answer {self.answer}")

    def _break(self, rule: str, text: str) -> None:
        self.broken.append(self._violation(rule, text))

    def _violation(self, rule: str, text: str) -> Violation:
        return Violation(rule, f"{self.body}: {text}")


@dataclass(slots=True)
class Histories:
    """The requests of a run, and what became of them."""

    lives: dict[str, Life]
    operations: Counter[str]

    @property
    def stored(self) -> list[Life]:
        """Those whose submit was acknowledged."""
        return [life for life in self.lives.values() if life.stored_at is not None]

    def violations(self, workers: dict[str, list[Line]]) -> list[Violation]:
        """All rules that were broken."""
        replies: dict[str, set[str]] = {}
        for worker, lines in workers.items():
            for line in lines:
                if isinstance(line, Begin):
                    replies.setdefault(line.body, set()).add(f"{line.body}|{worker}|{line.number}")
        return [
            violation for life in self.lives.values() for violation in life.judge(replies.get(life.body, ()))
        ]

    def counts(self) -> dict[str, int]:
        """For people."""
        stored = self.stored
        executions = [len(life.begins) for life in self.lives.values()]
        return {
            "submitted": sum(life.submits > 0 for life in self.lives.values()),
            "acknowledged": len(stored),
            "answered": sum(life.answer is not None for life in stored),
            "closed": sum(life.close_asked_at is not None for life in stored),
            "cancelled": sum(life.is_cancelled for life in stored),
            "executions": sum(executions),
            "executed again": sum(number - 1 for number in executions if number),
            "calls that failed": self.operations["failed"],
        }


def read_histories(clients: Iterable[list[Line]], workers: dict[str, list[Line]]) -> Histories:
    """Put the lines of all processes in the order of time."""
    found = Histories({}, Counter())
    asked: dict[tuple[int, int], Asked] = {}
    events = [(line.at, number, "", line) for number, lines in enumerate(clients) for line in lines]
    events += [(line.at, -1, worker, line) for worker, lines in workers.items() for line in lines]
    for _, client, worker, line in sorted(events, key=lambda event: event[0]):
        match line:
            case Asked():
                asked[client, line.id] = line
                life = found.lives.setdefault(line.body, Life(line.body))
                if line.operation is Operation.CLOSE:
                    life.close_asked_at = life.close_asked_at or line.at
                life.submits += line.operation is Operation.SUBMIT
            case Told():
                question = asked.pop((client, line.id))
                found.operations[line.outcome] += 1
                found.lives[question.body].told(question.operation, line.outcome, line.text, line.at)
            case Begin():
                found.lives.setdefault(line.body, Life(line.body)).begun(line, worker)
    return found
