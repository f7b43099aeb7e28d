"""Counts forks: hot code tells a forked child without a system call, for ``forks.count`` has changed."""

import os

count = 0


def _note() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_note)
