"""What a history of calls may show: one definition for the simulator, the chaos tests and tests of your own.

Tell ``CallHistory`` what happened, in the order of time. It answers with the rules that this event breaks,
under the letters of docs/simulation.md:

(b) No worker begins a request of a lower epoch than the highest that has reached it. (d) A call ends once.
One whose caller learned that it was not executed is not begun, neither before nor after. (i) A call that
forbids a second execution has one at most; of all executions of a call at most one is not marked as
redelivered.

``RightsHistory`` does the same for runs whose connections bear keys:

(j) No principal gets more than the list of principals gives. A request is begun only if a node took it from a
principal that may call the service. Requests go to principals that may offer the service, and replies to the
principal that asked. A reply is made by a worker, and an epoch is believed of workers alone.

The author of the workers knows what a reply must look like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule is broken. ``rule`` is its letter."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"({self.rule}) {self.text}"


@dataclass(slots=True)
class _Call:
    is_once: bool = False
    is_marked: bool = False  # executions after the first carry the mark "redelivered"
    begins: list[str] = field(default_factory=list)  # who began it, and when
    unmarked: int = 0
    end: str = ""
    is_denied: bool = False  # the caller learned that nothing was executed


class CallHistory:
    """Remembers every call by its name, which is unique in the whole run."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def called(self, call: str, *, is_once: bool = False, is_marked: bool = True) -> None:
        """A call begins. ``is_once``: its caller forbids a second execution.

        ``is_marked`` False: a plain client makes a new request of each attempt, so nothing can be marked.
        """
        known = self._of(call)
        known.is_once, known.is_marked = is_once, is_marked

    def begun(
        self, call: str, at: float, *, worker: str, epoch: int, epoch_seen: int, is_redelivered: bool
    ) -> Iterator[Violation]:
        """A worker begins to execute it. ``epoch_seen`` is the highest epoch that has reached the worker.

        A frozen worker begins a request when it goes on, after another one was given it. So the execution
        without a mark need not be the first.
        """
        known = self._of(call)
        known.begins.append(f"{worker} at {at:.3f}")
        known.unmarked += not is_redelivered
        who = ", ".join(known.begins)
        if epoch < epoch_seen:
            yield Violation("b", f"{worker} began {call} of epoch {epoch} after it had seen {epoch_seen}")
        if known.is_denied:
            yield Violation("d", f"{worker} began {call}, which was answered as not executed")
        if known.is_once and len(known.begins) > 1:
            yield Violation("i", f"{call} was begun {len(known.begins)} times, which it forbids: {who}")
        if known.is_marked and known.unmarked > 1 and not is_redelivered:
            yield Violation("i", f"{call} was begun again without being marked as redelivered: {who}")

    def ended(self, call: str, outcome: str, *, may_have_executed: bool) -> Iterator[Violation]:
        """The call ends. ``may_have_executed`` is what its caller learned."""
        known = self._of(call)
        if known.end:
            yield Violation("d", f"{call} ended with {outcome}, but it had ended already: {known.end}")
        known.end = outcome
        if not may_have_executed:
            known.is_denied = True
            if known.begins:
                who = ", ".join(known.begins)
                yield Violation(
                    "d", f"{call} was answered as not executed ({outcome}), but it was begun: {who}"
                )

    def begins_of(self, call: str) -> int:
        """How often workers have begun to execute it."""
        return len(self._of(call).begins)

    def _of(self, call: str) -> _Call:
        return self._calls.setdefault(call, _Call())


class RightsHistory:
    """Rule (j). Rights are those by the list that the node had read when it acted."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def asked(self, call: str, *, may_call: bool) -> None:
        """A node hears a request of this call; ``may_call``: its sender may ask for the service."""
        if may_call:
            self._taken.add(call)

    def begun(self, call: str, *, worker: str) -> Iterator[Violation]:
        """A worker begins to execute it."""
        if call not in self._taken:
            yield Violation(
                "j", f"{worker} began {call}, which no client that may call the service asked for"
            )

    def given(self, what: str, *, by: str, to: str, may_have: bool) -> Iterator[Violation]:
        """A node sends a request or a reply; ``may_have``: the owner of the connection may get it."""
        if not may_have:
            yield Violation("j", f"{by} gave {what} to {to}, which may not have it")

    def answered(self, call: str, *, maker: str, may_answer: bool) -> Iterator[Violation]:
        """A client is handed a reply, a part of one or a failure that ``maker`` made."""
        if not may_answer:
            yield Violation("j", f"{call} was handed what {maker} made, which is no worker of the service")

    def believed(self, what: str, *, by: str, of: str, may_claim: bool) -> Iterator[Violation]:
        """A node takes a new epoch or a new role because of a message."""
        if not may_claim:
            yield Violation("j", f"{by} {what} because of a message of {of}, which may not cause that")
