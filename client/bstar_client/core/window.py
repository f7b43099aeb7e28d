"""The window of one ``map``: how many requests are in flight, which body is next, which outcome is next."""

from collections.abc import Callable, Iterable

from bstar.errors import BstarError, CallTimeoutError, LocalProtocolError
from bstar_client.core.calls import Asked, Call, CallFailed, Outcome, Reply
from bstar_client.core.counters import Counters

# A window shrinks by this factor when the broker says BUSY.
_BUSY_SHRINK = 0.75


class Pace:
    """The limit on requests in flight: the window, or less while a broker says BUSY.

    A BUSY takes a quarter off, at most once per round of replies. A round without BUSY adds one. So the
    requests fill a queue that is shorter than the window, and do not overrun it.
    """

    def __init__(self, window: int, counters: Counters) -> None:
        self._window = float(window)
        self._counters = counters
        self._busy = counters.busy
        self._settling = 0.0
        self.limit = self._window

    def take(self, replies: int) -> None:
        """``replies`` calls have ended."""
        busy = self._counters.busy
        if busy == self._busy:
            self.limit = min(self._window, self.limit + replies / self.limit)
        elif self._settling <= 0:
            self.limit = max(1.0, self.limit * _BUSY_SHRINK)
            self._settling = self.limit
        self._busy = busy
        self._settling -= replies


class Window:
    """A sliding window over the bodies of one ``map``.

    The shell reads ``room`` bodies, lets ``begin`` make their calls and sends them. It hands outcomes to
    ``take`` and yields those that ``ready`` returns. It sets ``is_exhausted`` when there are no more bodies.
    With ``is_returning`` a failure becomes a CallFailed; otherwise ``begin`` and ``take`` raise it. ``name``
    is the method's, for the note that says which body failed.
    """

    def __init__(
        self, size: int, counters: Counters, name: str = "map", *, is_ordered: bool, is_returning: bool
    ) -> None:
        self._name = name
        self.in_flight: dict[int, Call] = {}
        self.is_exhausted = False
        self._is_ordered = is_ordered
        self._is_returning = is_returning
        self._pace = Pace(size, counters)
        # Outcomes that were not yielded yet, by the position of their bodies.
        self._outcomes: dict[int, Reply | CallFailed] = {}
        self._begun = self._ended = self._given = 0

    @property
    def room(self) -> int:
        """How many bodies to begin now: 0 until a quarter of the window is free, so that many go together."""
        limit = int(self._pace.limit)
        used = self._begun - self._given
        return 0 if self.is_exhausted or used > limit - limit // 4 else max(0, limit - used)

    @property
    def is_over(self) -> bool:
        """True if every body's outcome was yielded."""
        return self.is_exhausted and self._begun == self._given

    def begin(self, bodies: Iterable[Asked], make_call: Callable[[Asked, int], Call]) -> list[Call]:
        """The calls for the next bodies. They are in flight from now on; a body that cannot be sent has
        failed.
        """
        calls = []
        for body in bodies:
            index = self._begun
            try:
                call = make_call(body, index)
            except (LocalProtocolError, CallTimeoutError) as error:
                if not self._is_returning:
                    raise
                self._outcomes[index] = CallFailed(error, index)
            else:
                self.in_flight[index] = call
                calls.append(call)
            self._begun += 1
        return calls

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """These calls have ended."""
        in_flight = self.in_flight
        for call, outcome in outcomes:
            index = call.index
            # After an interruption an outcome may come twice.
            if in_flight.pop(index, None) is None:
                continue
            self._ended += 1
            if type(outcome) is Reply:
                self._outcomes[index] = outcome
                continue
            assert isinstance(outcome, BstarError)
            if not self._is_returning:
                outcome.add_note(f"body {index} of {self._name}()")
                raise outcome
            self._outcomes[index] = CallFailed(outcome, index, call.attempts, call.elapsed_s)

    def ready(self) -> list[Reply | CallFailed]:
        """The outcomes to yield now: in the order of the bodies, or in any order."""
        self._pace.take(self._ended)
        self._ended = 0
        outcomes = self._outcomes
        if not self._is_ordered:
            self._outcomes = {}
            self._given += len(outcomes)
            return list(outcomes.values())
        ready = []
        while self._given in outcomes:
            ready.append(outcomes.pop(self._given))
            self._given += 1
        return ready
