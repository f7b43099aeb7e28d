"""The sink ``format("bstar")``: each row of a DataFrame becomes a request, in batches and as a stream.

    spark.dataSource.register(BstarDataSource)
    orders.write.format("bstar").mode("append").options(endpoints="tcp://a:5555,tcp://b:5555", service="book",
                                                        body="json", key="order_id").save()

Every row is sent, and its reply kept if a directory is named.

A request cannot be taken back. So a failed job has made calls, and its next attempt repeats them. The same
keys make them harmless (docs/guarantees.md, "One answer per key"). Replies are different: each task writes
them to a file below ``_temporary``, and only the commit of the whole job, or of a micro-batch, moves them to
their names; of what was aborted nothing is seen. (A task that was killed leaves its file in ``_temporary``,
which readers pass over.) A micro-batch that is committed twice, because the stream was killed between its
commit and its checkpoint, replaces its own files. So does a batch that is written again: one with the same
keys, whatever their order and however they are spread over tasks, is the same batch.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, ByteType, IntegerType, LongType, ShortType, StringType, StructType

from bstar.errors import ConfigurationError
from bstar.wire.native import keyed_identity
from bstar_pipeline.bulk import BODY, KEY, OUTCOME, BulkPlan, call_batches
from bstar_pipeline.places import Place

_TEMPORARY = "_temporary"
# Sums of identities (24 octets) keep to their size.
_SUM_MODULUS = 2**192
_WRITE_OPTIONS = (
    "endpoints", "service", "body", "key", "window", "timeout", "taskDeadline", "errorThreshold", "errorSpan",
    "idempotent", "replies",
)  # fmt: skip
# What a stream brings of its own.
_STREAM_OPTIONS = ("checkpointLocation", "path")


class SinkPlan(msgspec.Struct, frozen=True):
    """The calls, the columns that bring bodies and keys, and the directory of the replies."""

    bulk: BulkPlan
    body: str
    key: str | None
    replies: Place | None

    def check(self, schema: StructType) -> None:
        """Raise ConfigurationError if rows of this schema cannot be sent."""
        kinds = {field.name: field.dataType for field in schema}
        texts = (BinaryType, StringType)
        plain = (*texts, ByteType, ShortType, IntegerType, LongType)
        for column, what, known in ((self.body, "body", texts), (self.key, "key", plain)):
            if column is None:
                continue
            if column not in kinds:
                raise ConfigurationError(
                    f"option {what} names a column; {column!r} is none of {', '.join(kinds)}"
                )
            if not isinstance(kinds[column], known):
                names = ", ".join(kind.typeName().upper() for kind in known)
                raise ConfigurationError(
                    f"the {what} is of {names}, and {column} is not: it is of {kinds[column].simpleString()}"
                )
        if self.bulk.error_limit != 1 and self.replies is None:
            raise ConfigurationError(
                "errorThreshold lets rows without an answer pass: name a directory for replies, to tell them"
            )
        taken = [name for name in OUTCOME if name in {column.lower() for column in kinds}]
        if self.replies is not None and taken:
            raise ConfigurationError(f"the rows have columns called {', '.join(taken)} already: rename them")


@dataclass
class Sent(WriterCommitMessage):
    """What one task did: rows by status, the sum of the identities that their keys stand for, and the file of
    their replies below ``_temporary``.
    """

    rows: dict[str, int]
    keys: int
    file: str | None


Messages = list[WriterCommitMessage | None]


class _Sink:
    """What batch and stream have in common. Each task, and each commit, has a copy of its own."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send every row of a task's batches. Raises BulkCallError when too many get no answer."""
        plan = self._plan
        keys = _KeySum(plan.bulk.service.encode())
        asked = (_with_octets(batch, plan.body, plan.key) for batch in iterator)
        answered = call_batches(keys.of(asked) if plan.key is not None else asked, plan.bulk)
        rows: Counter[str] = Counter()
        if plan.replies is None:
            for batch in answered:
                rows.update(batch.column("status").to_pylist())
            return Sent(dict(rows), keys.total, None)
        system, root = plan.replies.opened()
        system.create_dir(f"{root}/{_TEMPORARY}", recursive=True)
        path = f"{root}/{_TEMPORARY}/{uuid.uuid4().hex}.parquet"
        writer: pyarrow.parquet.ParquetWriter | None = None
        try:
            for batch in answered:
                if writer is None:
                    writer = pyarrow.parquet.ParquetWriter(path, batch.schema, filesystem=system)
                writer.write_batch(batch)
                rows.update(batch.column("status").to_pylist())
            if writer is None:
                return Sent({}, keys.total, None)
            writer.close()
        except BaseException:
            if writer is not None:
                writer.close()
                system.delete_file(path)
            raise
        return Sent(dict(rows), keys.total, path)

    def _publish(self, messages: Messages, prefix: str) -> None:
        """Give the replies their names, then remove those of an earlier commit of the same prefix.

        In this order a reader, and whoever finds the files of a commit that was killed, may see replies twice
        but never misses one; the next commit of the same prefix leaves each once.
        """
        if self._plan.replies is None:
            return
        system, root = self._plan.replies.opened()
        system.create_dir(root, recursive=True)
        earlier = [
            info.path
            for info in system.get_file_info(pyarrow.fs.FileSelector(root))
            if info.base_name.startswith(prefix)
        ]
        attempt = uuid.uuid4().hex[:8]
        for number, file in enumerate(_files(messages)):
            system.move(file, f"{root}/{prefix}{attempt}-{number:05d}.parquet")
        for path in earlier:
            system.delete_file(path)

    def _discard(self, messages: Messages) -> None:
        """Remove the replies of the tasks that had ended."""
        if self._plan.replies is None:
            return
        system, _ = self._plan.replies.opened()
        for file in _files(messages):
            system.delete_file(file)


