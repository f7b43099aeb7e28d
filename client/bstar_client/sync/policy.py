"""Decides which thread calls a worker's handlers: the leader itself, or followers, from the inbox.

A leader that calls the handler saves two changes of threads for each request. But it delays the next request
while the handler runs. The gains beside the constants were measured one request at a time, with an echo
handler, against a standby that always leads (docs/adr/0011-leader-followers.md).
"""

# With one thread, the leader calls handlers with a mean below this: 22 % more requests per second.
_QUICK_S = 0.002
# With several threads: a mean below the cost of a change of threads, 70 % more requests per second.
_QUICK_AMONG_S = 0.0002
# Several threads share requests that came together. After this many single ones in a row, one thread leads
# again.
_ALONE_MIN = 16
# A handler's weight in the mean, and its maximum in it: after twenty quick handlers a slow one is forgotten.
_WEIGHT = 1 / 16
_LASTING_S = 0.01
# A handler's time counts from Begin. With several threads and a limit below this, no request waits behind a
# handler.
_TIMEOUT_S_MIN = 1.0


class Policy:
    """Statistics of one worker's handlers. ``is_quick``: True if the leader may call them."""

    def __init__(self, threads: int, handler_timeout_s: float | None) -> None:
        self._has_one_thread = threads == 1
        self._quick_s = _QUICK_S if self._has_one_thread else _QUICK_AMONG_S
        if not self._has_one_thread and handler_timeout_s is not None and handler_timeout_s < _TIMEOUT_S_MIN:
            self._quick_s = 0.0
        self._mean_s = 0.0
        self._alone_in_a_row = _ALONE_MIN
        self.is_quick = self._quick_s > 0

    def note(self, busy_s: float) -> None:
        """A handler has returned after ``busy_s``."""
        mean_s = self._mean_s
        self._mean_s = mean_s = mean_s + (min(_LASTING_S, busy_s) - mean_s) * _WEIGHT
        self.is_quick = mean_s < self._quick_s

    def note_lasting(self) -> None:
        """A handler has not returned: count it as slow."""
        self.note(_LASTING_S)
        self.is_quick = False

    def note_stream(self) -> None:
        """A handler yields: the leader must send its parts, so another thread must call it."""
        self._mean_s = _LASTING_S

    def may_call(self, count: int) -> bool:
        """True if the leader may call the handlers of all ``count`` requests, while handlers are quick."""
        if self._has_one_thread:
            return True
        self._alone_in_a_row = 0 if count > 1 else min(self._alone_in_a_row + 1, _ALONE_MIN)
        return self._alone_in_a_row == _ALONE_MIN
