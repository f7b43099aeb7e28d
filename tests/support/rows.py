"""A process that commits rows to SQLite as the durable store does, and notes each commit that returned.

``python -m support.rows DIRECTORY SYNCHRONOUS`` inserts 0, 1, 2 … into ``rows.db``, each in a transaction of
its own. After each it appends one byte to ``commits`` beside it, which is never synced, and to standard
output.
"""

import os
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

COMMITS = "commits"


def main(directory: Path, synchronous: str) -> None:
    """Commit until killed. Two threads share the connection's lock, so descriptors are used by both."""
    notes = os.open(directory / COMMITS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rows = sqlite3.connect(directory / "rows.db", isolation_level=None, check_same_thread=False)
    for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", f"synchronous={synchronous}"):
        rows.execute(f"PRAGMA {setting}")
    # Checkpoints come often, so that the log that is looked at has some of them.
    rows.execute("PRAGMA wal_autocheckpoint=8")
    rows.execute("PRAGMA mmap_size=0")
    rows.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, filling BLOB)")
    lock = threading.Lock()
    next_number = iter(range(1_000_000)).__next__

    def commit() -> None:
        while True:
            with lock:
                rows.execute("INSERT INTO rows VALUES (?, ?)", (next_number(), bytes(1_500)))
                os.write(notes, b".")
                os.write(1, b".")

    threading.Thread(target=commit, daemon=True).start()
    commit()


def count(directory: Path) -> int:
    """How many rows a sound database has; the first ones, without a gap."""
    with closing(sqlite3.connect(directory / "rows.db")) as rows:
        rows.execute("PRAGMA synchronous=OFF")  # the disk of this machine needs not be sure
        assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchone():
            return 0
        number, last = rows.execute("SELECT count(*), coalesce(max(number), -1) FROM rows").fetchone()
        assert number == last + 1
        return int(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
