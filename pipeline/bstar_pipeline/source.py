"""The sink ``format("bstar")``: each row of a DataFrame becomes a request, in batches and as a stream.

    spark.dataSource.register(BstarDataSource)
    orders.write.format("bstar").mode("append").options(endpoints="tcp://a:5555,tcp://b:5555", service="book",
                                                        body="json", key="order_id").save()

``request_sink`` sends the rows; this module holds what an option may say.
"""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from bstar.errors import ConfigurationError
from bstar_pipeline.bulk import BulkPlan
from bstar_pipeline.places import Place
from bstar_pipeline.request_sink import RequestStreamWriter, RequestWriter, SinkPlan

_WRITE_OPTIONS = (
    "endpoints", "service", "body", "key", "window", "timeout", "taskDeadline", "errorThreshold", "errorSpan",
    "idempotent", "replies",
)  # fmt: skip
# What a stream brings of its own.
_STREAM_OPTIONS = ("checkpointLocation", "path")


class BstarDataSource(DataSource):
    """See the module. Options: ``endpoints`` (separated by commas), ``service``, ``body`` ("body") and
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
