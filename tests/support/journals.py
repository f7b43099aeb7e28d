"""Journals by hand: records of one run, in order, at times that a test chooses; files that hold them."""

import datetime as dt
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bstar import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MACHINE = "machine-1"
AT_US = 1_793_577_600_000_000
"""2026-11-02T00:00:00Z in microseconds."""


class Run:
    """One run of a process. Each method call on it writes the next record.

    ``run.add(records.Activated, 1_500, epoch=3, text="…")``: at 1500 µs after the test's beginning.
    """

    def __init__(
        self,
        node: str,
        *,
        boot: str | None = None,
        pair: str = "orders",
        machine: str = MACHINE,
        at_us: int = AT_US,
        mono_us: int = 5_000_000,
    ) -> None:
        self.node, self.pair, self.machine = node, pair, machine
        self.boot = boot or (node.encode().hex() * 32)[:32]
        self.at_us, self.mono_us = at_us, mono_us
        self.records: list[records.Record] = []

    def add(self, kind: type[Any], t_us: int, *, step_us: int = 0, **fields: Any) -> records.Record:
        """``t_us`` after the beginning, by a wall clock that is ``step_us`` wrong."""
        record: records.Record = kind(
            v=records.VERSION,
            pair=self.pair,
            node=self.node,
            boot=self.boot,
            seq=len(self.records) + 1,
            at=self.at_us + t_us + step_us,
            mono=self.mono_us + t_us,
            **fields,
        )
        self.records.append(record)
        return record

    def start(self, t_us: int = 0, source: str = "broker", **fields: Any) -> records.Record:
        return self.add(
            records.Started,
            t_us,
            **{
                "source": source,
                "version": "0.1.0",
                "machine": self.machine,
                "host": "host-1",
                "pid": 1,
                **fields,
            },
        )

    def state(self, t_us: int, old: str, new: str, event: str, *, epoch: int = 0) -> records.Record:
        return self.add(
            records.StateChanged, t_us, old=old, new=new, event=event, text=f"{event}: {new}", epoch=epoch
        )

    def request(self, t_us: int, client: str, number: int, outcome: str = "answered", **fields: Any) -> None:
        defaults = {"service": "echo", "sender": "0a", "epoch": 1, "total_us": 1000, "worker": "0b"}
        given = {**defaults, "client": client, "number": number, "outcome": outcome, **fields}
        self.add(records.Request, t_us, **given)

    def call(self, t_us: int, client: str, number: int, outcome: str = "answered", **fields: Any) -> None:
        defaults = {"service": "echo", "total_us": 1500}
        given = {**defaults, "client": client, "number": number, "outcome": outcome, **fields}
        self.add(records.Call, t_us, **given)

    def execution(self, t_us: int, client: str, number: int, **fields: Any) -> None:
        defaults = {"service": "echo", "outcome": "answered", "epoch": 1, "busy_us": 500}
        self.add(records.Execution, t_us, **{**defaults, "client": client, "number": number, **fields})

    def durable(self, t_us: int, client: str, step: str, entry: int = 0, **fields: Any) -> None:
        defaults = {"submission": 1, "service": "price", "epoch": 1}
        self.add(
            records.Durable, t_us, **{**defaults, "client": client, "step": step, "entry": entry, **fields}
        )

    def store(self, t_us: int, entry: int, **fields: Any) -> None:
        """The store leads, with two copies, and holds nothing but what ``fields`` say."""
        counts = dict.fromkeys(("pending", "answered", "dead", "cancelled"), 0)
        self.add(
            records.StorePulse,
            t_us,
            **{"is_leading": True, "copies": 2, "epoch": 1, "entry": entry, **counts, **fields},
        )

    def lines(self) -> list[bytes]:
        return [records.encode(record) for record in self.records]

    def name(self, segment: int = 1, suffix: str = ".ndjson", stamp: str = "20261102T000000Z") -> str:
        return f"{self.pair}.{self.node}.{stamp}.{self.boot[:8]}.{segment:04d}{suffix}"


def frame(spark: "SparkSession", runs: Iterable[Run]) -> "DataFrame":
    """The records of these runs as bronze has them."""
    from bstar_pipeline.schema import RECORDS, TOPICS

    rows = []
    for run in runs:
        for record in run.records:
            kind = str(record.__struct_config__.tag)
            time = dt.datetime.fromtimestamp(record.at / 1e6, dt.UTC)
            told = {
                **msgspec.structs.asdict(record),
                "kind": kind,
                "topic": TOPICS.get(kind, "events"),
                "time": time,
                "day": time.date(),
                "file": run.name(),
            }
            rows.append(tuple(told.get(name) for name in RECORDS.names))
    return spark.createDataFrame(rows, RECORDS)


def closed(run: Run, t_us: int) -> None:
    """Add the last record of a whole segment that has all that the run has written."""
    run.add(records.SegmentClosed, t_us, lines=len(run.records))


def write(path: Path, lines: Iterable[bytes], *, torn: bytes = b"") -> Path:
    """A file of these lines, packed if its name ends in .gz; ``torn`` comes last, without a line's end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(line + b"\n" for line in lines) + torn
    path.write_bytes(gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
    return path
