"""A journal's errors: counted each time, logged once."""

import logging

from bstar.journal.buffer import JournalCounters

_log = logging.getLogger("bstar.journal")


class Troubles:
    """The troubles of the journal at ``path``. Those of writing are logged again once it has worked."""

    def __init__(self, path: object, counters: JournalCounters) -> None:
        self._path = path
        self._counters = counters
        self._told: set[object] = set()
        self._failing: set[object] = set()
        self._is_dropping = False

    def failed(self, what: str, error: OSError) -> None:
        """The disk refused something; ``what`` is "write" or "open" if that is tried again."""
        self._counters.errors += 1
        is_writing = what in ("write", "open")
        kind = (what, error.errno)
        if is_writing:
            self._failing.add(kind)
        if kind not in self._told:
            self._told.add(kind)
            _log.error(
                "journal: cannot %s in %s: %s; %s",
                what,
                self._path,
                error.strerror or error,
                "tries again, and what does not fit into the buffer until then is dropped"
                if is_writing
                else "goes on",
            )

    def mistaken(self, make: object, error: Exception) -> None:
        """A record could not be made: a defect of ours."""
        self._counters.errors += 1
        if make not in self._told:
            self._told.add(make)
            _log.error("journal: no record of %s could be made", make, exc_info=error)

    def wrote(self, dropped: int) -> None:
        """A turn has written all it had; ``dropped`` records did not fit into the buffer meanwhile."""
        if dropped and not self._is_dropping:
            _log.warning("journal: %d records did not fit into the buffer and were dropped", dropped)
        self._is_dropping = dropped > 0
        if self._failing:
            self._told -= self._failing
            self._failing.clear()
            _log.warning("journal: %s is written again", self._path)
