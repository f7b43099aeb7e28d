"""The in-sync sets that an arbiter keeps across restarts: ``STATE_DIR/in-sync.json``, by pair and store."""

import logging
import os
from pathlib import Path

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError
from bstar.host.whole_file import lock_file, write_whole
from bstar.star.in_sync import InSyncSet

_log = logging.getLogger("bstar.arbiter")

_decode = msgspec.json.Decoder(dict[str, InSyncSet]).decode


class InSyncFile:
    """The file, for this process alone. ConfigurationError if it cannot be used or read."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self.path = Path(state_dir) / "in-sync.json"
        # A change is not stored yet.
        self.is_behind = False
        self._is_reported = False
        try:
            self._lock = lock_file(self.path.with_name("in-sync.lock"))
            self.sets = self._load() if self._lock is not None else {}
            self._check()
        except OSError as error:
            raise ConfigurationError(
                f"--state-dir: cannot use {self.path.parent}: {error.strerror or error}; name a directory "
                "that this user may write to and that has room"
            ) from error

    def _check(self) -> None:
        if self._lock is None:
            raise ConfigurationError(
                f"--state-dir: another process uses {self.path.parent}: each arbiter needs a directory of "
                "its own"
            )
        write_whole(self.path, msgspec.json.encode(self.sets))

    def _load(self) -> dict[str, InSyncSet]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return _decode(content)
        except UNDECODABLE as error:
            raise ConfigurationError(
                f"--state-dir: {self.path} is damaged: {error}; put it back from a copy. Without it start "
                "the arbiter with an empty directory, and only while both copies of each store are in sync"
            ) from error

    def keep(self, sets: dict[str, InSyncSet]) -> bool:
        """Store them durably. False if that fails: nothing that depends on it may be answered."""
        try:
            write_whole(self.path, msgspec.json.encode(sets))
        except OSError as error:
            if not self._is_reported:
                _log.error(
                    "%s cannot be written: %s; no in-sync set changes", self.path, error.strerror or error
                )
            self.is_behind = self._is_reported = True
            return False
        self.is_behind = self._is_reported = False
        return True

    def close(self) -> None:
        """Leave the directory to others. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
