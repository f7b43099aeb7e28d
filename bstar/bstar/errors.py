"""Every error that bstar raises on purpose, in one tree.

Callers catch by what they can do: correct the configuration, give a call up, check its outcome, or restart a
node. Edge code turns foreign errors (of a socket, a file, a parser) into these once, at the edge.

    BstarError
    ├── ConfigurationError              mend the file, the flag or the variable it names
    ├── ProtocolError
    │   ├── LocalProtocolError          our side was asked to send what the specification forbids
    │   └── RemoteProtocolError         a peer sent what the specification forbids
    ├── PairError                       the pair cannot go on; the process ends with ``exit_code``
    │   ├── DualActiveError
    │   ├── DualPassiveError
    │   ├── PeerMismatchError
    │   └── StoreEndedError
    ├── CallError                       a request failed; ``may_have_executed`` says what is known of it
    │   ├── RefusedError                never executed
    │   │   ├── BusyError
    │   │   └── RejectedError
    │   ├── CallTimeoutError            the deadline passed (also a TimeoutError)
    │   │   └── NoActiveNodeError       … and no node ever accepted the request: never executed
    │   ├── OutcomeUnknownError         it may have been executed; whether it was cannot be known here
    │   │   └── StreamInterruptedError  … after some PARTIALs had been delivered
    │   ├── HandlerError                it was executed, and the worker's handler failed
    │   │   └── DeclinedError           … no: the handler declined it, with a code
    │   └── DurableError                a durable request has no answer, and will have none
    │       ├── DeadLetterError         … all its attempts failed, or its time ended
    │       ├── RequestCancelledError   … it was cancelled
    │       └── UnknownRequestError     … the store does not have it
    ├── BulkCallError                   too many calls of a bulk job failed; it gave up
    ├── PipelineError                   a job of the pipeline failed in Spark; nothing is said of the journals
    ├── StoreError                      a durable store cannot be read or written: damage, a full disk
    ├── WorkerError                     a worker cannot go on (its handlers are stuck)
    ├── ClosedError                     used after ``close()``
    └── ForkedError                     used in a child process after ``fork()``
"""

from typing import ClassVar

_REPR_CHARS_MAX = 300


class BstarError(Exception):
    """The root: ``except BstarError`` catches everything that bstar raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """An error travels to other processes as it is: its constructor may want other arguments."""
        return _remade, (type(self), self.args, self.__dict__)


class ConfigurationError(BstarError):
    """A file, flag or environment variable is wrong; the text names it and says what to do."""


class ProtocolError(BstarError):
    """A message breaks the rules of its protocol."""


class LocalProtocolError(ProtocolError):
    """This side was asked to send something that the specification forbids."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something that the specification forbids.

    ``reason`` is a short slug of a closed set, fit for a metric's label; ``text`` is for people.
    ``from_worker``: the command is a worker's, but its frames are wrong. The broker then sends a registered
    worker DISCONNECT (18/MDP: treat the peer as invalid).
    """

    def __init__(self, reason: str, text: str, *, from_worker: bool = False) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text
        self.from_worker = from_worker


class PairError(BstarError):
    """The pair is in a state that only an operator can end."""

    exit_code: ClassVar[int] = 1


class DualActiveError(PairError):
    """Both nodes were active and the policy is ``on_dual_active: exit``."""

    exit_code: ClassVar[int] = 70


class DualPassiveError(PairError):
    """Both nodes are passive and neither has a reason to take over."""

    exit_code: ClassVar[int] = 71


class PeerMismatchError(PairError):
    """The configurations of the two nodes do not form a pair."""

    exit_code: ClassVar[int] = 72


class StoreEndedError(PairError):
    """The thread of the durable store's disk has ended: this node cannot keep requests, and its peer can."""

    exit_code: ClassVar[int] = 73


class CallError(BstarError):
    """A request failed. ``may_have_executed`` is False only when a worker certainly never began it."""

    def __init__(self, text: str, *, may_have_executed: bool) -> None:
        super().__init__(text)
        self.may_have_executed = may_have_executed

    def __repr__(self) -> str:
        """With what is known of the request. A long text is cut: it may hold words of a handler."""
        request_id = getattr(self, "request_id", None)
        of = "" if request_id is None else f", request_id={request_id!r}"
        text = str(self)
        text = text if len(text) <= _REPR_CHARS_MAX else f"{text[:_REPR_CHARS_MAX]}…"
        return f"{type(self).__name__}({text!r}, may_have_executed={self.may_have_executed}{of})"


