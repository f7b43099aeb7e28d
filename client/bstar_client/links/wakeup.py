"""A descriptor by which one thread wakes another from its poll: an eventfd, or else a pipe."""

import contextlib
import os
import select
import sys


class WakeUp:
    """``set`` makes ``fd`` readable until ``clear``. Any thread and any signal handler may call ``set``."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self.fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._write_fd, False)

    def set(self) -> None:
        """Make it readable."""
        with contextlib.suppress(BlockingIOError):  # it is set already
            os.write(self._write_fd, _ONE)

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4_096)

    def wait(self, limit_s: float | None) -> None:
        """Wait until it is set, or for ``limit_s``, and clear it."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll(None if limit_s is None else limit_s * 1000)
        self.clear()

    def __del__(self) -> None:
        # Not in a ``close``: another thread may be about to use them.
        os.close(self.fd)
        if self._write_fd != self.fd:
            os.close(self._write_fd)


# An eventfd takes a number of eight bytes in native order; a pipe takes any bytes.
_ONE = (1).to_bytes(8, sys.byteorder)
