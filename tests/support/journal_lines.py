"""Records for tests of the pipeline, with the fields that nobody asks about filled in."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bstar import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bstar_pipeline.partitions import Stored

BOOTS = {"primary": "a" * 32, "backup": "b" * 32}


class Scribe:
    """Makes the records of one process; ``at`` in microseconds, its monotonic clock began at 0 in 1970."""

    def __init__(self, node: str = "primary", pair: str = "pair", boot: str = "") -> None:
        self.node = node
        self.pair = pair
        self.boot = boot or BOOTS.get(node, "c" * 32)
        self._seq: Iterator[int] = itertools.count(1)

    def __call__(self, kind: type[records.Base], at: int, **fields: Any) -> records.Base:
        """One record."""
        return kind(
            v=records.VERSION,
            pair=self.pair,
            node=self.node,
            boot=self.boot,
            seq=next(self._seq),
            at=at,
            mono=at,
            **fields,
        )

    def request(
        self, at: int, service: str = "echo", outcome: str = "answered", **fields: Any
    ) -> records.Base:
        """A request that ended at ``at``."""
        told = {"client": "d" * 32, "number": 1, "sender": "s", "epoch": 1, "total_us": 1000, **fields}
        return self(records.Request, at, service=service, outcome=outcome, **told)


def lines(of: Sequence[records.Base]) -> bytes:
    """As a journal has them."""
    return b"".join(records.encode(record) + b"\n" for record in of)


def stored_of(spark: "SparkSession", of: Sequence[records.Base], folder: Path) -> "Stored":
    """As bronze has them, in files of ``folder``."""
    from bstar_pipeline import partitions

    topics = {"request": "requests", "call": "calls", "execution": "executions"}
    columns = {"kind": "STRING", "topic": "STRING"}
    for kind in records.KINDS.values():
        for field in msgspec.structs.fields(kind):
            sort = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", int | None: "BIGINT"}.get(field.type)
            columns[field.name] = sort or "STRING"
    rows = []
    for record in of:
        tag = str(record.__struct_config__.tag)
        told = {"kind": tag, "topic": topics.get(tag, "events")}
        rows.append(tuple(told.get(name, getattr(record, name, None)) for name in columns))
    frame = spark.createDataFrame(rows, ", ".join(f"`{name}` {sort}" for name, sort in columns.items()))
    frame.write.parquet(str(folder))
    return partitions.stored(spark, map(str, folder.glob("*.parquet")), frame.schema, is_here=True)
