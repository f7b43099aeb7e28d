"""Maintains a journal's written files: closes, packs and removes them."""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from bstar.journal.options import JournalOptions
from bstar.journal.segments import Folder, Segment
from bstar.journal.troubles import Troubles

_log = logging.getLogger("bstar.journal")

_DAY_S = 86_400


class Upkeep:
    """Jobs in steps so small that the thread can write in between. ``wall_s`` is the time of day."""

    def __init__(
        self, folder: Folder, options: JournalOptions, troubles: Troubles, wall_s: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._options = options
        self._troubles = troubles
        self._wall_s = wall_s
        self.jobs: deque[Iterator[None]] = deque()

    def begin(self) -> None:
        """Seal the files that earlier runs left open, and check the bounds."""
        self.jobs.append(self._tidy())

    def seal(self, segment: Segment) -> None:
        """Close and pack a finished file."""
        self.jobs.append(self._seal(segment))

    def step(self) -> None:
        """The next small part of the first job."""
        try:
            next(self.jobs[0])
        except StopIteration:
            self.jobs.popleft()
        except OSError as error:
            self.jobs.popleft()
            self._troubles.failed("tidy", error)

    def _tidy(self) -> Iterator[None]:
        for segment in self._folder.orphans():
            _log.info("journal: closes %s, whose writer was killed", segment.path.name)
            yield from self._seal(segment)
        self._prune()

    def _seal(self, segment: Segment) -> Iterator[None]:
        try:
            yield from self._folder.seal(segment, gzip=self._options.gzip)
        except OSError as error:
            self._troubles.failed("pack", error)
            yield
            try:
                yield from self._folder.seal(segment, gzip=False)
            except OSError as final_error:
                self._troubles.failed("seal", final_error)
        finally:
            segment.close()
        self._prune()

    def _prune(self) -> None:
        keep_s = self._options.keep_days * _DAY_S
        oldest_s = self._wall_s() - keep_s if keep_s else None
        try:
            pruned = self._folder.prune(keep_bytes=self._options.keep_bytes, oldest_s=oldest_s)
        except OSError as error:
            self._troubles.failed("prune", error)
            return
        if pruned is not None:
            _log.info(
                "journal: removed %d closed files (%d octets) up to %s, as keep_bytes and keep_days say",
                pruned.files,
                pruned.octets,
                pruned.newest,
            )
