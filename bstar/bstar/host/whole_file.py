"""A small file that is always whole: written beside, synced, and renamed, and the folder synced.

A crash leaves the old content or the new one. A process that uses such a folder holds a lock on it (flock),
which ends with the process.
"""

import fcntl
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file's content durably; makes the folder if it is missing. OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames and removals in this folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def lock_file(path: Path) -> int | None:
    """Lock this file, which is made if it is missing, until its descriptor is closed.

    None if another process has it. OSError if it cannot be made or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock
