"""What runs in a Spark task that calls a service: one client, a bounded window, and a status for every row.

``call_batches`` takes Arrow batches and gives the same rows back with the outcome of their calls beside them,
in their order. It reads the next batch while calls of the last one are in flight, so the window stays full.
It holds ``BATCHES_MAX`` batches at most, and waits for a slow call in an old batch.

It knows nothing of Spark and of attempts: a task that is run again does the same, with the same keys.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Literal, Self

import msgspec
import pyarrow as pa

from bstar import errors
from bstar_client import Ask, CallFailed, HAClient, Reply

BODY = "__bstar_body"
KEY = "__bstar_key"
"""The columns that bring each row's body and key; they are not given back."""

BATCHES_MAX = 4
_WINDOW_MAX = 100_000
# Rows of a batch that are turned into Python's bytes at a time.
_SLICE_ROWS = 1_024

Status = Literal["answered", "declined", "failed", "busy", "rejected", "no-active", "timeout", "unknown"]


class BulkPlan(msgspec.Struct, frozen=True):
    """Everything that a task has to know. Times in seconds.

    ``error_limit``: None, a share (below 1) of the last ``error_span`` rows, or a count (1 or more) in the
    whole task, of rows that were not answered. ``has_frames``: ``reply`` is the list of all frames.
    """

    endpoints: tuple[str, ...]
    service: str
    window: int
    timeout_s: float
    task_deadline_s: float | None = None
    error_limit: float | None = None
    error_span: int = 200
    is_idempotent: bool = True
    has_frames: bool = False
    has_keys: bool = False
    prefix: str = ""

    def checked(self) -> Self:
        """This plan, if it can be carried out; else ConfigurationError, in the words of ``call``."""
        deadline, limit = self.task_deadline_s, self.error_limit
        checks = (
            (
                self.service and not self.service.startswith("mmi."),
                f"service names a worker's service, not {self.service!r}",
            ),
            (self.endpoints, "endpoints are the nodes' addresses, the primary first: the list is empty"),
            (1 <= self.window <= _WINDOW_MAX, f"window is 1 to {_WINDOW_MAX} requests, not {self.window}"),
            (self.timeout_s > 0, f"timeout is above 0 seconds, not {self.timeout_s}"),
            (deadline is None or deadline > 0, f"task_deadline is above 0 seconds or None, not {deadline}"),
            (
                limit is None or limit > 0,
                f"error_threshold is a share below 1, a count from 1, or None, not {limit}",
            ),
            (self.error_span >= 1, f"error_span is 1 row or more, not {self.error_span}"),
        )
        for is_right, text in checks:
            if not is_right:
                raise errors.ConfigurationError(text)
        return self


def outcome_of(plan: BulkPlan) -> pa.Schema:
    """The columns that are added."""
    kinds = {
        "reply": pa.list_(pa.binary()) if plan.has_frames else pa.binary(),
        "status": pa.string(),
        "error": pa.string(),
        "attempts": pa.int32(),
        "latency_us": pa.int64(),
        "endpoint": pa.string(),
        "epoch": pa.int64(),
    }
    return pa.schema([(plan.prefix + name, kind) for name, kind in kinds.items()])


# The first kind that an error of a call is of tells what became of its row.
_STATUSES: tuple[tuple[type[errors.BstarError], Status], ...] = (
    (errors.DeclinedError, "declined"),
    (errors.HandlerError, "failed"),
    (errors.BusyError, "busy"),
    (errors.RejectedError, "rejected"),
    (errors.LocalProtocolError, "rejected"),
    (errors.NoActiveNodeError, "no-active"),
    (errors.CallTimeoutError, "timeout"),
    (errors.BstarError, "unknown"),
)


def call_batches(batches: Iterable[pa.RecordBatch], plan: BulkPlan) -> Iterator[pa.RecordBatch]:
    """The same batches without ``BODY`` and ``KEY`` and with the columns of ``outcome_of``.

    Raises BulkCallError when more rows fail than the plan allows.
    """
    with HAClient(plan.endpoints, timeout=plan.timeout_s, outstanding_max=plan.window + 1_000) as client:
        yield from _Task(client, plan).run(iter(batches))


