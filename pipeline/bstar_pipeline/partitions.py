"""Tables that are defined once, in DuckDB's SQL, and made partition by partition.

The engine reads, shuffles and stores the rows. Rows of equal keys come to one partition, and DuckDB makes
the table's rows of it: on Spark in Python on its executors, in the local engine in this process. A plan is a
scan, a shuffle and one step of Python, whatever the query. DuckDB reads a partition as a stream, and spills
to disk what does not fit in its memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

# Of each task.
_MEMORY_MAX = "1GB"


def queried(
    frame: DataFrame,
    keys: Sequence[str],
    query: str,
    shape: StructType | None = None,
    *,
    tables: Mapping[str, pa.Table] | None = None,
    values: Mapping[str, Any] | None = None,
) -> DataFrame:
    """What the query finds in ``rows``: those of ``frame`` that have equal ``keys``, and others. Without
    ``keys`` no row is moved, and those of a partition are together.

    ``tables``: small ones that the query joins, by name. ``values``: its parameters. Its columns are in the
    order of ``shape``; without one they are as the query has them.
    """
    asked = _Query(query, _arrow(frame.schema), tables or {}, values or {})
    made = asked.shape() if shape is None else _arrow(shape)
    rows = frame.repartition(*keys) if keys else frame
    return rows.mapInArrow(partial(asked.rows, made), shape or from_arrow_schema(made))


def _arrow(shape: StructType) -> pa.Schema:
    return to_arrow_schema(shape, timezone="UTC")


@dataclass(frozen=True, slots=True)
class _Query:
    text: str
    given: pa.Schema
    tables: Mapping[str, pa.Table]
    values: Mapping[str, Any]

    def shape(self) -> pa.Schema:
        """The columns of what it finds."""
        with self._found(()) as found:
            return found.schema

    def rows(self, made: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What it finds in the batches of a partition, in these columns."""
        with self._found(batches) as found:
            yield from _as(made, found)

    @contextmanager
    def _found(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatchReader]:
        config: dict[str, Any] = {"threads": 1, "memory_limit": _MEMORY_MAX}
        with (
            TemporaryDirectory(prefix="bstar-spill-") as spill,
            duckdb.connect(config={**config, "temp_directory": spill}) as duck,
        ):
            duck.execute("SET TimeZone = 'UTC'")
            for name, table in self.tables.items():
                duck.register(name, table)
            duck.register("rows", pa.RecordBatchReader.from_batches(self.given, _as(self.given, batches)))
            yield duck.sql(self.text, params=self.values).to_arrow_reader()


def _as(shape: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Engines spell the types of one column differently: texts, and whether there may be nulls."""
    for batch in batches:
        columns = (column.cast(field.type) for column, field in zip(batch.columns, shape, strict=True))
        yield pa.RecordBatch.from_arrays(list(columns), schema=shape)
