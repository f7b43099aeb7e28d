"""A journal's two halves: a bounded buffer that anybody may append to, and the thread that empties it.

Records are of two classes. Those about single requests (``offer``) may be many; they take three quarters of
the buffer, and what does not fit is counted. All others (``write``) have the last quarter for themselves and
wake the thread, which gives them to the operating system at once; from there they survive the process.

The thread makes the records, stamps and encodes them, in portions small enough that the interpreter lock is
never kept from the others for long, and looks after the files: begins, closes, packs and removes them. When
the disk is full or the directory gone it says so once and tries again, and what was written half is
finished later. It syncs nothing to the disk: a journal survives its process, not the machine's power cut.
"""

import errno
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

import bstar
from bstar import records
from bstar.errors import ConfigurationError
from bstar.journal.clocks import Anchor, NsClock, mono_ns, wall_ns
from bstar.journal.options import JournalOptions
from bstar.journal.segments import Disk, Folder, Segment, is_name
from bstar.records import Base, ClockStepped, Dropped, SegmentClosed, Started, Stopped
from bstar.sampling import is_sampled, limit_of

__all__ = ["Journal", "JournalCounters", "Make"]

_log = logging.getLogger("bstar.journal")

Make = Callable[..., Base | bytes | tuple[bytes, int] | None]
"""Makes a record of what ``Journal.offer`` was given: ``make(stamp, *args)`` returns
``Kind(**stamp, field=…)``, or None for nothing. It runs in the journal's thread. Where each microsecond
counts it may return the record's line instead, without the newline: whoever does so shows in a test that it
says the same."""

# Made at once: a millisecond during which no other thread of the process runs. Smaller portions are no
# kinder: to hand the interpreter lock to and fro costs the loop more on a busy machine than to wait.
_PORTION = 512
# After a failure to write.
_RETRY_S = 1.0
# A file that somebody removed takes what is written to it along; so look, but not each time.
_LOOK_S = 1.0
_DAY_S = 86_400
# Errors that the same file may recover from; after any other the next segment is begun.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))

_MACHINE = Path("/proc/sys/kernel/random/boot_id")

# Any: fields of all kinds of records.
_Entry = tuple[float, Callable[..., Any], Mapping[str, Any] | tuple[Any, ...]]


class JournalCounters(msgspec.Struct):
    """Since the journal was opened. ``dropped`` includes ``dropped_requests``."""

    records: int = 0
    octets: int = 0
    segments: int = 0
    dropped: int = 0
    dropped_requests: int = 0
    errors: int = 0