class _Batch:
    """A batch and what is known of its rows so far."""

    def __init__(self, batch: pa.RecordBatch, plan: BulkPlan) -> None:
        self.batch = batch
        self._plan = plan
        self.open = batch.num_rows
        # By row, the values of the columns that are added.
        self._outcomes: list[tuple[object, ...]] = [()] * batch.num_rows

    def rows(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Each row's body and key."""
        for start in range(0, self.batch.num_rows, _SLICE_ROWS):
            piece = self.batch.slice(start, _SLICE_ROWS)
            bodies = piece.column(BODY).to_pylist()
            keys = piece.column(KEY).to_pylist() if self._plan.has_keys else [None] * len(bodies)
            yield from zip(bodies, keys, strict=True)

    def answer(self, row: int, reply: Reply) -> None:
        """The row's call was answered."""
        self.open -= 1
        body: tuple[bytes, ...] | bytes | None = reply.frames
        error, count = None, len(reply.frames)
        if not self._plan.has_frames:
            body = reply.frames[0] if count == 1 else None
            if count != 1:
                error = f"the reply has {count} frames: call(…, frames=True) gives them all"
        latency_us = int(reply.elapsed_s * 1e6)
        self._outcomes[row] = (
            body, "answered", error, reply.attempts, latency_us, reply.endpoint, reply.epoch
        )  # fmt: skip

    def fail(self, row: int, status: Status, text: str, attempts: int, elapsed_s: float) -> None:
        """The row's call was not answered, or not made."""
        self.open -= 1
        self._outcomes[row] = (None, status, text, attempts, int(elapsed_s * 1e6), None, None)

    def with_outcome(self) -> pa.RecordBatch:
        """The whole batch, when nothing is open."""
        given = self.batch.drop_columns([BODY, KEY] if self._plan.has_keys else [BODY])
        added = outcome_of(self._plan)
        columns = [
            pa.array([outcome[place] for outcome in self._outcomes], type=field.type)
            for place, field in enumerate(added)
        ]
        schema = pa.schema([*given.schema, *added])
        return pa.RecordBatch.from_arrays([*given.columns, *columns], schema=schema)


class _Task:
    """The rows of one task on their way."""

    def __init__(self, client: HAClient, plan: BulkPlan) -> None:
        self._client = client
        self._plan = plan
        self._began_at = time.monotonic()
        # Batches whose rows have been read, the oldest first, and where the calls under way belong.
        self._held: deque[_Batch] = deque()
        self._places: dict[int, tuple[_Batch, int]] = {}
        self._is_exhausted = False
        # How many rows have an outcome, how many of each kind were not answered, and which of the last.
        self._rows = 0
        self._kinds: Counter[Status] = Counter()
        self._last: deque[bool] = deque(maxlen=plan.error_span)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call row after row until the source ends."""
        plan = self._plan
        while not self._is_exhausted:
            self._places.clear()
            outcomes = self._client.map(
                plan.service,
                self._asks(batches),
                window=plan.window,
                ordered=False,
                timeout=plan.timeout_s,
                idempotent=plan.is_idempotent,
                errors="return",
            )
            for outcome in outcomes:
                batch, row = self._places.pop(outcome.index)
                if isinstance(outcome, CallFailed):
                    error = outcome.error
                    if isinstance(error, errors.ClosedError):
                        raise error  # the client has ended, not this call alone
                    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
                    self._fail(batch, row, status, str(error), outcome.attempts, outcome.elapsed_s)
                else:
                    batch.answer(row, outcome)
                    self._count()
                yield from self._whole_batches()
            # All calls have ended, so every batch that is held is whole.
            yield from self._whole_batches()
            assert not self._held, "no call is under way and a row has no outcome"

    def _whole_batches(self) -> Iterator[pa.RecordBatch]:
        while self._held and not self._held[0].open:
            yield self._held.popleft().with_outcome()

    def _asks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Ask]:
        """The calls to make, read as the window moves. Ends early when too many batches are held."""
        number, deadline_s = 0, self._plan.task_deadline_s
        ends_at = math.inf if deadline_s is None else self._began_at + deadline_s
        for given in batches:
            batch = _Batch(given, self._plan)
            self._held.append(batch)
            for row, (body, key) in enumerate(batch.rows()):
                timeout_s = min(self._plan.timeout_s, ends_at - time.monotonic())
                if body is None or (key is None and self._plan.has_keys):
                    what = "body" if body is None else "key"
                    self._fail(batch, row, "rejected", f"the row's {what} is null; nothing was sent")
                elif timeout_s <= 0:
                    text = f"the task's deadline ({deadline_s} s) was over; nothing was sent"
                    self._fail(batch, row, "timeout", text)
                else:
                    self._places[number] = (batch, row)
                    number += 1
                    yield Ask(body, key, timeout_s)
            if len(self._held) >= BATCHES_MAX:
                return
        self._is_exhausted = True

    def _fail(
        self, batch: _Batch, row: int, status: Status, text: str, attempts: int = 0, elapsed_s: float = 0.0
    ) -> None:
        batch.fail(row, status, text, attempts, elapsed_s)
        self._count(status, text)

    def _count(self, status: Status | None = None, text: str = "") -> None:
        """One row more; without a status it was answered. Gives the task up when too many were not."""
        limit, self._rows = self._plan.error_limit, self._rows + 1
        self._last.append(status is not None)
        if status is None or limit is None:
            return
        self._kinds[status] += 1
        if limit >= 1:
            failed, seen = self._kinds.total(), self._rows
            is_too_many = failed >= limit
        else:
            seen = len(self._last)
            failed = sum(self._last) if seen == self._plan.error_span else 0
            is_too_many = failed > limit * seen
        if is_too_many:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self._kinds.most_common())
            raise errors.BulkCallError(
                f"gave up calling {self._plan.service!r} at {', '.join(self._plan.endpoints)}: {failed} of "
                f"the last {seen} rows were not answered (error_threshold {limit:g}); in this task: {kinds} "
                f"of {self._rows} rows. The last error: {text}"
            )
