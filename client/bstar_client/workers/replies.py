"""Stores of replies: a worker with one answers a repeated request without executing it again.

A client repeats a request when its reply is lost, because a node was killed. A job that runs again repeats it
with the same key. ``Worker(…, dedupe=ReplyMemory())`` keeps the replies of one process by the request's
identity; ``bstar_client.workers.reply_file.ReplyFile`` keeps them in a file for all workers of a machine and
across their restarts. A repetition that arrives during the execution waits for its reply.

A store keeps replies, not failures: a repetition runs a handler again that raised. It keeps no replies with
PARTIALs.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from bstar.errors import ConfigurationError, LocalProtocolError, OutcomeUnknownError


class ReplyStore(Protocol):
    """The interface of a store. Handler threads call it concurrently."""

    def begin(self, identity: bytes, body: Sequence[bytes], deadline: float | None) -> list[bytes] | None:
        """The kept reply. None: the caller executes the request, then calls ``keep`` or ``drop``.

        Waits while the same request runs, until ``deadline`` (monotonic clock) at most. LocalProtocolError:
        the identity came with another body. OutcomeUnknownError: the other execution does not end in time, or
        it was killed and the store is set to fail then.
        """
        ...

    def keep(self, identity: bytes, reply: Sequence[bytes]) -> None:
        """The execution ended with this reply."""
        ...

    def drop(self, identity: bytes) -> None:
        """The execution ended without a reply to keep; the next repetition runs."""
        ...


def digest_of(body: Sequence[bytes]) -> bytes:
    """A digest of the body: 16 bytes."""
    digest = blake2b(digest_size=16)
    for frame in body:
        digest.update(len(frame).to_bytes(8, "big"))
        digest.update(frame)
    return digest.digest()


def other_body() -> LocalProtocolError:
    """The error of a key that names two bodies."""
    return LocalProtocolError(
        "the request's key belongs to another body; it was not executed: use a key per body"
    )


def still_running() -> OutcomeUnknownError:
    """The error of a repetition whose deadline passes before the first execution ends."""
    return OutcomeUnknownError("the same request is still running; its reply did not come in time")


class _Kept(msgspec.Struct, gc=False):
    digest: bytes
    reply: list[bytes]
    size: int
    expires_at: float


class ReplyMemory:
    """Keeps replies in memory, for one worker as long as it lives.

    It drops replies after ``keep_s`` seconds, and the oldest ones beyond ``count_max`` replies or
    ``bytes_max`` bytes. Make ``keep_s`` longer than the time in which a caller repeats a key: for a Spark
    job, all its attempts with their timeouts.
    """

    def __init__(
        self,
        *,
        keep_s: float = 600.0,
        count_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if keep_s <= 0 or count_max < 1 or bytes_max < 1:
            raise ConfigurationError("keep_s, count_max and bytes_max of a ReplyMemory are above 0")
        self._keep_s = keep_s
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.clock = clock
        self._changed = threading.Condition()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._running: dict[bytes, bytes] = {}
        self._waiting = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, identity: bytes, body: Sequence[bytes], deadline: float | None) -> list[bytes] | None:
        """See ``ReplyStore``."""
        digest = digest_of(body)
        with self._changed:
            while True:
                self._forget_old()
                kept = self._kept.get(identity)
                if kept is not None:
                    if kept.digest != digest:
                        raise other_body()
                    return kept.reply
                running = self._running.get(identity)
                if running is None:
                    self._running[identity] = digest
                    return None
                if running != digest:
                    raise other_body()
                remaining_s = None if deadline is None else deadline - self.clock()
                if remaining_s is not None and remaining_s <= 0:
                    raise still_running()
                self._waiting += 1
                try:
                    self._changed.wait(remaining_s)
                finally:
                    self._waiting -= 1

    def keep(self, identity: bytes, reply: Sequence[bytes]) -> None:
        """See ``ReplyStore``. A reply larger than ``bytes_max`` is not kept."""
        size = sum(map(len, reply))
        with self._changed:
            digest = self._running.pop(identity)
            if size <= self._bytes_max:
                self._kept[identity] = _Kept(digest, list(reply), size, self.clock() + self._keep_s)
                self.bytes += size
                while len(self._kept) > self._count_max or self.bytes > self._bytes_max:
                    self._forget_oldest()
            self._forget_old()
            if self._waiting:
                self._changed.notify_all()

    def drop(self, identity: bytes) -> None:
        """See ``ReplyStore``."""
        with self._changed:
            del self._running[identity]
            if self._waiting:
                self._changed.notify_all()

    def _forget_old(self) -> None:
        now = self.clock()
        while self._kept and next(iter(self._kept.values())).expires_at <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self.bytes -= kept.size
