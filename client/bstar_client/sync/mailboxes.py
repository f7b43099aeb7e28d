"""The two mailboxes between a worker's loop and its handlers' threads: requests go in, results come out.

``Inbox`` holds requests, fair between clients, and commands to the threads. ``Outbox`` holds unsent results,
wakes the leader for them, and slows handlers down (backpressure).
"""

import enum
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.lanes import Lanes
from bstar_client.links.wakeup import WakeUp
from bstar_client.workers.dispatch import Result

# Finished replies wait no longer than this for a handler that still runs.
UNSENT_S_MAX = 0.001
# A handler goes on after this pause, even if the network takes nothing.
_SENDING_S_MAX = 0.05
# A handler that yields faster than the network takes waits while this many results are unsent.
_RESULTS_MAX = 1_000
# A handler that waits for room checks this often whether its request has ended.
_LOOK_S = 1.0


class Word(enum.Enum):
    """A command to a handler thread."""

    LEAD = enum.auto()
    END = enum.auto()


class Inbox:
    """Requests and commands for the handler threads. Any thread may put; many threads may wait.

    A command never comes after requests that were put later. It may come before earlier requests, because it
    takes the turn of one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes = Lanes()
        # A command, or None for each job in the lanes.
        self._tokens: queue.SimpleQueue[Word | None] = queue.SimpleQueue()

    def put(self, jobs: Sequence[Job], *, are_one_clients: bool = False) -> None:
        """Add requests that need a handler."""
        with self._lock:
            self._lanes.push(jobs, are_one_clients=are_one_clients)
        for _ in jobs:
            self._tokens.put(None)

    def tell(self, word: Word) -> None:
        """Give a command to the first thread that asks."""
        self._tokens.put(word)

    def get(self) -> Job | Word:
        """Wait for the next request or command."""
        return self._tokens.get() or self._pop()

    def take_all(self) -> list[Job]:
        """Take every request, in order, and drop the commands."""
        jobs = []
        try:
            while True:
                if self._tokens.get_nowait() is None:
                    jobs.append(self._pop())
        except queue.Empty:
            return jobs

    def _pop(self) -> Job:
        with self._lock:
            return self._lanes.pop()


class Outbox:
    """Results in order. The leader sets ``is_asleep``, looks a last time, and sleeps."""

    def __init__(self, wakeup: WakeUp) -> None:
        self.results: deque[Result] = deque()
        self.is_asleep = False
        self._wakeup = wakeup
        self._unsent_since = 0.0
        self._is_ended = False
        self._changed = threading.Condition()
        self._waiting = 0
        self._takes = 0

    # --- handlers' threads --------------------------------------------------------------------------------

    def post(self, result: Result) -> None:
        """Add a result and wake the leader if it sleeps."""
        if not self.results:
            self._unsent_since = result[0].ended_at
        self.results.append(result)
        if self.is_asleep:
            self.is_asleep = False
            self._wakeup.set()

    def wait_for_room(self, job: Job) -> bool:
        """Wait while too many results are unsent. False: no caller waits for the rest of this job."""
        while len(self.results) >= _RESULTS_MAX and not job.is_ended and not self._is_ended:
            self._wait(lambda: len(self.results) < _RESULTS_MAX, _LOOK_S)
        return not (job.is_ended or self._is_ended)

    def yield_to_leader(self, now: float) -> None:
        """Let the leader send if results wait for long: this thread may hold the GIL."""
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

    # --- the leader ---------------------------------------------------------------------------------------

    def note_taken(self) -> None:
        """The leader has taken results: let waiting handlers go on."""
        self._takes += 1
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def end(self) -> None:
        """Send nothing from now on; wake every waiting handler."""
        self._is_ended = True
        with self._changed:
            self._changed.notify_all()
