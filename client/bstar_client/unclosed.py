"""Clients and workers that nobody closed: a ResourceWarning names each, and its sockets are closed.

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

    ``end`` must not refer to the owner. With ``is_exit`` other threads may still work for it. Without, none
    does, and ``end`` runs in the collector's thread, any thread: it must not wait for others.
    """
    return weakref.finalize(owner, _end, f"{name} was not closed: {remedy}", end, os.getpid())


def _end(text: str, end: Callable[[bool], object], pid: int) -> None:
    if pid != os.getpid():
        return  # a child has none of its parent's threads and must leave its parent's sockets alone
    try:
        warnings.warn(text, ResourceWarning, stacklevel=2)
    finally:
        # Python ends the main thread before it calls what is left at the exit.
        end(not threading.main_thread().is_alive())
