"""A small file that is always whole: written beside, synced, and renamed, and the folder synced.

A crash leaves the old content or the new one. A process that uses such a folder holds a lock on it (flock),
which ends with the process. ``FileThread`` writes for a loop that must not wait for a disk that hangs.
"""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

# A thread that is not done so long after the end hangs, and is left behind.
_CLOSE_S_MAX = 2.0


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


class FileThread:
    """Carries out jobs, one after the other; they raise nothing."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False

    def do(self, job: Callable[[], None]) -> threading.Event:
        """Carry out this job after those before it. The event is set when it has ended."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        is_done = threading.Event()
        self._jobs.put((job, is_done))
        return is_done

    def close(self) -> None:
        """Carry out what there is, in bounded time. Idempotent."""
        if self._is_started:
            self._jobs.put(None)
            self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, is_done = given
            job()
            is_done.set()
