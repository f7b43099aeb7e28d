"""The last epoch a node knew, kept across restarts in one small file.

Written whole and then renamed, with file and folder synced, so that a crash leaves the old number or the
new one.
"""

import os
from pathlib import Path

from bstar.errors import ConfigurationError
from bstar.wire.epochs import EPOCH_MAX

__all__ = ["EpochFile"]

_DIGITS_MAX = len(str(EPOCH_MAX))


class EpochFile:
    """``STATE_DIR/epoch``: one decimal number and a newline."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(state_dir)
        self.path = self._folder / "epoch"

    def load(self) -> int:
        """The stored epoch, 0 if there is none yet; makes the folder. ConfigurationError if unreadable."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            text = self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"state_dir: cannot read {self.path}: {error}") from error
        digits = text.strip()
        if not digits.isdecimal() or len(digits) > _DIGITS_MAX or int(digits) > EPOCH_MAX:
            raise ConfigurationError(
                f"state_dir: {self.path} holds {text[:40]!r}, not an epoch (a number from 0 to 2^62): "
                "restore it, or delete it while the peer is running (this node then learns the epoch from "
                "the peer)"
            )
        return int(digits)

    def save(self, epoch: int) -> None:
        """Store ``epoch`` durably; OSError if that fails."""
        temporary = self.path.with_name("epoch.new")
        with temporary.open("w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
