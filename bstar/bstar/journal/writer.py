"""The thread's half of a journal: turns buffered records into lines in files.

It makes, stamps and encodes the records, and begins and ends the files. Its portions are small, so other
threads never wait long for the interpreter lock. When the disk is full or the directory is gone, it logs that
once and retries, and completes half-written lines. It syncs nothing: a journal survives its process, not a
power cut.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bstar import records
from bstar.errors import ConfigurationError
from bstar.journal.buffer import Buffer, JournalCounters
from bstar.journal.clocks import Anchor
from bstar.journal.options import JournalOptions
from bstar.journal.segments import Folder, Segment
from bstar.records import Base, ClockStepped, Dropped, SegmentClosed

_log = logging.getLogger("bstar.journal")

# Made at once: a millisecond during which no other thread of the process runs. Smaller portions are no
# kinder: to hand the interpreter lock to and fro costs the loop more on a busy machine than to wait.
_PORTION = 512
# After a failure to write.
_RETRY_S = 1.0
# A file that somebody removed takes what is written to it along; so look, but not each time.
_LOOK_S = 1.0
# Errors that the same file may recover from; after any other the next segment is begun.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.ENOMEM))
_DAY_S = 86_400


class _Troubles:
    """Errors of the journal at ``path``: counted each time, logged once. Those of writing are logged again
    once it has worked.
    """

    def __init__(self, path: object, counters: JournalCounters) -> None:
        self._path = path
        self._counters = counters
        self._reported: set[object] = set()
        self._failing: set[object] = set()
        self._is_dropping = False

    def failed(self, what: str, error: OSError | MemoryError) -> None:
        """The disk refused something; ``what`` is "write" or "open" if that is tried again."""
        self._counters.errors += 1
        is_writing = what in ("write", "open")
        kind = (what, _number_of(error))
        if is_writing:
            self._failing.add(kind)
        if kind not in self._reported:
            self._reported.add(kind)
            _log.error(
                "journal: cannot %s in %s: %s; %s",
                what,
                self._path,
                getattr(error, "strerror", "") or str(error) or "no memory",
                "tries again, and what does not fit into the buffer until then is dropped"
                if is_writing
                else "goes on",
            )

    def mistaken(self, make: object, error: Exception) -> None:
        """A record could not be made: a defect of ours."""
        self._counters.errors += 1
        if make not in self._reported:
            self._reported.add(make)
            _log.error("journal: no record of %s could be made", make, exc_info=error)

    def wrote(self, dropped: int) -> None:
        """A turn has written all it had; ``dropped`` records did not fit into the buffer meanwhile."""
        if dropped and not self._is_dropping:
            _log.warning("journal: %d records did not fit into the buffer and were dropped", dropped)
        self._is_dropping = dropped > 0
        if self._failing:
            self._reported -= self._failing
            self._failing.clear()
            _log.warning("journal: %s is written again", self._path)


class Upkeep:
    """Closes, packs and removes written files, by jobs in steps so small that the thread can write in
    between. ``wall_s`` is the time of day.
    """

    def __init__(
        self, folder: Folder, options: JournalOptions, troubles: _Troubles, wall_s: Callable[[], float]
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
        except (OSError, MemoryError) as error:
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
        except (OSError, MemoryError) as error:
            self._troubles.failed("pack", error)
            yield
            try:
                yield from self._folder.seal(segment, gzip=False)
            except (OSError, MemoryError) as final_error:
                self._troubles.failed("seal", final_error)
        finally:
            segment.close()
        self._prune()

    def _prune(self) -> None:
        options = self._options
        try:
            pruned = self._folder.prune(
                keep_bytes=options.keep_bytes, keep_s=options.keep_days * _DAY_S, now_s=self._wall_s()
            )
        except OSError as error:
            self._troubles.failed("prune", error)
            return
        if pruned is not None:
            _log.info(
                "journal: removed %d closed files (%d bytes) up to %s, as keep_bytes and keep_days say",
                pruned.files,
                pruned.size_bytes,
                pruned.newest,
            )


class Writer:
    """Writes what ``buffer`` holds to segments in ``folder``. ``who`` are the fields that all records share.

    Raises ConfigurationError if the first segment cannot be opened, except on a full disk, which may have
    room later. After that nothing it does raises.
    """

    def __init__(
        self, options: JournalOptions, who: Mapping[str, Any], buffer: Buffer, folder: Folder, anchor: Anchor
    ) -> None:
        self._options = options
        self._buffer = buffer
        self._counters = buffer.counters
        self._folder = folder
        self._anchor = anchor
        self._troubles = _Troubles(folder.path, buffer.counters)
        self.upkeep = Upkeep(folder, options, self._troubles, anchor.wall_s)
        self._stamp = dict(who)
        self._seq = 0
        self.segment: Segment | None = None
        self._rotate_at = 0
        # What is encoded and not yet written whole, and how many lines it is.
        self._pending = memoryview(b"")
        self._pending_lines = 0
        self._retry_at = 0
        self._look_at = 0
        try:
            self._open_segment()
        except OSError as error:
            if error.errno not in _FULL:
                raise ConfigurationError(
                    f"journal.directory: cannot write to {options.directory}: {error.strerror or error}; "
                    "name a directory that this user may write to, or null to keep no journal"
                ) from error
            self._failed("open", error)
        self.upkeep.begin()

    def turn(self) -> None:
        """Write the buffered records, and begin the next segment when it is time."""
        try:
            self._turn()
        except (OSError, MemoryError) as error:
            self._failed("write", error)

    def finish(self) -> None:
        """The last turn: everything, and the end of the file. As far as the disk takes it, and in time."""
        deadline = self._anchor.mono() + int(self._options.close_timeout_s * 1e9)
        self._retry_at = 0
        self.turn()
        if self.segment is not None and not self._pending and not self._buffer.entries:
            try:
                self._end_segment()
            except (OSError, MemoryError) as error:
                self._failed("write", error)
        lost = len(self._buffer.entries) + self._pending_lines
        if lost:
            _log.error("journal: %d records could not be written and are lost", lost)
        while self.upkeep.jobs and self._anchor.mono() < deadline:
            self.upkeep.step()
        if self.segment is not None:
            self.segment.close()

    def _turn(self) -> None:
        now = self._anchor.mono()
        if now < self._retry_at:
            return
        if self.segment is not None and now >= self._look_at:
            self._look_at = now + int(_LOOK_S * 1e9)
            if not self.segment.is_there():
                self._abandon()
                raise FileNotFoundError(errno.ENOENT, "its file was removed while it was written")
        if self.segment is None:
            self._open_segment()
        self._write_pending()
        step_us = self._anchor.update()
        if step_us:
            self._write_now(ClockStepped, step_us=step_us)
        entries = len(self._buffer.entries)
        while entries > 0:
            lines, count, taken = self._next_portion(entries)
            entries -= taken
            self._write_lines(lines, count)
        dropped, requests, since = self._buffer.take_drops()
        if dropped:
            since_us = self._anchor.mono_us(since)
            self._write_now(Dropped, count=dropped, requests=requests, since_us=since_us)
        self._troubles.wrote(dropped)
        assert self.segment is not None
        if self.segment.size >= self._options.rotate_bytes or now >= self._rotate_at:
            self._end_segment()
            self._open_segment()

    def _next_portion(self, entries: int) -> tuple[list[bytes], int, int]:
        """Take some of the buffer's ``entries`` and make their lines; the lines, some of them joined, how
        many they are, and how many entries were taken.

        A record that cannot be made is a defect of ours, and only that record is lost.
        """
        take = self._buffer.entries.popleft
        stamp = self._stamp
        shift_us, offset_us = self._anchor.shift_us, self._anchor.offset_us
        seq = self._seq
        lines: list[bytes] = []
        taken = 0
        while taken < entries and seq - self._seq < _PORTION:
            taken += 1
            now, make, given = take()
            mono_us = int(now * 1e6 + shift_us)
            stamp["seq"] = seq + 1
            stamp["at"] = mono_us + offset_us
            stamp["mono"] = mono_us
            try:
                made = make(**stamp, **given) if type(given) is dict else make(stamp, *given)
                if made is None:
                    continue
                if type(made) is tuple:
                    lines.append(made[0])
                    seq += made[1]
                    continue
                lines.append(made if type(made) is bytes else records.encode(made))
            except Exception as error:  # noqa: BLE001  # the next records can be made
                self._troubles.mistaken(make, error)
                continue
            seq += 1
        count = seq - self._seq
        self._seq = seq
        return lines, count, taken

    def _write_now(self, kind: type[Base], **fields: Any) -> None:  # Any: see Base
        """Write one of the journal's own records, past the buffer."""
        mono_us = self._anchor.mono_us(self._anchor.now())
        self._seq += 1
        stamp = self._stamp | {"seq": self._seq, "at": mono_us + self._anchor.offset_us, "mono": mono_us}
        self._write_lines([records.encode(kind(**stamp, **fields))], 1)

    def _write_lines(self, lines: list[bytes], count: int) -> None:
        """Write; the rest stays pending."""
        if not lines:
            return
        lines.append(b"")
        try:
            self._pending = memoryview(b"\n".join(lines))
        except MemoryError:
            self._seq -= count
            self._buffer.drop(self._anchor.now(), count, 0)
            raise
        self._pending_lines = count
        self._counters.records += count
        self._write_pending()

    def _write_pending(self) -> None:
        while self._pending:
            assert self.segment is not None
            count = self.segment.write(self._pending)
            self._counters.size_bytes += count
            self._pending = self._pending[count:]
        if self._pending_lines:
            assert self.segment is not None
            self.segment.lines += self._pending_lines
            self._pending_lines = 0

    def _open_segment(self) -> None:
        self.segment = self._folder.open(self._anchor.wall_s())
        now = self._anchor.mono()
        self._rotate_at = now + int(self._options.rotate_s * 1e9)
        self._look_at = now + int(_LOOK_S * 1e9)
        self._counters.segments += 1

    def _end_segment(self) -> None:
        """Write its last line and seal it."""
        segment = self.segment
        assert segment is not None
        self._write_now(SegmentClosed, lines=segment.lines)
        self.segment = None
        self.upkeep.seal(segment)

    def _abandon(self) -> None:
        """Write no more to this segment. A half-written line starts over in the next one."""
        assert self.segment is not None
        if self._pending:
            portion = self._pending.obj
            assert isinstance(portion, bytes)
            begin = portion.rfind(b"\n", 0, len(portion) - len(self._pending)) + 1
            self._pending = memoryview(portion[begin:])
            self._pending_lines = portion.count(b"\n", begin)
        if self.segment.is_there():
            self.upkeep.seal(self.segment)
        else:
            self.segment.close()
        self.segment = None

    def _failed(self, what: str, error: OSError | MemoryError) -> None:
        """Writing failed: try again later, in the next segment unless the disk is only full."""
        self._troubles.failed(what, error)
        self._retry_at = self._anchor.mono() + int(_RETRY_S * 1e9)
        if self.segment is not None and _number_of(error) not in _FULL:
            self._abandon()


def _number_of(error: OSError | MemoryError) -> int:
    return errno.ENOMEM if isinstance(error, MemoryError) else error.errno or 0
