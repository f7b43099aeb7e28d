"""Records for tests of the pipeline, with the fields that nobody asks about filled in."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bstar import records

if TYPE_CHECKING:
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


def stored_of(of: Sequence[records.Base], folder: Path) -> "Stored":
    """As bronze has them, in files of ``folder``."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    from bstar_pipeline import partitions
    from bstar_pipeline.schema import LINE, TOPICS

    rows = []
    for record in of:
        kind = str(record.__struct_config__.tag)
        topic = TOPICS.get(kind, "events")
        rows.append({**msgspec.structs.asdict(record), "kind": kind, "topic": topic})
    shape = StructType([*LINE.fields, StructField("topic", StringType())])
    folder.mkdir()
    file = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows, to_arrow_schema(shape)), file)
    return partitions.stored(None, [str(file)], shape, is_here=True)