class Journal:
    """The journal of one process.

    ``pair`` and ``node`` name it, in its records and in its files' names. ``boot`` (32 hex digits) is this
    run of the process, random unless given. ``clock`` is what the ``now`` of ``write`` and ``offer`` was
    read from, in seconds: None means the machine's monotonic clock as the reactor reads it (CLOCK_BOOTTIME
    where there is one). ``started`` are the fields of the first record that only its owner knows. ``who`` are
    the fields that all its records share; ``weight`` is for how many requests each recorded one stands.

    Raises ConfigurationError for a directory that cannot be written to, and names that cannot be. After
    that nothing it does raises.
    """

    def __init__(
        self,
        options: JournalOptions,
        *,
        pair: str,
        node: str,
        source: Literal["broker", "client", "worker"],
        boot: str | None = None,
        clock: Callable[[], float] | None = None,
        started: Mapping[str, object] | None = None,
        disk: Disk | None = None,
        mono: NsClock = mono_ns,
        wall: NsClock = wall_ns,
        has_thread: bool = True,
    ) -> None:
        if not is_name(node):
            raise ConfigurationError(
                f"journal: a node's name is 1 to 64 letters, digits, '_' and '-', not {node!r}"
            )
        self.options = options
        self.boot = os.urandom(16).hex() if boot is None else boot
        self.limit = limit_of(options.sample)
        self.weight = 1 / options.sample if options.sample else 0.0
        self.counters = JournalCounters()
        self._pair = pair
        self._mono = mono
        self._source_clock = clock if clock is not None else lambda: mono() / 1e9
        self._anchor = Anchor(clock, mono=mono, wall=wall)
        self.who: dict[str, Any] = {"v": records.VERSION, "pair": pair, "node": node, "boot": self.boot}
        self._stamp = dict(self.who)
        self._folder = Folder(options.directory, pair, node, self.boot, disk if disk is not None else Disk())
        self._segment: Segment | None = None
        self._rotate_at = 0
        self._seq = 0
        # What is encoded and not yet written whole, and where its lines begin.
        self._pending = memoryview(b"")
        self._pending_lines = 0
        self._retry_at = 0
        self._look_at = 0
        # What has been said: of writing until it works again, of all else once.
        self._failing: set[object] = set()
        self._told: set[object] = set()
        self._is_dropping = False
        self._jobs: deque[Iterator[None]] = deque()

        self._buffer: deque[_Entry] = deque()
        self._room = options.buffer_records * 3 // 4
        self._room_kept = options.buffer_records
        self._drop_lock = threading.Lock()
        self._dropped = [0, 0]
        self._dropped_since = 0.0
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_woken = False
        self._is_closing = False
        self._is_closed = False

        self._begin()
        self.write(Started, self._source_clock(), **self._started(source, started or {}))
        self._jobs.append(self._tidy())
        self._thread: threading.Thread | None = None
        if has_thread:
            self._thread = threading.Thread(target=self._run, name="bstar-journal", daemon=True)
            self._thread.start()

    def _begin(self) -> None:
        """Open the first segment; a disk that is full may have room later, anything else is a mistake."""
        try:
            self._open_segment()
        except OSError as error:
            if error.errno in _FULL:
                self._failed("open", error)
                return
            raise ConfigurationError(
                f"journal.directory: cannot write to {self.options.directory}: {error.strerror or error}; "
                "name a directory that this user may write to, or null to keep no journal"
            ) from error

    def _started(self, source: str, fields: Mapping[str, object]) -> dict[str, Any]:
        machine = ""
        with suppress(OSError):
            machine = _MACHINE.read_text(encoding="ascii").strip().replace("-", "")
        return {
            "source": source,
            "version": bstar.__version__,
            "machine": machine,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sample": self.options.sample,
            **fields,
        }

    # --- from any thread ----------------------------------------------------------------------------------

    def write(self, kind: type[Base], now: float, /, **fields: Any) -> None:  # Any: see Base
        """Keep a record, in any case: a change of state, say. ``fields`` are those of ``kind`` itself."""
        if len(self._buffer) < self._room_kept:
            self._buffer.append((now, kind, fields))
            if not self._is_woken:
                self._is_woken = True
                self._wake.put(None)
        else:
            self._drop(now, 0)

    def offer(self, now: float, make: Make, /, *args: Any) -> None:  # Any: whatever make wants
        """Keep a record about a request, an execution or a call, if there is room.

        ``make`` is called in another thread, later: ``args`` must not change any more.
        """
        if len(self._buffer) < self._room:
            self._buffer.append((now, make, args))
        else:
            self._drop(now, 1)

    def offer_all(self, count: int, now: float, make: Make, /, *args: Any) -> None:  # Any: as in offer
        """The same for ``count`` records of one moment, of which ``make`` returns the lines, joined, and how
        many they are; their sequence numbers go up from that of the stamp.
        """
        if len(self._buffer) < self._room:
            self._buffer.append((now, make, args))
        else:
            self._drop(now, count)

    def is_sampled(self, identity: bytes) -> bool:
        """Is the request of this identity (24 octets) one of those to be recorded?"""
        return is_sampled(identity, self.limit)

    def _drop(self, now: float, requests: int) -> None:
        with self._drop_lock:
            if not self._dropped[0]:
                self._dropped_since = now
            self._dropped[0] += 1
            self._dropped[1] += requests
            self.counters.dropped += 1
            self.counters.dropped_requests += requests

    def close(self, reason: str | None = "") -> None:
        """Write what is buffered, ``stopped`` and the end of the file, in bounded time. Idempotent.

        ``reason`` None says that the process does not end in good order: then there is no ``stopped``.
        """
        if self._is_closing:
            return
        if reason is not None:
            self.write(Stopped, self._source_clock(), reason=reason)
        self._is_closing = True
        # Whatever comes now comes too late; it is counted, and nobody can be told.
        self._room = self._room_kept = 0
        self._wake.put(None)
        if self._thread is threading.current_thread():
            return  # the collector closes it there; the thread sees that it is closed
        if self._thread is not None:
            self._thread.join(self.options.close_timeout_s + 1)
            if self._thread.is_alive():
                _log.error("journal: %s does not take any more; its last records are lost", self._folder.path)
        else:
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if kind is None else None)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        interval_ns = int(self.options.flush_interval_s * 1e9)
        flush_at = 0
        while not self._is_closing:
            if self._jobs:
                self._step_job()
                if not self._is_woken and self._mono() < flush_at:
                    continue
                timeout_s = 0.0
            else:
                timeout_s = max(0.0, (flush_at - self._mono()) / 1e9)
            with suppress(Empty):
                self._wake.get(timeout=timeout_s)
            self._is_woken = False
            self.turn()
            flush_at = self._mono() + interval_ns
        self._finish()

    def turn(self) -> None:
        """Write what is buffered, and begin the next segment when it is time. What the thread does."""
        try:
            self._turn()
        except OSError as error:
            self._failed("write", error)

    def _turn(self) -> None:
        now = self._mono()
        if now < self._retry_at:
            return
        if self._segment is not None and now >= self._look_at:
            self._look_at = now + int(_LOOK_S * 1e9)
            if not self._segment.is_there():
                self._abandon()
                raise FileNotFoundError(errno.ENOENT, "its file was removed while it was written")
        if self._segment is None:
            self._open_segment()
        self._write_pending()
        step_us = self._anchor.update()
        if step_us:
            self._write_now(ClockStepped, step_us=step_us)
        entries = len(self._buffer)
        while entries > 0:
            lines, count, taken = self._next_portion(entries)
            entries -= taken
            self._write_lines(lines, count)
        self._tell_of_drops()
        if self._failing:
            self._told -= self._failing
            self._failing.clear()
            _log.warning("journal: %s is written again", self._folder.path)
        assert self._segment is not None
        if self._segment.size >= self.options.rotate_bytes or now >= self._rotate_at:
            self._end_segment()
            self._open_segment()

    def _next_portion(self, entries: int) -> tuple[list[bytes], int, int]:
        """Take some of the buffer's ``entries`` and make their lines; the lines, some of them joined, how
        many they are, and how many entries were taken.

        One that cannot be made is a mistake of ours, and costs nothing but itself.
        """
        take = self._buffer.popleft
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
                self._mistaken(make, error)
                continue
            seq += 1
        count = seq - self._seq
        self._seq = seq
        return lines, count, taken

    def _write_now(self, kind: type[Base], **fields: Any) -> None:  # Any: see Base
        """A record of the journal's own, past the buffer."""
        mono_us = self._anchor.mono_us(self._source_clock())
        self._seq += 1
        stamp = self._stamp | {"seq": self._seq, "at": mono_us + self._anchor.offset_us, "mono": mono_us}
        self._write_lines([records.encode(kind(**stamp, **fields))], 1)

    def _write_lines(self, lines: list[bytes], count: int) -> None:
        """Write; what could not be written stays pending."""
        if not lines:
            return
        lines.append(b"")
        self._pending = memoryview(b"\n".join(lines))
        self._pending_lines = count
        self.counters.records += self._pending_lines
        self._write_pending()

    def _write_pending(self) -> None:
        while self._pending:
            assert self._segment is not None
            count = self._segment.write(self._pending)
            self.counters.octets += count
            self._pending = self._pending[count:]
        if self._pending_lines:
            assert self._segment is not None
            self._segment.lines += self._pending_lines
            self._pending_lines = 0

    def _tell_of_drops(self) -> None:
        with self._drop_lock:
            count, requests = self._dropped
            since = self._dropped_since
            self._dropped = [0, 0]
        if not count:
            self._is_dropping = False
            return
        self._write_now(Dropped, count=count, requests=requests, since_us=self._anchor.mono_us(since))
        if not self._is_dropping:
            self._is_dropping = True
            _log.warning("journal: %d records did not fit into the buffer and were dropped", count)

    # --- files --------------------------------------------------------------------------------------------

    def _open_segment(self) -> None:
        now = self._mono()
        self._segment = self._folder.open((now / 1e3 + self._anchor.offset_us) / 1e6)
        self._rotate_at = now + int(self.options.rotate_s * 1e9)
        self._look_at = now + int(_LOOK_S * 1e9)
        self.counters.segments += 1

    def _end_segment(self) -> None:
        """Write its last line and have it sealed."""
        segment = self._segment
        assert segment is not None
        self._write_now(SegmentClosed, lines=segment.lines)
        self._segment = None
        self._jobs.append(self._seal(segment))

    def _abandon(self) -> None:
        """Write no more to this segment. A line that is half in it begins anew in the next."""
        assert self._segment is not None
        if self._pending:
            portion = self._pending.obj
            assert isinstance(portion, bytes)
            begin = portion.rfind(b"\n", 0, len(portion) - len(self._pending)) + 1
            self._pending = memoryview(portion[begin:])
            self._pending_lines = portion.count(b"\n", begin)
        if self._segment.is_there():
            self._jobs.append(self._seal(self._segment))
        else:
            self._segment.close()
        self._segment = None

    def _tidy(self) -> Iterator[None]:
        """Seal what earlier runs left open, and see whether there is too much."""
        for segment in self._folder.orphans():
            _log.info("journal: closes %s, whose writer was killed", segment.path.name)
            yield from self._seal(segment)
        self._prune()

    def _seal(self, segment: Segment) -> Iterator[None]:
        try:
            yield from self._folder.seal(segment, gzip=self.options.gzip)
        except OSError as error:
            self._failed("pack", error)
            yield
            try:
                yield from self._folder.seal(segment, gzip=False)
            except OSError as final_error:
                self._failed("seal", final_error)
        finally:
            segment.close()
        self._prune()

    def _prune(self) -> None:
        keep_s = self.options.keep_days * _DAY_S
        now_s = (self._mono() / 1e3 + self._anchor.offset_us) / 1e6
        try:
            pruned = self._folder.prune(
                keep_bytes=self.options.keep_bytes, oldest_s=now_s - keep_s if keep_s else None
            )
        except OSError as error:
            self._failed("prune", error)
            return
        if pruned is not None:
            _log.info(
                "journal: removed %d closed files (%d octets) up to %s, as keep_bytes and keep_days say",
                pruned.files,
                pruned.octets,
                pruned.newest,
            )

    def _step_job(self) -> None:
        job = self._jobs[0]
        try:
            next(job)
        except StopIteration:
            self._jobs.popleft()
        except OSError as error:
            self._jobs.popleft()
            self._failed("tidy", error)

    # --- what goes wrong ----------------------------------------------------------------------------------

    def _failed(self, what: str, error: OSError) -> None:
        self.counters.errors += 1
        is_writing = what in ("write", "open")
        kind = (what, error.errno)
        if kind not in self._told:
            self._told.add(kind)
            _log.error(
                "journal: cannot %s in %s: %s; %s",
                what,
                self._folder.path,
                error.strerror or error,
                "tries again, and what does not fit into the buffer until then is dropped"
                if is_writing
                else "goes on",
            )
        if is_writing:
            self._failing.add(kind)
            self._retry_at = self._mono() + int(_RETRY_S * 1e9)
            if self._segment is not None and error.errno not in _FULL:
                self._abandon()

    def _mistaken(self, make: object, error: Exception) -> None:
        self.counters.errors += 1
        if make not in self._told:
            self._told.add(make)
            _log.error("journal: no record of %s could be made", make, exc_info=error)

    def _finish(self) -> None:
        """The last turn: everything, and the end of the file. As far as the disk takes it, and in time."""
        deadline = self._mono() + int(self.options.close_timeout_s * 1e9)
        self._retry_at = 0
        self.turn()
        if self._segment is not None and not self._pending and not self._buffer:
            try:
                self._end_segment()
            except OSError as error:
                self._failed("write", error)
        lost = len(self._buffer) + self._pending_lines
        if lost:
            _log.error("journal: %d records could not be written and are lost", lost)
        while self._jobs and self._mono() < deadline:
            self._step_job()
        if self._segment is not None:
            self._segment.close()
        self._is_closed = True
