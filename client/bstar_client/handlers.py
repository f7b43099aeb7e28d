"""What a handler is given and what a worker tells its observer, for ``Worker`` and ``AsyncWorker`` alike."""

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec

from bstar_client.core.calls import Body


class Request(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a handler is given.

    ``frames`` is the body, one frame or more. ``identity`` names the request for ever (24 octets; in
    plain MDP the client's address) and is the same in every repetition, so it serves as an idempotency
    key. ``is_redelivered``: an earlier delivery of it may have begun. ``epoch``: the activation of the
    pair that dispatched it (0 in plain MDP). ``deadline``: when the client stops waiting, on
    ``time.monotonic()``'s clock; None if it did not say. ``extensions``: the native header's extension
    octets.
    """

    service: bytes
    frames: tuple[bytes, ...]
    identity: bytes
    is_redelivered: bool
    epoch: int
    deadline: float | None
    extensions: bytes

    @property
    def body(self) -> bytes:
        """The only frame of the request; ValueError if there are several (then see ``frames``)."""
        frames = self.frames
        if len(frames) != 1:
            raise ValueError(f"the request has {len(frames)} frames: read .frames, .body is for one")
        return frames[0]

    def remaining(self) -> float | None:
        """Seconds until the client stops waiting, None if it did not say, never below 0."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


Handler = Callable[[Request], Body | Generator[Body, None, Body | None] | Iterator[Body] | None]


class WorkerHooks:
    """Override what you want to observe. What a hook raises is logged and goes no further.

    ``registered``, ``lost`` and ``handler_stuck`` are called, one at a time, in whichever of the worker's
    threads attends to its sockets at that moment, and must not block; the others in the handler's thread.
    ``worker`` is the Worker or the AsyncWorker: ``Any``, so that an override may name the one that it is for.
    """

    def registered(self, worker: Any, endpoint: str) -> None:
        """A node has the worker on its list."""

    def lost(self, worker: Any, endpoint: str, reason: str) -> None:
        """The session with a node ended; a new one is begun."""

    def request_started(self, worker: Any, request: Request) -> None:
        """The handler is about to be called."""

    def request_finished(self, worker: Any, request: Request) -> None:
        """The handler returned."""

    def request_failed(self, worker: Any, request: Request, error: BaseException) -> None:
        """The handler raised this; of SystemExit and its like only the request is ended."""

    def request_replayed(self, worker: Any, request: Request) -> None:
        """A repetition was answered with the reply that was kept (``dedupe``), and not executed."""

    def handler_stuck(self, worker: Any, identity: bytes) -> None:
        """A handler ran past its time and was given up."""