class RequestWriter(_Sink, DataSourceArrowWriter):
    """A batch of rows."""

    def commit(self, messages: Messages) -> None:
        """Every task has sent its rows: publish their replies."""
        name = uuid.uuid4().hex if self._plan.key is None else _name_of_keys(messages)
        self._publish(messages, f"part-{name}-")

    def abort(self, messages: Messages) -> None:
        """A task failed for good. What was sent stays sent; of the replies nothing is kept."""
        self._discard(messages)


class RequestStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Micro-batches of rows."""

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch's replies, in place of those of an earlier attempt at it."""
        self._publish(messages, f"batch-{batchId:012d}-")

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """The micro-batch failed and comes again, with the same keys."""
        self._discard(messages)


class _KeySum:
    """Adds up the identities of a task's keys: the same keys have the same sum, in whatever order."""

    def __init__(self, service: bytes) -> None:
        self._service = service
        self.total = 0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted. A row without a key is no request."""
        for batch in batches:
            for key in batch.column(KEY).to_pylist():
                if key is not None:
                    self.total += int.from_bytes(keyed_identity(self._service, key), "big")
            self.total %= _SUM_MODULUS
            yield batch


def _name_of_keys(messages: Messages) -> str:
    """What files of a batch with these keys are called."""
    total = sum(message.keys for message in messages if isinstance(message, Sent))
    return f"{total % _SUM_MODULUS:048x}"


def _files(messages: Messages) -> list[str]:
    return sorted(
        message.file for message in messages if isinstance(message, Sent) and message.file is not None
    )


def _with_octets(batch: pa.RecordBatch, body: str, key: str | None) -> pa.RecordBatch:
    """The batch with its bodies and keys as octets, where ``call_batches`` looks for them."""
    columns, names = [*batch.columns], [*batch.schema.names]
    for column, name in ((body, BODY), (key, KEY)):
        if column is not None:
            values = batch.column(column)
            if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
                values = values.cast(pa.string()).cast(pa.binary())
            columns.append(values)
            names.append(name)
    return pa.RecordBatch.from_arrays(columns, names=names)


class BstarDataSource(DataSource):
    """Options: ``endpoints`` (separated by commas), ``service``, ``body`` ("body") and
    ``key`` (none) name columns, ``window`` (64), ``timeout`` (30) seconds, ``taskDeadline``,
    ``errorThreshold`` (1: one row without an answer fails the job), ``errorSpan`` (200), ``idempotent``
    ("true"), ``replies``: a directory (a path or URI) for Parquet files of the rows with their replies.
    """

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return "bstar"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write requests, in a batch."""
        if overwrite:
            raise ConfigurationError("requests cannot be taken back: write them with mode('append')")
        return RequestWriter(self._sink_plan(schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Write requests, micro-batch by micro-batch."""
        if overwrite:
            raise ConfigurationError("requests cannot be taken back: outputMode is append or update")
        return RequestStreamWriter(self._sink_plan(schema))

    def _sink_plan(self, schema: StructType) -> SinkPlan:
        self._check((*_WRITE_OPTIONS, *_STREAM_OPTIONS))
        options = self.options
        endpoints = tuple(part.strip() for part in options.get("endpoints", "").split(",") if part.strip())
        key = options.get("key")
        deadline = options.get("taskDeadline")
        bulk = BulkPlan(
            endpoints,
            options.get("service", ""),
            window=int(self._number("window", 64)),
            timeout_s=self._number("timeout", 30.0),
            task_deadline_s=None if deadline is None else self._number("taskDeadline", 0.0),
            error_limit=self._number("errorThreshold", 1.0),
            error_span=int(self._number("errorSpan", 200)),
            is_idempotent=self._flag("idempotent", True),
            has_keys=key is not None,
        ).checked()
        replies = options.get("replies")
        kept = None if replies is None else Place.of(replies)
        plan = SinkPlan(bulk, options.get("body", "body"), key, kept)
        plan.check(schema)
        return plan

    def _check(self, known: tuple[str, ...]) -> None:
        names = {name.lower() for name in known}
        unknown = [name for name in self.options if name.lower() not in names]
        if unknown:
            raise ConfigurationError(
                f"format('bstar') has no option {', '.join(sorted(unknown))} here; it has {', '.join(known)}"
            )

    def _number(self, name: str, default: float) -> float:
        options: Mapping[str, str] = self.options
        told = options.get(name)
        if told is None:
            return default
        try:
            return float(told)
        except ValueError:
            raise ConfigurationError(f"option {name} is a number, not {told!r}") from None

    def _flag(self, name: str, default: bool) -> bool:
        told = self.options.get(name, str(default)).lower()
        if told not in ("true", "false"):
            raise ConfigurationError(f"option {name} is true or false, not {told!r}")
        return told == "true"
