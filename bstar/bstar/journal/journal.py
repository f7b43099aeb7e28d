"""A journal for its owner: a buffer that takes records, and a thread that writes them."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

import bstar
from bstar import records
from bstar.base.sampling import is_sampled, limit_of
from bstar.errors import ConfigurationError
from bstar.journal.buffer import Buffer, JournalCounters
from bstar.journal.clocks import Anchor, NsClock, mono_ns, wall_ns
from bstar.journal.options import JournalOptions
from bstar.journal.segments import Disk, Folder, is_name
from bstar.journal.writer import Writer
from bstar.records import Started, Stopped

_log = logging.getLogger("bstar.journal")

_MACHINE = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """The journal of one process.

    ``pair`` and ``node`` name it, in its records and in its files' names. ``boot`` (32 hex digits) is this
    run of the process, random unless given. ``clock`` is what the ``now`` of ``write`` and ``offer`` was
    read from, in seconds: None means the machine's monotonic clock as the reactor reads it (CLOCK_BOOTTIME
    where there is one). ``started`` are the fields of the first record that only its owner knows. ``who`` are
    the fields that all its records share; ``weight`` is for how many requests each recorded one stands.

    ``write``, ``offer`` and ``offer_all`` are those of its ``Buffer``.

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
        self.weight = 1 / options.sample if options.sample else 0.0
        self.who: dict[str, Any] = {"v": records.VERSION, "pair": pair, "node": node, "boot": self.boot}
        self.counters = JournalCounters()
        self.limit = limit_of(options.sample)
        self._anchor = Anchor(clock, mono=mono, wall=wall)
        self.clock = self._anchor.now if clock is None else clock
        self._folder = Folder(options.directory, pair, node, self.boot, disk if disk is not None else Disk())
        self._buffer = Buffer(options.buffer_records, self.counters)
        # Bound methods, not methods of its own: a call for each request would cost 50 ns more.
        self.write, self.offer, self.offer_all = (
            self._buffer.write,
            self._buffer.offer,
            self._buffer.offer_all,
        )
        self._writer = Writer(options, self.who, self._buffer, self._folder, self._anchor)
        self.write(Started, self._anchor.now(), **self._started(source, started or {}))
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if has_thread:
            self._thread = threading.Thread(target=self._run, name="bstar-journal", daemon=True)
            self._thread.start()

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

    def is_sampled(self, identity: bytes) -> bool:
        """True if the journal records the request with this identity (24 bytes)."""
        return is_sampled(identity, self.limit)

    def turn(self) -> None:
        """Write the buffered records. The thread calls it; without a thread, the owner does."""
        self._writer.turn()

    def close(self, reason: str | None = "") -> None:
        """Write what is buffered, ``stopped`` and the end of the file, in bounded time. Idempotent.

        ``reason`` None says that the process does not end in good order: then there is no ``stopped``.
        """
        if self._is_closing:
            return
        if reason is not None:
            self.write(Stopped, self._anchor.now(), reason=reason)
        self._is_closing = True
        self._buffer.close()
        if self._thread is threading.current_thread():
            return  # the collector closes it there; the thread sees that it is closed
        if self._thread is not None:
            self._thread.join(self.options.close_timeout_s + 1)
            if self._thread.is_alive():
                _log.error(
                    "journal: %s: the disk did not take the last records in time; they are lost",
                    self._folder.path,
                )
        else:
            self._writer.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("" if kind is None else None)

    def _run(self) -> None:
        """The thread's loop: write each ``flush_interval_s`` and when woken, and look after files between."""
        mono, upkeep = self._anchor.mono, self._writer.upkeep
        interval_ns = int(self.options.flush_interval_s * 1e9)
        flush_at = 0
        while not self._is_closing:
            if upkeep.jobs:
                upkeep.step()
                if not self._buffer.is_woken and mono() < flush_at:
                    continue
                timeout_s = 0.0
            else:
                timeout_s = max(0.0, (flush_at - mono()) / 1e9)
            self._buffer.wait(timeout_s)
            self._writer.turn()
            flush_at = mono() + interval_ns
        self._writer.finish()
