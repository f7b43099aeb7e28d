"""The epoch of a node's last activation, kept across restarts in one small file.

The file is always whole (``whole_file``). ``EpochKeeper`` writes it while the node serves, retries after a
failure, and restores a folder that was removed.

A process that uses the file holds a lock on its folder (flock of ``STATE_DIR/epoch.lock``), which ends with
the process. So two nodes cannot share a folder, and ``bstar epoch reset`` cannot write beside a node.
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bstar.errors import ConfigurationError
from bstar.host.whole_file import FileThread, lock_file, sync_folder, write_whole
from bstar.wire.epochs import EPOCH_MAX

_log = logging.getLogger("bstar.pair")

_DIGITS_MAX = len(str(EPOCH_MAX))

# A failure is logged again this often. The keeper tries again at every turn of its timer.
_REMIND_S = 60.0

# The loop waits so long until a change is stored, and then goes on: it serves beside a disk that hangs.
_PATIENCE_S = 0.25
# A disk that has not answered for so long hangs.
_HANGS_S = 5.0


class EpochFile:
    """``STATE_DIR/epoch``: one decimal number and a newline."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(state_dir)
        self.path = self._folder / "epoch"
        self._lock_path = self._folder / "epoch.lock"
        self._lock: int | None = None

    @property
    def is_locked(self) -> bool:
        """True if the folder is still the one that was locked."""
        try:
            found = self._lock_path.stat()
        except OSError:
            return False
        return self._lock is None or os.path.samestat(found, os.fstat(self._lock))

    def may_hold(self, epoch: int) -> bool:
        """True if the file is there, unless ``epoch`` is 0, and can be replaced, as far as this is cheap to
        know.
        """
        return os.access(self._folder, os.W_OK) and (epoch == 0 or self.path.exists())

    def lock(self) -> bool:
        """Take the folder, which is made if it is missing, until ``unlock`` or the end of this process. The
        lock of a folder that is gone ends.

        False if another process has it. OSError if the folder cannot be made or its file system has no locks.
        """
        self.unlock()
        self._lock = lock_file(self._lock_path)
        return self._lock is not None

    def unlock(self) -> None:
        """Leave the folder to others. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> int:
        """The stored epoch, or 0. Makes the folder and writes into it as a test.
        ConfigurationError if any of it fails.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check()
        except OSError as error:
            raise ConfigurationError(
                f"state_dir: cannot write to {self._folder}: {error.strerror or error}; name a directory "
                "that this user may write to and that has room, or null to keep no epoch"
            ) from error
        return self.read()

    def read(self) -> int:
        """The stored epoch, 0 if there is no file. ConfigurationError if the file holds none."""
        try:
            text = self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"state_dir: cannot read {self.path}: {error}") from error
        digits = text.strip()
        if not digits.isdecimal() or len(digits) > _DIGITS_MAX or int(digits) > EPOCH_MAX:
            raise ConfigurationError(
                f"state_dir: {self.path} holds {text[:40]!r}, not an epoch (a number from 0 to 2^62): "
                "bstar epoch reset stores 0 there; with --force while the peer runs, which tells this node "
                "its epoch before it serves"
            )
        return int(digits)

    def save(self, epoch: int) -> None:
        """Store ``epoch`` durably; makes the folder again if it was removed. OSError if that fails."""
        write_whole(self.path, _encode(epoch))

    def _check(self) -> None:
        """Test that ``save`` will work, with another file."""
        probe = self.path.with_name("epoch.check")
        write_whole(probe, _encode(0))
        probe.unlink()
        sync_folder(self._folder)


class EpochKeeper:
    """Stores the epoch of each activation, retries until it succeeds, and sees that it stays stored.

    The node serves meanwhile. Peer and workers know the epoch, so the file matters only if all of them
    restart at once. A disk that is full or hangs must not stop the service for that: a thread writes.
    ``error`` says why the epoch is not stored, "" if it is.
    """

    def __init__(self, file: EpochFile) -> None:
        self.file = file
        self.error = ""
        self._epoch = 0
        self._reported_at = 0.0
        self._thread = FileThread("bstar-state-dir")
        self._is_done = threading.Event()
        self._is_done.set()
        self._asked_at = 0.0

    def open(self) -> int:
        """Take the file for this process; the stored epoch. ConfigurationError if another process has it, or
        if it cannot be read or written.
        """
        try:
            is_free = self.file.lock()
        except OSError as error:
            self._epoch = self.file.load()  # says what is wrong if it is more than the lock
            _log.warning(
                "%s cannot be locked: %s; nothing keeps another node from using it", self.file.path, error
            )
            return self._epoch
        if not is_free:
            raise ConfigurationError(
                f"state_dir: another process uses {self.file.path.parent}: each node needs a directory of "
                "its own; stop the process that has this one, or name another one"
            )
        self._epoch = self.file.load()
        return self._epoch

    def close(self) -> None:
        """Leave the file to others. Idempotent."""
        self._thread.close()
        self.file.unlock()

    def keep(self, epoch: int, now: float) -> None:
        """Store ``epoch``, now or as soon as that is possible."""
        self._epoch = epoch
        self.write(partial(self._keep, epoch, now), now)

    def look(self, now: float) -> None:
        """Retry a failed store. See that the next one will not fail: somebody may have removed the folder, or
        the system may have made it read-only.
        """
        if self._is_done.is_set():
            self.write(partial(self._look, now), now)
        elif now >= self._asked_at + _HANGS_S:
            self._fail("the disk does not answer", now)

    def write(self, job: Callable[[], None], now: float) -> None:
        """Have something done to the folder. Waits for the end of it if that comes soon."""
        if self._is_done.is_set():
            self._asked_at = now
        self._is_done = self._thread.do(job)
        self._is_done.wait(_PATIENCE_S)

    def _keep(self, epoch: int, now: float) -> None:
        try:
            self.file.save(epoch)
        except OSError as error:
            self._fail(str(error.strerror or error), now)
            return
        if self.error:
            self.error = ""
            _log.warning("epoch %d is stored in %s again", epoch, self.file.path)

    def _look(self, now: float) -> None:
        is_well, is_locked = not self.error, self.file.is_locked
        if is_well and is_locked and self.file.may_hold(self._epoch):
            return
        if not is_locked and not self._lock_again(now):
            return
        self._keep(self._epoch, now)
        if is_well and not self.error:
            _log.warning("%s was missing: it is there again, with epoch %d", self.file.path, self._epoch)

    def _lock_again(self, now: float) -> bool:
        try:
            is_free = self.file.lock()
        except OSError:
            return True  # ``keep`` says what is wrong
        if not is_free:
            self._fail("another process has taken the directory", now)
        return is_free

    def _fail(self, text: str, now: float) -> None:
        if text != self.error or now >= self._reported_at + _REMIND_S:
            self._reported_at = now
            _log.error(
                "epoch %d could not be stored in %s: %s; the node serves and tries again",
                self._epoch,
                self.file.path,
                text,
            )
        self.error = text


def _encode(epoch: int) -> bytes:
    return b"%d\n" % epoch
