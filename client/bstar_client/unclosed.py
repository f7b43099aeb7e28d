"""Clients and workers that nobody closed: a ResourceWarning names each, and what it has open is ended.

Python collects objects in any thread and calls their finalizers in any order, and a ZeroMQ context that goes
before its sockets waits for them for ever. So what has to be ended is kept here, out of the collector's
reach, until its owner is gone.
"""

import atexit
import itertools
import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack

__all__ = ["Guard"]

# The text, what ends it, and the process that has it.
_unclosed: dict[int, tuple[str, Callable[[bool], object], int]] = {}
_keys = itertools.count()


class Guard:
    """Calls ``end(is_exit)`` if ``owner`` is collected, or the process exits, before ``close`` is called.

    ``end`` must not lead back to the owner. With ``is_exit`` other threads may still be at work for it.
    Otherwise none is, and ``end`` runs in whichever thread the collector does: it must not wait for others.
    """

    def __init__(self, owner: object, name: str, remedy: str, end: Callable[[bool], object]) -> None:
        self._key = next(_keys)
        _unclosed[self._key] = (f"{name} was not closed: {remedy}", end, os.getpid())
        self._finalizer = weakref.finalize(owner, _collected, self._key)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Everything was ended as it should be. Idempotent."""
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
        return  # a child has none of its parent's threads, and its parent's sockets are not its own
    try:
        warnings.warn(text, ResourceWarning, stacklevel=2)
    finally:
        end(is_exit)
