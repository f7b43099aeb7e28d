"""One turn of a core: it gets what its sockets and the clock have. Every shell uses it."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from bstar_client.core.outputs import ClientCore
from bstar_client.core.worker_session import WorkerCore
from bstar_client.link import Links

Core = ClientCore | WorkerCore


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
