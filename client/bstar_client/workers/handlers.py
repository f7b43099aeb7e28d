"""The request that a handler gets and the hooks of a worker, for ``Worker`` and ``AsyncWorker``."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Self

import msgspec

from bstar.base.printable import brief, compact
from bstar.wire.extensions import NO_HEADERS, headers_extensions, headers_of
from bstar.wire.messages import NEVER_MS, OWN_BACKOFF
from bstar.wire.progress import progress_of
from bstar_client.arguments.bodies import to_frames
from bstar_client.arguments.checks import to_milliseconds
from bstar_client.arguments.declined import Declined
from bstar_client.core.calls import Body, Result
from bstar_client.core.worker.dialects import Job
from bstar_client.workers.failures import call_on_cancel

# Some 49 days: the wire has four bytes of milliseconds, and the last number means something else.
_RETRY_MS_MAX = NEVER_MS - 1


class Request(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a handler is given.

    ``service`` is its name. ``frames`` is the body, one frame or more; ``body`` is that of one frame.
    ``is_cancelled`` and ``on_cancel``: its caller may give up. ``identity`` names the request: 24 bytes, or
    in plain MDP the client's address. It is the same in every repetition, so a handler can use it as an
    idempotency key. ``is_redelivered``: an earlier delivery of it may have begun. ``epoch``: the activation
    of the pair that dispatched it (0 in plain MDP). ``deadline``: when the client stops waiting, on
    ``time.monotonic()``'s clock; None if the client gave none. ``extensions``: the native header's extension
    bytes. ``attempt``: which attempt of a durable request it is, 1 for every other request. ``headers``: the
    names and texts that the client gave beside the body; empty in plain MDP. ``accepted_at``: when the node
    that dispatched it had accepted it, on ``time.monotonic()``'s clock; None unless the request has headers
    and the node tells it.
    """

    service: bytes
    frames: tuple[bytes, ...]
    identity: bytes
    is_redelivered: bool
    epoch: int
    deadline: float | None
    extensions: bytes
    attempt: int = 1
    headers: Mapping[str, str] = NO_HEADERS
    accepted_at: float | None = None
    _job: Job | None = None

    def __repr__(self) -> str:
        """With the beginning of the body, and the names of the headers."""
        return compact(
            self,
            frames=brief(self.frames),
            identity=self.identity.hex(),
            extensions=f"{len(self.extensions)} bytes" if self.extensions else "",
            headers=str(sorted(self.headers)) if self.headers else "",
            _job="",
        )

    @classmethod
    def of(
        cls,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        is_redelivered: bool = False,
        attempt: int = 1,
        identity: bytes | None = None,
    ) -> Self:
        """A request for the test of a handler alone: ``quote(Request.of(b"apple"))``.

        ``timeout``: how many seconds its client waits. ``identity``: a new one unless it is given; two
        requests of one identity are a request and its repetition. The errors of a wrong body or wrong headers
        are those of ``HAClient.request``.
        """
        if not isinstance(identity, bytes | None):
            raise TypeError(f"an identity is bytes, not {type(identity).__name__}")
        extensions = b"" if headers is None else headers_extensions(headers)
        deadline = None if timeout is None else time.monotonic() + timeout
        return cls(
            b"test",
            tuple(to_frames(body)),
            os.urandom(24) if identity is None else identity,
            is_redelivered,
            1,
            deadline,
            extensions,
            attempt,
            headers_of(extensions) if extensions else NO_HEADERS,
        )

    @property
    def body(self) -> bytes:
        """The one frame of the request. ValueError if there are several: read ``frames``."""
        frames = self.frames
        if len(frames) != 1:
            raise ValueError(f"the request has {len(frames)} frames: read .frames, .body is for one")
        return frames[0]

    def remaining(self) -> float | None:
        """Seconds until the client stops waiting, 0 or more. None if the client gave no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def is_cancelled(self) -> bool:
        """True if no client waits for the answer any more: the handler may stop. Its answer is dropped."""
        return self._job is not None and self._job.cancelled_at is not None

    def on_cancel(self, call: Callable[[], object]) -> None:
        """Have ``call`` called once if the request is cancelled while its handler runs, at once if it is
        cancelled already.

        It is called in a thread of the worker's and must not block: close what the handler waits for, or set
        an event. AsyncWorker cancels the handler's task as well.
        """
        job = self._job
        if job is None:
            return
        if job.on_cancel is None:
            job.on_cancel = []
        job.on_cancel.append(call)
        if job.cancelled_at is not None:
            call_on_cancel(self.service, job)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how far the handler is: ``done`` of ``total``, in a unit of its own, and a line for people.

        It reaches a caller that asked for it (``on_progress``) and the status of a durable request; otherwise
        nothing is sent. Call it as often as you like, in any thread: ten a second are sent, and the last one
        before the reply. It extends no deadline. ``total``: None if it is not known. ``text``: 1,000 bytes at
        most. TypeError or LocalProtocolError for an argument that cannot be sent.
        """
        progress, job = progress_of(done, total, text), self._job
        if job is not None and job.latest is not None:
            job.latest.put(job, progress)


class Retry(Exception):  # noqa: N818 - it is what the handler asks for
    """A handler raises it to have a durable request tried again (docs/durable.md).

    ``after``: seconds until the next attempt; None for the request's own backoff. ``text`` says why, for the
    log and the dead letter. It counts as an attempt. The caller of a plain request gets HandlerError with
    the text. TypeError or LocalProtocolError if ``after`` is no time that fits.
    """

    def __init__(self, text: str = "", *, after: float | None = None) -> None:
        super().__init__(text)
        self.after_ms = OWN_BACKOFF if after is None else to_milliseconds(after, "after", _RETRY_MS_MAX)

    def __init_subclass__(cls) -> None:
        raise TypeError("Retry has no subclasses: put the reason into its text")


_Answer = Result | Generator[Result, None, Result | None] | Iterator[Result] | None
# What it takes is not checked here, because it may be typed: ``workers.typed`` checks that.
Handler = Callable[..., _Answer]


class WorkerHooks:
    """Observes a worker: override the methods you need. The worker logs what a hook raises.

    ``registered``, ``lost`` and ``handler_stuck`` run one at a time in the worker's leading thread and must
    not block. The others run in the handler's thread. ``worker`` is the Worker or the AsyncWorker. Its type
    is ``Any``, so that an override may name either.
    """

    def registered(self, worker: Any, endpoint: str) -> None:
        """A node has registered the worker."""

    def lost(self, worker: Any, endpoint: str, reason: str) -> None:
        """The session with a node ended; the worker begins a new one."""

    def request_started(self, worker: Any, request: Request) -> None:
        """The handler is about to be called."""

    def request_finished(self, worker: Any, request: Request) -> None:
        """The handler returned."""

    def request_failed(self, worker: Any, request: Request, error: BaseException) -> None:
        """The handler raised ``error``. Even SystemExit ends only the request."""

    def request_declined(self, worker: Any, request: Request, declined: Declined) -> None:
        """The handler declined the request: it is answered, and has not failed."""

    def request_cancelled(self, worker: Any, request: Request, error: BaseException) -> None:
        """The handler raised ``error`` after its request was cancelled: no client waits for it."""

    def request_replayed(self, worker: Any, request: Request) -> None:
        """A repetition got the kept reply (``dedupe``) and was not executed."""

    def handler_stuck(self, worker: Any, identity: bytes) -> None:
        """A handler exceeded ``handler_timeout_s`` and was given up."""
