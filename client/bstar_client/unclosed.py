"""Clients and workers that nobody closed: a ResourceWarning names each, and what it has open is ended.

Python collects objects in any thread and calls their finalizers in any order, and a ZeroMQ context that goes
before its sockets waits for them for ever. So what has to be ended is kept here, out of the collector's
reach, until its owner is gone.
"""

import asyncio
import atexit
import itertools
import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import zmq

from bstar_client.link import Links

if TYPE_CHECKING:
    from bstar.journal import Journal
    from bstar_client.fleet_journal import FleetJournal
    from bstar_client.journal import CallJournal

__all__ = ["Guard", "Holdings"]

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


class Holdings:
    """What a client or a worker of an event loop has open. ``context`` None: it is shared, and stays open."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        links: Links,
    ) -> None:
        self.journal: CallJournal | FleetJournal | Journal | None = None
        # The loop leads back to the client.
        self._loop = weakref.ref(loop)
        self._context = context
        self._links = links

    def end(self, is_exit: bool) -> None:
        """Close all of it; nothing, if at the process's exit its loop goes on in another thread."""
        loop = self._loop()
        if is_exit and loop is not None and loop.is_running():
            return
        self._links.close()
        if self._context is not None:
            self._context.term()
        if self.journal is not None:
            self.journal.close()
