"""One turn of a core: it gets what its sockets and the clock have. Every shell uses it."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bstar_client.link import Links

__all__ = ["Core", "take_in", "timeout_ms"]


class Core(Protocol):
    """What a client's core and a worker's core have in common. Outputs are each its own."""

    def connected(self, node: int, now: float) -> list[Any]:
        """A connection is ready."""
        ...

    def disconnected(self, node: int, now: float) -> list[Any]:
        """A connection broke."""
        ...

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Any]:
        """A message came."""
        ...

    def handle_timer(self, now: float) -> list[Any]:
        """A deadline passed."""
        ...

    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``."""
        ...


def timeout_ms(due: float | None) -> int:
    """How long a poll may wait for this deadline; -1 is for ever."""
    return -1 if due is None else max(0, math.ceil((due - time.monotonic()) * 1000))


def take_in(
    core: Core,
    links: Links,
    messages: Iterable[tuple[int, list[bytes]]],
    perform: Callable[[list[Any]], None],  # Any: the core's own outputs
    is_due_at: float | None = None,
) -> None:
    """Hand the core the messages, the connections that changed and, if a deadline passed, the time.

    ``is_due_at`` is a time before the sockets were read. Another thread may have held the GIL since; what
    came until then is handed over before anything counts as overdue.
    """
    now = time.monotonic()
    for node, frames in messages:
        perform(core.receive(node, frames, now))
    for node, is_up in links.changes():
        perform(core.connected(node, now) if is_up else core.disconnected(node, now))
    if is_due_at is not None:
        perform(core.handle_timer(is_due_at))
