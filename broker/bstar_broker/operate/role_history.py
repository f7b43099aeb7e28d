"""A node's history: each change of its role, in a bounded file beside the epoch (``STATE_DIR/history``).

The file has one JSON object a line (``bstar.records.role``), the latest change last. A thread replaces it
after each change, so a crash leaves the old file or the new one, and the loop never waits for the disk. A
line that cannot be read is left out. Without a ``state_dir`` the history lasts as long as the node.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bstar.base.closing import Closing
from bstar.base.undecodable import UNDECODABLE
from bstar.host.whole_file import FileThread, write_whole
from bstar.records.role import RoleChange
from bstar.star import Output, StarMachine, State, StateChanged
from bstar_broker.core.parting import Switchover
from bstar_broker.core.snapshot import PeerChange

_log = logging.getLogger("bstar.pair")

# Some hundred kilobytes: years of a pair that is well, and the last day of one that is not.
CHANGES_MAX = 500
# What the status shows: a page and a terminal have room for it.
LATEST_MAX = 20
_US = 1_000_000


def history_path(state_dir: Path) -> Path:
    """Where the node with this ``state_dir`` keeps its history."""
    return state_dir / "history"


def read_history(state_dir: Path) -> tuple[list[RoleChange], int]:
    """The changes in the file, and how many lines cannot be read. OSError if the file cannot be."""
    changes: list[RoleChange] = []
    damaged = 0
    for line in history_path(state_dir).read_bytes().splitlines():
        try:
            changes.append(msgspec.json.decode(line, type=RoleChange))
        except UNDECODABLE:
            damaged += 1
    return changes, damaged


class RoleHistory(Closing):
    """Keeps the changes of ``machine``'s role. ``state_dir`` None: in memory only.

    ``clock`` is the reactor's, ``wall_clock`` returns seconds since 1970. All but the thread's own work
    happens in the reactor's thread.
    """

    def __init__(
        self,
        state_dir: Path | None,
        machine: StarMachine,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._state_dir = state_dir
        self._machine = machine
        self._clock = clock
        self._wall_clock = wall_clock
        self._changes = self._load()
        self._switchover: Switchover | None = None
        self.peer_changes: deque[PeerChange] = deque(maxlen=LATEST_MAX)
        """The peer since this process began, the latest change last."""
        self._thread = None if state_dir is None else FileThread("bstar-history")

    def latest(self) -> list[RoleChange]:
        """The last changes, the latest one last."""
        return list(self._changes[-LATEST_MAX:])

    def observe(self, output: Output) -> None:
        """Keep the output if it is a change of state."""
        if not isinstance(output, StateChanged):
            return
        machine = self._machine
        waited_us = None
        if (output.old, output.new) == (State.PASSIVE, State.ACTIVE) and machine.peer.heard_at is not None:
            waited_us = round((self._clock() - machine.peer.heard_at) * _US)
        change = RoleChange(
            at=round(self._wall_clock() * _US),
            node=machine.settings.role.value,
            old=output.old.name,
            new=output.new.name,
            event=output.event.name,
            text=output.reason,
            epoch=machine.epoch,
            waited_us=waited_us,
        )
        self._keep((*self._changes, change))

    def note_switchover(self, switchover: Switchover | None) -> None:
        """Add to the change how long requests waited, if this switchover has ended since the last call."""
        if switchover is None or switchover is self._switchover or switchover.ended_at is None:
            return
        self._switchover = switchover
        if switchover.phase != "moved":
            return
        waited_us = round((switchover.ended_at - switchover.asked_at) * _US)
        changes = list(self._changes)
        for place in reversed(range(len(changes))):
            if changes[place].event == "HANDOVER":
                changes[place] = msgspec.structs.replace(changes[place], waited_us=waited_us)
                break
        self._keep(tuple(changes))

    def note_peer(self, now: float) -> None:
        """Keep the peer's state if it has changed since the last call."""
        peer = self._machine.peer
        state = peer.state.name if peer.state is not None and peer.is_heard(now) else "SILENT"
        if not self.peer_changes or self.peer_changes[-1].state != state:
            self.peer_changes.append(PeerChange(round(self._wall_clock() * _US), state))

    def close(self) -> None:
        """Store what is not stored yet, in bounded time. Idempotent."""
        if self._thread is not None:
            self._thread.close()

    def _load(self) -> tuple[RoleChange, ...]:
        if self._state_dir is None:
            return ()
        try:
            changes, damaged = read_history(self._state_dir)
        except FileNotFoundError:
            return ()
        except OSError as error:
            _log.warning("%s cannot be read: %s", history_path(self._state_dir), error.strerror or error)
            return ()
        if damaged:
            _log.warning("%s: %d lines cannot be read", history_path(self._state_dir), damaged)
        return tuple(changes[-CHANGES_MAX:])

    def _keep(self, changes: tuple[RoleChange, ...]) -> None:
        self._changes = changes[-CHANGES_MAX:]
        if self._thread is not None:
            self._thread.do(partial(self._store, self._changes))

    def _store(self, changes: tuple[RoleChange, ...]) -> None:
        if changes is not self._changes:
            return  # later ones are to be stored
        assert self._state_dir is not None
        path = history_path(self._state_dir)
        try:
            write_whole(path, b"".join(msgspec.json.encode(each) + b"\n" for each in changes))
        except OSError as error:
            text = "the last change of the role could not be stored in %s: %s; the next one is with it"
            _log.error(text, path, error.strerror or error)
