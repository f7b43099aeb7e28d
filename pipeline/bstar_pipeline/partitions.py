"""Tables that are defined once, in DuckDB's SQL, and made partition by partition.

The engine reads, shuffles and stores the rows. Rows of equal keys come to one partition, and DuckDB makes
the table's rows of it: on Spark in Python on its executors, in the local engine in this process. A plan is a
scan, a shuffle and one step of Python, whatever the query. DuckDB reads a partition as a stream, and spills
to disk what does not fit in its memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

# Of each task.
_MEMORY_MAX = "1GB"


def queried(
    frame: DataFrame,
    keys: Sequence[str],
    query: str,
    shape: StructType,
    *,
    tables: Mapping[str, pa.Table] | None = None,
    values: Mapping[str, Any] | None = None,
) -> DataFrame:
    """What the query finds in ``rows``: those of ``frame`` that have equal ``keys``, and others.

    ``tables``: small ones that the query joins, by name. ``values``: its parameters. Its columns are in the
    order of ``shape``.
    """
    step = partial(_found, query, _arrow(frame.schema), _arrow(shape), tables or {}, values or {})
    return frame.repartition(*keys).mapInArrow(step, shape)


def _arrow(shape: StructType) -> pa.Schema:
    return to_arrow_schema(shape, timezone="UTC")


def _found(
    query: str,
    given: pa.Schema,
    made: pa.Schema,
    tables: Mapping[str, pa.Table],
    values: Mapping[str, Any],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The rows of a query about the batches of a partition."""
    with (
        TemporaryDirectory(prefix="bstar-spill-") as spill,
        duckdb.connect(config={"threads": 1, "memory_limit": _MEMORY_MAX, "temp_directory": spill}) as duck,
    ):
        duck.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            duck.register(name, table)
        duck.register("rows", pa.RecordBatchReader.from_batches(given, _as(given, batches)))
        yield from _as(made, duck.sql(query, params=values).to_arrow_reader())


def _as(shape: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Engines spell the types of one column differently: texts, and whether there may be nulls."""
    for batch in batches:
        columns = (column.cast(field.type) for column, field in zip(batch.columns, shape, strict=True))
        yield pa.RecordBatch.from_arrays(list(columns), schema=shape)
