"""What a worker's handlers have said and nobody has sent yet.

Any thread posts; the thread that attends to the sockets takes, and is woken if it sleeps. The other way
round it holds up handlers that say more than the network takes, and those that would keep the interpreter to
themselves while finished replies wait.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

from bstar_client.core.worker_dialects import Job
from bstar_client.wakeup import WakeUp

__all__ = ["UNSENT_S_MAX", "Kind", "Outbox"]

# A handler that goes on and on does not keep finished replies back for longer.
UNSENT_S_MAX = 0.001
# If the network takes nothing, handlers go on after so long all the same.
_SENDING_S_MAX = 0.05
# Parts of replies that wait to be sent; a handler that yields faster than the network takes them waits here.
_RESULTS_MAX = 1_000
# How soon a handler that waits for room notices that its request has ended.
_LOOK_S = 1.0

# "replay", "refusal" and "expired" are answers of requests that were not executed.
Kind = Literal["partial", "final", "failure", "replay", "refusal", "expired"]


class Outbox:
    """Results in order. ``is_asleep`` is set by who sends, before it looks a last time and sleeps."""

    def __init__(self, wakeup: WakeUp) -> None:
        self.results: deque[tuple[Job, list[bytes], Kind]] = deque()
        self.is_asleep = False
        self._wakeup = wakeup
        # When the oldest of them became ready.
        self._unsent_since = 0.0
        self._is_ended = False
        self._changed = threading.Condition()
        self._waiting = 0
        self._takes = 0

    # --- the handlers' side -------------------------------------------------------------------------------

    def post(self, job: Job, body: list[bytes], kind: Kind) -> None:
        """One more result."""
        if not self.results:
            self._unsent_since = job.ended_at
        self.results.append((job, body, kind))
        if self.is_asleep:
            self.is_asleep = False
            self._wakeup.set()

    def wait_for_room(self, job: Job) -> bool:
        """Wait while too many results are unsent. False: nobody waits for the rest of this job's."""
        while len(self.results) >= _RESULTS_MAX and not job.is_ended and not self._is_ended:
            self._wait(lambda: len(self.results) < _RESULTS_MAX, _LOOK_S)
        return not (job.is_ended or self._is_ended)

    def let_go(self, now: float) -> None:
        """If results wait for long, wait until they are taken; not for ever, if the network is stuck."""
        if not self.results or now - self._unsent_since <= UNSENT_S_MAX:
            return
        takes = self._takes
        self._wait(lambda: self._takes != takes or not self.results, _SENDING_S_MAX)

    def _wait(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: is_over() or self._is_ended, timeout_s)
            finally:
                self._waiting -= 1

    # --- the sender's side --------------------------------------------------------------------------------

    def taken(self) -> None:
        """Some or all results were taken."""
        self._takes += 1
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def end(self) -> None:
        """Nothing is sent any more."""
        self._is_ended = True
        with self._changed:
            self._changed.notify_all()
