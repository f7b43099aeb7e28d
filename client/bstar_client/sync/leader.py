"""Leader/Followers: threads share sockets; one at a time is the *leader* and uses them.

The pattern is from Schmidt, Stal, Rohnert and Buschmann, "Pattern-Oriented Software Architecture 2". The
leader waits for an event and handles it in the same thread, so no event changes threads. *Followers* wait
until they are *promoted*. ``client_loop`` and ``worker_loop`` use the pattern with two additions:

- A *standby*, a thread of the loop's own, leads when no other thread does. It looks often while the lead
  changes hands, and sleeps while it does not.
- A leader promotes no thread before it calls a handler: a change of threads costs more than most handlers. It
  *leaves* the lead, and *resumes* it after the handler. The standby takes the lead from a handler that lasts.

The lead is an RLock, because an RLock knows its owner. Ctrl-C may interrupt a leader in the main thread
anywhere, so its ``finally`` cannot know whether it leads. It releases; an error shows that it did not lead.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial

from bstar_client.links.wakeup import WakeUp

# A handler that runs longer than this loses the lead.
_LASTING_S = 0.005
# After this many looks at an unchanged lead the standby sleeps until it changes.
_LOOKS_MAX = 50


class Leadership:
    """The right to lead. ``promote`` wakes one follower, if there is any; ``bell`` wakes the standby.

    ``acquire`` and ``release`` are C functions: an interrupt comes before or after them, never within.
    ``changes`` counts how often the lead was released. ``is_offered``: a follower may ``accept`` the lead;
    only a leader changes it. ``is_unwatched``: the standby sleeps until the lead is released.
    """

    def __init__(self, promote: Callable[[], object]) -> None:
        lead = threading.RLock()
        # False is a positional argument: a keyword costs 0.1 us, twice per request.
        self.acquire: Callable[[], bool] = partial(lead.acquire, False)
        self.release = lead.release
        self.changes = 0
        self.is_offered = False
        self.is_unwatched = False
        self.bell = WakeUp()
        self._lead = lead
        self._promote = promote
        # When the lead was released, while no thread leads.
        self._left_at = math.inf
        self._is_urgent = False
        self._has_ended = False
        # How often the standby has looked at this number of changes.
        self._seen = -1
        self._looks = 0

    # --- the leader ---------------------------------------------------------------------------------------

    def hand_off(self) -> None:
        """Promote a follower. The caller has just released the lead."""
        self._promote()
        self._note_change()

    def leave(self, now: float) -> None:
        """Release the lead while a handler runs."""
        self._left_at = now
        self.release()
        self.changes += 1  # _note_change inlined, twice per request: a call costs as much as its body
        if self.is_unwatched:
            self.is_unwatched = False
            self.bell.set()

    def resume(self) -> bool:
        """Lead again after the handler. False: another thread leads, or is about to."""
        if not self.acquire():
            return False
        if self.is_offered:
            # The standby took the lead meanwhile. The thread that accepts it also takes the waiting requests.
            self.release()
            return False
        self._left_at = math.inf
        return True

    def give_back(self) -> None:
        """Release the lead to the standby."""
        self.leave(-math.inf)
        self.bell.set()

    def end(self) -> None:
        """Release the lead at the end of the loop, or when a thread failed."""
        self._has_ended = True
        with contextlib.suppress(RuntimeError):
            self.release()
        self.bell.set()

    def _note_change(self) -> None:
        self.changes += 1
        if self.is_unwatched:
            self.is_unwatched = False
            self.bell.set()

    # --- a follower ---------------------------------------------------------------------------------------

    def accept(self) -> bool:
        """Accept the offered lead. False: another thread did."""
        if not self.acquire():
            return False
        self.is_offered = False
        self._left_at = math.inf
        return True

    # --- the standby --------------------------------------------------------------------------------------

    def offer(self) -> None:
        """Release the lead to the first follower that accepts it."""
        self._is_urgent = False
        self.is_offered = True
        self.leave(time.monotonic())
        self._promote()

    def take(self, look_s: float) -> bool:
        """Wait until the lead has been free for too long, then lead. False: the loop has ended."""
        while not self._has_ended:
            is_due = self._is_urgent or time.monotonic() - self._left_at >= _LASTING_S
            if is_due and self.accept():
                self._is_urgent = False
                return True
            self.pause(look_s)
        return False

    def is_here(self) -> bool:
        """True if the calling thread leads: what interrupts it asks, or what it calls."""
        return self._lead._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001 - Condition uses it, too

    def take_back(self, timeout_s: float = -1) -> bool:
        """Wait for the lead at the end of the loop. False: it did not come in time."""
        return self._lead.acquire(timeout=timeout_s)

    def urge(self) -> None:
        """Let the standby lead as soon as no other thread does. Any thread may call it."""
        self._is_urgent = True
        self.bell.set()

    def pause(self, look_s: float) -> None:
        """Wait before the next look at the lead: for ``look_s``, or, if it seldom changes, until it does."""
        if self.changes != self._seen:
            self._seen, self._looks = self.changes, 0
        self._looks += 1
        if self._looks < _LOOKS_MAX:
            self.bell.wait(look_s)
            return
        self._looks = 0
        self.is_unwatched = True
        # From here on the thread that releases the lead rings; before, ``changes`` has changed.
        if self.changes == self._seen:
            self.bell.wait(None)
        self.is_unwatched = False
