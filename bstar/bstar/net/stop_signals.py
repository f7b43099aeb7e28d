"""The signals that stop a program: SIGTERM and SIGINT."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signals(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """In the main thread, SIGTERM and SIGINT call ``handle`` for the length of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a program that embeds Python has set it in C, and Python cannot set it back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
