"""Clients and workers that nobody closed: a ResourceWarning names each, and its sockets are closed.

Python collects objects in any thread and calls their finalizers in any order. A ZeroMQ context that is
collected before its sockets waits for them for ever. So what must be closed is kept here, out of the
collector's reach, until its owner is gone.
"""

import atexit
import itertools
import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack

# The text, what ends it, and the process that has it.
_unclosed: dict[int, tuple[str, Callable[[bool], object], int]] = {}
_keys = itertools.count()


class Guard:
    """Calls ``end(is_exit)`` if ``owner`` is collected, or the process exits, before ``close`` is called.

    ``end`` must not refer to the owner. With ``is_exit`` other threads may still work for it. Without, none
    does, and ``end`` runs in the collector's thread, any thread: it must not wait for others.
    """

    def __init__(self, owner: object, name: str, remedy: str, end: Callable[[bool], object]) -> None:
        self._key = next(_keys)
        _unclosed[self._key] = (f"{name} was not closed: {remedy}", end, os.getpid())
        self._finalizer = weakref.finalize(owner, _collected, self._key)
        self._finalizer.atexit = False

    def close(self) -> None:
        """The owner is closed. Idempotent."""
        _unclosed.pop(self._key, None)
        self._finalizer.detach()


def _collected(key: int) -> None:
    _end(*_unclosed.pop(key), is_exit=False)


@atexit.register
def _exit() -> None:
    with ExitStack() as ends:
        while _unclosed:
            _, held = _unclosed.popitem()
            ends.callback(_end, *held, is_exit=True)


def _end(text: str, end: Callable[[bool], object], pid: int, *, is_exit: bool) -> None:
    if pid != os.getpid():
        return  # a child has none of its parent's threads and must leave its parent's sockets alone
    try:
        warnings.warn(text, ResourceWarning, stacklevel=2)
    finally:
        end(is_exit)