class RefusedError(CallError):
    """The broker refused the request; no worker saw it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, may_have_executed=False)


class BusyError(RefusedError):
    """A queue was full until the call's deadline.

    ``reason`` is what the broker said last; None if the client itself had too many requests outstanding.
    ``retry_after_s``: after how many seconds the client would have sent it again, by the broker's hint and
    longer after each BUSY; None where ``reason`` is.
    """

    def __init__(self, text: str, *, reason: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.retry_after_s = retry_after_s


class RejectedError(RefusedError):
    """The broker will never accept this request as it is. ``code`` is the native dialect's ERROR code."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class CallTimeoutError(CallError, TimeoutError):
    """The call's deadline passed before its final reply came."""


class NoActiveNodeError(CallTimeoutError):
    """The deadline passed and no node had accepted the request: it was not executed.

    ``unreached``: the endpoints without a connection, and what the client knew of each.
    """

    def __init__(self, text: str, *, unreached: dict[str, str] | None = None) -> None:
        super().__init__(text, may_have_executed=False)
        self.unreached = dict(unreached or {})


class OutcomeUnknownError(CallError):
    """The request may have been executed, its reply is lost, and the client must not send it again.

    Ask the service before you repeat it. docs/clients.md lists when it is raised.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, may_have_executed=True)


class StreamInterruptedError(OutcomeUnknownError):
    """A stream broke after PARTIALs had been delivered; they cannot be recalled, so it is not repeated."""


class HandlerError(CallError):
    """The worker executed the request and its handler failed. ``text`` is what the worker said."""

    def __init__(self, text: str) -> None:
        super().__init__(text, may_have_executed=True)
        self.text = text


class DeclinedError(HandlerError):
    """The handler declined the request (``raise Declined(…)``): an answer of a service that works.

    ``code`` is for programs, ``text`` for people. ``data`` is what the handler added, as JSON has it; None
    without it, and if a node of an earlier release has passed the answer on.
    """

    def __init__(self, code: str, text: str, data: object = None) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.data = data


class DurableError(CallError):
    """A durable request has no answer and will have none. ``request_id`` is its id."""

    def __init__(self, text: str, *, request_id: str, may_have_executed: bool = True) -> None:
        super().__init__(text, may_have_executed=may_have_executed)
        self.request_id = request_id


class DeadLetterError(DurableError):
    """All attempts of a durable request failed, or its time ended. It stays in the store as a dead letter.

    ``cause``: ``"failed"`` (its handler failed each time), ``"declined"`` (its handler declined it, with
    ``code``), ``"poison"`` (every worker that got it was lost), ``"expired"`` or ``"rejected"`` (it cannot be
    done at all). ``text`` is what the last attempt said. ``code`` is None but for ``"declined"``.
    ``may_have_executed`` is False only for one that was rejected without an attempt: an attempt under way
    when the time ends is not counted.
    """

    def __init__(
        self, text: str, *, request_id: str, cause: str, said: str, attempts: int, code: str | None = None
    ) -> None:
        is_refused = cause == "rejected" and not attempts
        super().__init__(text, request_id=request_id, may_have_executed=not is_refused)
        self.cause = cause
        self.code = code
        self.text = said
        self.attempts = attempts


class RequestCancelledError(DurableError):
    """A durable request was cancelled. An attempt may have been executed before, or be under way."""


class UnknownRequestError(DurableError):
    """The store does not have the durable request: never submitted, closed, or forgotten after its time."""


class BulkCallError(BstarError):
    """More calls of a bulk job failed than its threshold allows. The text counts them by kind."""


class StoreError(BstarError):
    """A durable store cannot be read or written. The text names what is wrong, where, and what to do."""


class WorkerError(BstarError):
    """A worker cannot go on: too many of its handlers exceeded their time and are stuck."""


class ClosedError(BstarError):
    """The object was used after ``close()``."""


class ForkedError(BstarError):
    """The object was made before ``fork()`` and used in the child: make a new one in the child."""


class PipelineError(BstarError):
    """Spark could not run a job of the pipeline; the text is Spark's. It says nothing about the journals."""


def _remade(
    kind: type[BstarError], arguments: tuple[object, ...], attributes: dict[str, object]
) -> BstarError:
    """An error that came from another process."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error
