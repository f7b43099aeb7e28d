"""The data source ``format("bstar")``: rows become requests, and journals become rows.

    spark.dataSource.register(BstarDataSource)
    spark.read.format("bstar").load("/var/lib/bstar/journal").where("pair = 'orders' AND kind = 'state'")
    orders.write.format("bstar").mode("append").options(endpoints="tcp://a:5555,tcp://b:5555", service="book",
                                                        body="json", key="order_id").save()

``journal_source`` reads, ``request_sink`` writes, in batches and as a stream; this module holds what an
option may say. Reading is for looking around: it opens only the files that the filters leave. The pipeline
reads the same files with Spark's own reader (``bronze``), which is many times as fast.
"""

from collections.abc import Mapping

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from bstar.errors import ConfigurationError
from bstar_pipeline.bulk import BulkPlan
from bstar_pipeline.journal_source import ROWS, JournalReader, PushingReader
from bstar_pipeline.places import Place
from bstar_pipeline.request_sink import RequestStreamWriter, RequestWriter, SinkPlan

_READ_OPTIONS = ("path", "paths", "pushdown", "clockSlackSeconds")
_WRITE_OPTIONS = (
    "endpoints", "service", "body", "key", "window", "timeout", "taskDeadline", "errorThreshold", "errorSpan",
    "idempotent", "replies",
)  # fmt: skip
# What a stream brings of its own.
_STREAM_OPTIONS = ("checkpointLocation", "path")


class BstarDataSource(DataSource):
    """See the module. Options of reading:

    - ``path`` (or ``load(path)``, ``load([path, …])``): a directory, a file or a pattern, of this machine or
      as a URI that pyarrow knows; journals below are read
    - ``pushdown``: "false" for sessions without ``spark.sql.python.filterPushdown.enabled`` (``open_session``
      sets it); every file is then read
    - ``clockSlackSeconds`` (86400): by how much a record's wall clock may differ from the one in the file's
      name; files further away than that from the time or day that is asked for are not opened

    Options of writing: ``endpoints`` (separated by commas), ``service``, ``body`` ("body") and ``key`` (none)
    name columns, ``window`` (64), ``timeout`` (30) seconds, ``taskDeadline``, ``errorThreshold`` (1: one row
    without an answer fails the job), ``errorSpan`` (200), ``idempotent`` ("true"), ``replies``: a directory
    (a path or URI) for Parquet files of the rows with their replies.
    """

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return "bstar"

    def schema(self) -> StructType:
        """Of reading: the columns of ``bronze.records``, and ``rejection`` and ``line`` of other lines."""
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read journals."""
        self._check(_READ_OPTIONS)
        paths = self._paths()
        unknown = [name for name in schema.names if name not in ROWS.names]
        if unknown:
            raise ConfigurationError(f"a journal's line has no {', '.join(unknown)}")
        kind = PushingReader if self._flag("pushdown", True) else JournalReader
        return kind(paths, schema, slack_s=self._number("clockSlackSeconds", 86_400.0))

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

    def _paths(self) -> list[str]:
        """What ``load`` was given. Raises ConfigurationError if it is nothing that can be opened."""
        path, several = self.options.get("path"), self.options.get("paths")
        paths = [path] if path else []
        # This is how Spark spells a list.
        paths += msgspec.json.decode(several, type=list[str]) if several else []
        if not paths:
            raise ConfigurationError("no journals to read: load(path) names a directory or a file")
        for each in paths:
            Place.of(each)
        return paths

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
