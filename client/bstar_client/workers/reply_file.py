"""A store of replies in a file (SQLite) that all workers of one machine share, across restarts.

    Worker(endpoints, "pay", handle, dedupe=ReplyFile("/var/lib/pay/replies.db", unfinished="fail")).run()

Before a handler begins, the worker writes that this process has begun the request. When the handler returns,
it writes the reply. A repetition at another worker process waits for that reply; a repetition after a restart
gets it from the file. Each process holds a lock file while it lives. The lock shows whether a request still
runs or its process was killed.

The file survives the end of processes; a power failure may lose the last moment (``synchronous=NORMAL``).
Keep the file on a local disk, because SQLite's locks do not work on network shares.
"""

import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bstar.errors import ConfigurationError, OutcomeUnknownError
from bstar_client.workers.replies import digest_of, other_body, still_running

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    identity BLOB PRIMARY KEY, digest BLOB NOT NULL, owner TEXT NOT NULL, at REAL NOT NULL, reply BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replies_by_time ON replies (at);
"""
_LOCKED_S = 30.0
# Only the file shows that another process has ended a request. The pause between two looks grows.
_LOOK_MIN_S = 0.005
_LOOK_MAX_S = 0.2
# Old replies are removed once in this many replies.
_PRUNE_EVERY = 1_000


class ReplyFile:
    """A ``ReplyStore`` in the SQLite file ``path``; it makes the file if it is missing.

    ``keep_s``: how long replies are kept, in seconds of the wall clock; ``count_max``: how many.
    ``unfinished``: what to do with a request whose process was killed before its reply, or could not write
    it. "repeat" executes it again (at least once, as without a file). "fail" raises OutcomeUnknownError at
    each repetition (at most once): an operator checks what was done and calls ``forget``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_s: float = 86_400.0,
        count_max: int = 10_000_000,
        unfinished: Literal["repeat", "fail"] = "repeat",
    ) -> None:
        if keep_s <= 0 or count_max < 1:
            raise ConfigurationError("keep_s and count_max of a ReplyFile are above 0")
        if unfinished not in ("repeat", "fail"):
            raise ConfigurationError(f"unfinished is 'repeat' or 'fail', not {unfinished!r}")
        self.path = Path(path)
        self._keep_s = keep_s
        self._count_max = count_max
        self._unfinished = unfinished
        self._owner = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._running: set[bytes] = set()
        self._kept = 0
        self._is_closed = False
        try:
            self._database = sqlite3.connect(
                self.path, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
            self._life = os.open(self._life_of(self._owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._life, fcntl.LOCK_EX)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"cannot keep replies in {self.path}: {error}") from error

    def begin(self, identity: bytes, body: Sequence[bytes], deadline: float | None) -> list[bytes] | None:
        """See ``ReplyStore``."""
        digest = digest_of(body)
        pause_s = _LOOK_MIN_S
        while True:
            with self._lock:
                self._database.execute("BEGIN IMMEDIATE")
                try:
                    is_ours, reply = self._look(identity, digest)
                    self._database.execute("COMMIT")
                finally:
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
                if is_ours:
                    self._running.add(identity)
            if is_ours or reply is not None:
                return reply
            remaining_s = pause_s if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                raise still_running()
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def _look(self, identity: bytes, digest: bytes) -> tuple[bool, list[bytes] | None]:
        """True if this process executes the request; otherwise the reply, if there is one."""
        now = time.time()
        row = self._database.execute(
            "SELECT digest, owner, at, reply FROM replies WHERE identity = ?", (identity,)
        ).fetchone()
        if row is not None:
            known, owner, at, reply = row
            if reply is None:
                if known != digest:
                    raise other_body()
                if identity in self._running or self._lives(owner):
                    return False, None
                if self._unfinished == "fail":
                    raise OutcomeUnknownError(
                        "a worker executed this request and kept no reply (it was killed, or could not write "
                        "it): check what was done"
                    )
            elif at + self._keep_s > now:
                if known != digest:
                    raise other_body()
                return False, msgspec.msgpack.decode(reply, type=list[bytes])
        self._database.execute(
            "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, NULL)", (identity, digest, self._owner, now)
        )
        return True, None

    def keep(self, identity: bytes, reply: Sequence[bytes]) -> None:
        """See ``ReplyStore``."""
        packed = msgspec.msgpack.encode(list(reply))
        now = time.time()
        with self._lock:
            self._running.discard(identity)
            self._database.execute(
                "UPDATE replies SET reply = ?, at = ? WHERE identity = ?", (packed, now, identity)
            )
            self._kept += 1
            if self._kept % _PRUNE_EVERY == 0:
                self._prune(now)

    def drop(self, identity: bytes) -> None:
        """See ``ReplyStore``."""
        with self._lock:
            self._running.discard(identity)
            self._database.execute("DELETE FROM replies WHERE identity = ?", (identity,))

    def forget(self, identity: bytes) -> None:
        """An operator has checked an unfinished request: its next repetition runs."""
        self.drop(identity)

    def close(self) -> None:
        """Release the file. Requests that run count as unfinished from now on. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._database.close()
            self._life_of(self._owner).unlink(missing_ok=True)
            os.close(self._life)

    def __len__(self) -> int:
        with self._lock:
            count: int = self._database.execute("SELECT count(*) FROM replies").fetchone()[0]
        return count

    def _prune(self, now: float) -> None:
        # Unfinished requests stay: an operator has to check them.
        ended = "reply IS NOT NULL AND" if self._unfinished == "fail" else ""
        self._database.execute(f"DELETE FROM replies WHERE {ended} at <= ?", (now - self._keep_s,))  # noqa: S608
        self._database.execute(
            "DELETE FROM replies WHERE identity IN (SELECT identity FROM replies WHERE reply IS NOT NULL "
            "ORDER BY at LIMIT max(0, (SELECT count(*) FROM replies) - ?))",
            (self._count_max,),
        )

    def _life_of(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{owner}.alive")

    def _lives(self, owner: str) -> bool:
        """True if another process that wrote this still holds its lock."""
        if owner == self._owner:
            return False
        path = self._life_of(owner)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(handle)
