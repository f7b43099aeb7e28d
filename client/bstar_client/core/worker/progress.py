"""Progress that handlers report: of each request the last value, ten a second at most.

A handler calls ``Latest.put``, as often as it likes and in any thread. The core sends the value: at once if
it sent none of this request for ``INTERVAL_S``, otherwise when that time is over (``Pace``) or before the
reply, whichever is first.
``put`` writes the value before it reads the mark, and the core clears the mark before it takes the value. So
no last value stays behind.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from bstar.wire.progress import Progress

JobT = TypeVar("JobT")

# A person sees no more of them.
INTERVAL_S = 0.1


class Latest(msgspec.Struct, eq=False, gc=False):
    """What the handler of one request has reported last, until it is sent.

    ``tell`` is the shell's: it has the core take the value (``WorkerCore.progress``).
    """

    tell: Callable[[Any], object]  # Any: the job, which has this
    is_told: bool = False
    values: deque[Progress] = msgspec.field(default_factory=lambda: deque(maxlen=1))

    def put(self, job: object, progress: Progress) -> None:
        """The job's handler is so far. Any thread may call it."""
        self.values.append(progress)
        if not self.is_told:
            self.is_told = True
            self.tell(job)

    def take(self) -> Progress | None:
        """The value, if it was not taken."""
        return self.values.popleft() if self.values else None


class Pace(Generic[JobT]):
    """The requests whose progress was sent less than ``INTERVAL_S`` ago."""

    def __init__(self) -> None:
        # Until when each of them waits; the first is due first.
        self._until: dict[JobT, float] = {}

    def __contains__(self, job: JobT) -> bool:
        return job in self._until

    def hold(self, job: JobT, now: float) -> None:
        """Its progress was sent now."""
        self._until.pop(job, None)
        self._until[job] = now + INTERVAL_S

    def next_deadline(self) -> float | None:
        """When the first of them may send again."""
        return next(iter(self._until.values()), None)

    def pop_due(self, now: float) -> list[JobT]:
        """Remove and return those that may send again."""
        due = [job for job, until in self._until.items() if now >= until]
        for job in due:
            del self._until[job]
        return due
