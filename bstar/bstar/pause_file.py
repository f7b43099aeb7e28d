"""A pause of takeovers (``bstar.star.takeover_pause``), kept across restarts in a file beside the epoch.

It has the end of the pause by the wall clock, because the clock of a run ends with it. A pause that cannot be
stored or read is logged; a node that restarts then hears it from its peer.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bstar.star import PauseKept, PersistPause
from bstar.whole_file import write_whole

_log = logging.getLogger("bstar.pair")


class _Kept(msgspec.Struct, frozen=True):
    """``until`` is in seconds since 1970; 0 when takeovers were resumed."""

    number: int
    until: float
    why: str


class PauseFile:
    """``STATE_DIR/pause``: one JSON object. ``wall_clock`` returns seconds since 1970."""

    def __init__(self, state_dir: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = state_dir / "pause"
        self._wall_clock = wall_clock

    def load(self) -> PauseKept | None:
        """The last order that was stored; None if there is none, or it cannot be read."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.warning(
                "%s cannot be read: %s; whether takeovers are paused, the peer says", self.path, error
            )
            return None
        return PauseKept(kept.number, max(0.0, kept.until - self._wall_clock()), kept.why)

    def keep(self, pause: PersistPause) -> None:
        """Store an order."""
        until = self._wall_clock() + pause.for_s if pause.for_s else 0.0
        line = msgspec.json.encode(_Kept(pause.number, until, pause.why)) + b"\n"
        try:
            write_whole(self.path, line)
        except OSError as error:
            _log.error(
                "the pause of takeovers could not be stored in %s: %s; a restart of both nodes forgets it",
                self.path,
                error.strerror or error,
            )
