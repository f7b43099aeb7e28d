"""What waits for the handlers' threads of a worker: requests, fairly (``core.lanes``), and words.

Any thread puts in, any number of threads wait for something. A word is not overtaken by requests that were
put in after it, and does not wait for those before it that are not begun: it takes the place of one of them.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

from bstar_client.core.lanes import Lanes
from bstar_client.core.worker_dialects import Job

__all__ = ["Waiting"]

Word = TypeVar("Word")


class Waiting(Generic[Word]):
    """A queue of jobs and of words, which are anything else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes = Lanes()
        # A word, or None for each job in the lanes.
        self._tokens: queue.SimpleQueue[Word | None] = queue.SimpleQueue()

    def put(self, jobs: Sequence[Job], *, are_one_clients: bool = False) -> None:
        """These wait for a handler."""
        with self._lock:
            self._lanes.push(jobs, are_one_clients=are_one_clients)
        for _ in jobs:
            self._tokens.put(None)

    def say(self, word: Word) -> None:
        """To one thread, whichever."""
        self._tokens.put(word)

    def get(self) -> Job | Word:
        """Wait for the next, of either kind."""
        word = self._tokens.get()
        return self._pop() if word is None else word

    def take(self) -> list[Job]:
        """All jobs that wait, in order; a word among them came too late and is forgotten."""
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
