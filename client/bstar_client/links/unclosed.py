"""Closes clients and workers that the program did not close, with a ResourceWarning for each.

Python collects objects in any thread and calls their finalizers in any order. A ZeroMQ context that is
collected before its sockets waits for them for ever. So the finalizer of the owner holds what must be closed.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable


def guard(
    owner: object, name: str, remedy: str, end: Callable[[bool], object]
) -> "weakref.finalize[..., object]":
    """Call ``end(is_exit)`` if ``owner`` is collected, or the process exits, before the result is detached.

    ``end`` must not refer to the owner. With ``is_exit``, other threads may still work for the owner. Without
    it, none does, and ``end`` may run in any thread, so it must not wait for others.
    """
    return weakref.finalize(owner, _end, f"{name} was not closed: {remedy}", end, os.getpid())


def _end(text: str, end: Callable[[bool], object], pid: int) -> None:
    if pid != os.getpid():
        return  # a child process has no threads of its parent, and must not touch its parent's sockets
    try:
        warnings.warn(text, ResourceWarning, stacklevel=2)
    finally:
        # Python ends the main thread before it calls what is left at the exit.
        end(not threading.main_thread().is_alive())
