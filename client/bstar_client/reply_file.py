"""Replies that the workers of one machine keep together in a file (SQLite), across their restarts.

    Worker(endpoints, "pay", handle, dedupe=ReplyFile("/var/lib/pay/replies.db", unfinished="fail")).run()

Before a handler begins, the request is written down as begun by this process; when it returns, its reply is
written. So a repetition that reaches another worker process waits for the reply, and one that comes after a
restart is answered from the file. Each process holds a lock file as long as it lives, which tells a request
that is being executed from one whose process was killed.

What was written survives the end of processes; the last moment before a power failure may be missing
(``synchronous=NORMAL``). The file belongs on a local disk, not on a network share: SQLite says so.
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
from bstar_client.replies import digest_of, other_body, still_running

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    identity BLOB PRIMARY KEY, digest BLOB NOT NULL, owner TEXT NOT NULL, at REAL NOT NULL, reply BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replies_by_time ON replies (at);
"""
_LOCKED_S = 30.0
# Another process tells of its end only by the file, so it is looked at again, ever less often.
_LOOK_MIN_S = 0.005
_LOOK_MAX_S = 0.2
# Old replies are looked for once in so many.
_PRUNE_EVERY = 1_000


class ReplyFile:
    """A ``ReplyStore`` in the SQLite file ``path``, which is made if it is not there.

    ``keep_s``: how long replies are kept, in seconds of the wall clock; ``count_max``: how many.
    ``unfinished`` says what becomes of a request that was begun by a process that was killed before it had a
    reply: "repeat" executes it again (at least once, as without a file), "fail" raises OutcomeUnknownError
    each time it comes (at most once: somebody has to look what was done, and ``forget`` it).
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
                finally:
                    self._database.execute("COMMIT")
            if is_ours or reply is not None:
                return reply
            remaining_s = pause_s if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                raise still_running()
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def _look(self, identity: bytes, digest: bytes) -> tuple[bool, list[bytes] | None]:
        """Is the request ours to execute, and if not, is there a reply already?"""
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
                        "the request was begun by a worker that was killed; whether it was done is not known"
                    )
            elif at + self._keep_s > now:
                if known != digest:
                    raise other_body()
                return False, msgspec.msgpack.decode(reply, type=list[bytes])
        self._database.execute(
            "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, NULL)", (identity, digest, self._owner, now)
        )
        self._running.add(identity)
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
        """Somebody looked what became of a request that never ended: the next one with it runs."""
        self.drop(identity)

    def close(self) -> None:
        """Release the file. What is being executed counts as unfinished from now on. Idempotent."""
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
        # What somebody has to look at is not thrown away.
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
        """Does the process that wrote this still hold its lock? What is ours runs, or it has ended."""
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
