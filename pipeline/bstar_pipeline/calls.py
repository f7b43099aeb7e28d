"""Bulk calls: every row of a DataFrame becomes a request to a service of the pair, its reply a column.

    replies = call(orders, service="price", endpoints=["tcp://node1:5555", "tcp://node2:5555"],
                   body=to_json(struct("*")), key="order_id")

Each task has a client of its own, made where the task runs (``mapInArrow``), with at most ``window``
requests under way; so the pair sees at most (tasks that run at once) x window. A failover, a BUSY node and a
lost reply are the client's business and cost time, not rows. When Spark runs a task again it asks with the
same keys.

It is a transformation like any other: nothing is called before an action, and *every* action calls again.
Write the result, or persist it, before you look at it twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from bstar.errors import ConfigurationError
from bstar_pipeline.bulk import BODY, KEY, BulkPlan, outcome_of

# Said by a task that cannot import what it needs.
_HOW_TO_SHIP = (
    "the Python of Spark's workers lacks bstar, or what it needs (pyzmq, msgspec, pyarrow). Install it there,"
    " or pack it with `python -m bstar_pipeline.ship FOLDER` and ship it: spark-submit --archives"
    " FOLDER/bstar-spark.tar.gz#bstar --conf spark.executorEnv.PYTHONPATH=bstar (docs/pipeline.md, Cluster)"
)


def call(
    df: DataFrame,
    *,
    service: str,
    endpoints: str | Sequence[str],
    body: Column | str,
    key: Column | str | None = None,
    window: int = 64,
    timeout: float = 30.0,
    task_deadline: float | None = None,
    error_threshold: float | None = 0.5,
    error_span: int = 200,
    idempotent: bool = True,
    frames: bool = False,
    prefix: str = "",
) -> DataFrame:
    """``df`` with a request to ``service`` for each row and seven columns more about what became of it.

    ``body``: a column of BINARY, or of STRING, which is sent as UTF-8. ``key``: the request's idempotency
    key, of any plain type; the same key is the same request, whichever task, attempt, job or
    node (docs/guarantees.md, "One answer per key"). It must name the row, not the moment: never an attempt's
    number, a random value or ``monotonically_increasing_id``. Without a key each attempt of a task asks anew.

    ``window`` requests are under way in each task. ``timeout``: seconds for each request with all its
    retries; ``task_deadline``: seconds for the whole task, which no request outlives (what has no time left
    is not sent). ``error_threshold``: the task fails when more than this share (below 1) of its last
    ``error_span`` rows, or so many rows of the whole task (1 or more), are not answered; None lets it go on
    whatever happens. ``idempotent=False``: what may have been executed is not repeated by client or broker.

    Added columns, with ``prefix`` before their names:

    - ``reply`` BINARY, or null; with ``frames=True`` ARRAY<BINARY>, all frames of the reply
    - ``status`` STRING: answered; declined or failed (the handler raised Declined, or anything else);
      certainly not executed by this request: busy, rejected (also: null body or key, body too large),
      no-active; perhaps executed: timeout, unknown
    - ``error`` STRING, null if answered
    - ``attempts`` INT: how often it was sent; ``latency_us`` BIGINT: from its beginning to its end
    - ``endpoint`` STRING and ``epoch`` BIGINT: the node that answered and its activation

    Rows keep their order within a partition. Raises ConfigurationError for what is wrong before any action.
    """
    plan = BulkPlan(
        (endpoints,) if isinstance(endpoints, str) else tuple(endpoints),
        service,
        window=window,
        timeout_s=timeout,
        task_deadline_s=task_deadline,
        error_limit=error_threshold,
        error_span=error_span,
        is_idempotent=idempotent,
        has_frames=frames,
        has_keys=key is not None,
        prefix=prefix,
    ).checked()
    columns = [_as_bytes(df, body, "body").alias(BODY)]
    if key is not None:
        columns.append(_as_bytes(df, key, "key").alias(KEY))
    return df.select("*", *columns).mapInArrow(_task(msgspec.to_builtins(plan)), _schema(df, plan))


def _as_bytes(df: DataFrame, column: Column | str, what: str) -> Column:
    """The column as BINARY. A body is BINARY or STRING; a key may be of any type that has one clear text."""
    column = F.col(column) if isinstance(column, str) else column
    kind = df.select(column).schema[0].dataType
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StringType):
        return column.cast("binary")
    if what == "key" and not isinstance(kind, ArrayType | MapType | StructType):
        return column.cast("string").cast("binary")
    how = "cast it, or use to_json or concat_ws" if what == "key" else "cast it, or use to_json(struct(…))"
    raise ConfigurationError(
        f"the {what} is a column of BINARY or STRING, not of {kind.simpleString()}: {how}"
    )


def _schema(df: DataFrame, plan: BulkPlan) -> StructType:
    added = from_arrow_schema(outcome_of(plan))
    known = {name.lower() for name in df.columns}
    taken = [name for name in added.names if name.lower() in known]
    if taken or {BODY, KEY} & known:
        raise ConfigurationError(
            f"the DataFrame has columns called {', '.join(taken) or BODY} already: give the new ones a prefix"
        )
    return StructType([*df.schema.fields, *added.fields])


def _task(plan: dict[str, object]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What a task runs. It and ``_HOW_TO_SHIP`` go there by value: it can say what is missing there."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        try:
            import msgspec  # noqa: PLC0415 - in the task, not here

            from bstar_pipeline.bulk import BulkPlan, call_batches  # noqa: PLC0415
        except ImportError as error:
            raise RuntimeError(f"{_HOW_TO_SHIP}. Missing: {error}") from error
        return call_batches(batches, msgspec.convert(plan, BulkPlan))

    return run
