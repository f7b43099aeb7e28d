"""One process of this machine at a time: a lock on a file, which the kernel takes back when its holder dies.

with exclusive(Path("/run/lock/name")): ...
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Wait for the lock on ``file``, which is made if it is not there, and hold it for the block."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
