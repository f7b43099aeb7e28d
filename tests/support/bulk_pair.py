"""A pair with workers that keep their replies, for everything that asks it in bulk.

with bulk_pair() as bulk:
    call(df, endpoints=bulk.endpoints, service=SERVICE, …)
assert bulk.executions() == …
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bstar_testing import wait_until
from support.pairs import QUICK, Pair, new_pair

SERVICE = "bulk"
_WORKER = Path(__file__).with_name("keyed_worker.py")


class BulkPair:
    """The pair, and what its workers have executed."""

    def __init__(self, pair: Pair, workers: int, store: str) -> None:
        self.pair = pair
        self.endpoints = pair.endpoints
        self._records = [pair.folder / f"executed-{number}" for number in range(workers)]
        kept = str(pair.folder / "replies.db") if store == "file" else store
        for record in self._records:
            argv = (sys.executable, str(_WORKER), SERVICE, str(record), kept, *pair.endpoints)
            pair.start_process(f"worker-{record.name}", argv)

    def executions(self) -> Counter[bytes]:
        """How often each identity was executed, by all workers."""
        return Counter(
            bytes.fromhex(line.decode())
            for record in self._records
            if record.exists()
            for line in record.read_bytes().splitlines()
        )

    def wait_for_executions(self, count: int, *, timeout_s: float = 300.0) -> None:
        """Wait until the workers have begun so many requests, repetitions included."""
        size = count * 49  # 48 digits and the end of the line
        wait_until(
            lambda: sum(record.stat().st_size for record in self._records if record.exists()) >= size,
            f"{count} executions",
            limit_s=timeout_s,
        )


@contextmanager
def bulk_pair(
    *, workers: int = 2, store: str = "file", limits: Mapping[str, Any] | None = None
) -> Iterator[BulkPair]:
    """Run a pair whose primary is active, with workers; ``store`` as keyed_worker.py has it, or "file"."""
    settings = {f"limits.{name}": value for name, value in (limits or {}).items()}
    with new_pair(QUICK, settings=settings) as pair:
        pair.start()
        bulk = BulkPair(pair, workers, store)
        for node in pair.nodes:
            node.wait_for_workers(workers)
        yield bulk
