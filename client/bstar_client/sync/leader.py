"""Which of a worker's threads attends to its sockets: the right to *lead*, which one thread has at a time.

A worker has its *keeper*, the thread that called ``run`` (or that ``start`` made), and its handlers' threads.
While handlers are quick a handler's thread leads and calls them itself, between receiving a request and
sending its reply, so that no thread waits for another. While they are not, the keeper leads and the handlers'
threads take requests from a queue.

Before a leader calls a handler it leaves its right where the keeper can take it (``leave``), and picks it up
afterwards (``resume``) if it is still there. The keeper looks every few milliseconds as long as handlers are
called, and takes the right from a handler that lasts: heartbeats, other replies, limits of time and the end
of the worker do not wait for it. When no handler has been called for a while the keeper sleeps until one is.

Nothing here knows sockets or requests. A right is passed on by a change of a dict, which one thread alone can
make; that, the interpreter's lock and the descriptor that wakes the keeper order what the threads see, as
libzmq demands of sockets that are used by one thread after the other.
"""

import math
import select
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from bstar_client.wakeup import WakeUp

__all__ = ["Lead"]

# A handler in the thread that leads lasts once it has taken so long. The keeper looks as often, so replies
# that are ready wait for at most twice the time behind it.
_LASTING_S = 0.005
_LOOK_MS = 5
# How often the keeper looks in vain, 0.25 s in all, before it sleeps.
_LOOKS_MAX = 50
# How long the keeper waits for the lead at the end.
_TAKE_BACK_S = 2.0

_GONE: Final = object()


class Lead:
    """The right to lead."""

    def __init__(self) -> None:
        # The right, while nobody has it: under the key of the handler that its leader calls or of an offer,
        # since when.
        self.left: dict[Hashable, float] = {}
        # Does the keeper look by itself?
        self.is_watched = True
        self.is_offered = False
        self._is_urgent = False
        self._has_ended = False
        self._leader = 0
        self._watch = WakeUp()
        self._poller = select.poll()
        self._poller.register(self._watch.fd, select.POLLIN)

    @property
    def is_mine(self) -> bool:
        """Does the calling thread attend to the sockets now, and call no handler?"""
        return self._leader == threading.get_ident() and not self.left

    def urge(self) -> None:
        """The keeper is to lead as soon as it can: do not wait for the handler. Any thread may call it."""
        self._is_urgent = True
        self._watch.set()

    # --- handlers' threads --------------------------------------------------------------------------------

    def accept(self) -> bool:
        """Take what the keeper offered; False: somebody else did, or the keeper itself."""
        self.is_offered = False
        for key in list(self.left):
            if isinstance(key, _Offer) and self.left.pop(key, _GONE) is not _GONE:
                self._leader = threading.get_ident()
                return True
        return False

    def leave(self, key: Hashable, now: float) -> None:
        """A handler is about to be called. ``key`` is never used twice."""
        self.left[key] = now
        if not self.is_watched:
            self.is_watched = True
            self._watch.set()

    def resume(self, key: Hashable) -> bool:
        """The handler has returned. False: another thread leads by now."""
        return self.left.pop(key, _GONE) is not _GONE

    def give_back(self) -> None:
        """Let the keeper lead."""
        self.left[_Offer()] = -math.inf
        self._watch.set()

    def end(self) -> None:
        """The leader leaves for ever: nobody else is to lead, and the keeper may tidy up."""
        self._leader = 0
        self._has_ended = True
        self._watch.set()

    # --- the keeper ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The calling thread is the keeper, and leads."""
        self._leader = threading.get_ident()

    def offer(self) -> None:
        """Let one of the handlers' threads lead, whichever comes first; ``wait`` belongs after it."""
        self._is_urgent = False
        self.left[_Offer()] = time.monotonic()
        self.is_offered = True

    def wait(self, beats: Callable[[], int]) -> bool:
        """Until the keeper leads (True) or the worker has ended.

        ``beats`` is a number that changes while handlers are called.
        """
        looks, beat = 0, beats()
        while not self._take():
            if self._has_ended:
                return False
            looks += 1
            if (seen := beats()) != beat:
                looks, beat = 0, seen
            if looks < _LOOKS_MAX:
                self._sleep(_LOOK_MS)
                continue
            looks = 0
            self.is_watched = False
            # Who leaves the right from now on says so.
            if not self.left:
                self._sleep(None)
            self.is_watched = True
        return True

    def take_back(self, timeout_s: float = _TAKE_BACK_S) -> bool:
        """Lead, as soon as the leader calls a handler or gives up, which it does soon: it has been told.

        False: it does not. Then a hook of the user's does not return, and what it attends to is not ours.
        """
        self._is_urgent = True
        until = time.monotonic() + timeout_s
        while self._leader != threading.get_ident() and not self._has_ended and not self._take():
            if time.monotonic() >= until:
                return False
            self._sleep(_LOOK_MS)
        return True

    def _sleep(self, timeout_ms: int | None) -> None:
        if self._poller.poll(timeout_ms):
            self._watch.clear()

    def _take(self) -> bool:
        for key in list(self.left):
            since = self.left.get(key, math.inf)
            is_due = self._is_urgent or time.monotonic() - since >= _LASTING_S
            if is_due and self.left.pop(key, _GONE) is not _GONE:
                self._leader = threading.get_ident()
                self.is_offered = self._is_urgent = False
                return True
        return False


class _Offer:
    """The key of a right that was left without calling a handler."""

    __slots__ = ()
