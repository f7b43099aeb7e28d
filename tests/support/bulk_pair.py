"""A pair with workers that keep their replies, for everything that asks it in bulk.

with bulk_pair() as bulk:
    call(df, endpoints=bulk.endpoints, service=SERVICE, …)
assert bulk.executions() == …
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bstar_client import HAClient
from support.brokers import wait_until
from support.pairs import QUICK, Pair, new_pair

SERVICE = "bulk"
_WORKER = Path(__file__).with_name("keyed_worker.py")


class BulkPair:
    """The pair, and what its workers have executed."""

    def __init__(self, pair: Pair, workers: int, store: str) -> None:
        self.pair = pair
        self.endpoints = pair.endpoints
        self._records = [pair.directory / f"executed-{number}" for number in range(workers)]
        kept = str(pair.directory / "replies.db") if store == "file" else store
        self._workers = [
            subprocess.Popen(
                (sys.executable, str(_WORKER), SERVICE, str(record), kept, *pair.endpoints),
                stdin=subprocess.DEVNULL,
            )
            for record in self._records
        ]

    def executions(self) -> Counter[bytes]:
        """How often each identity was executed, by all workers."""
        return Counter(
            bytes.fromhex(line.decode())
            for record in self._records
            if record.exists()
            for line in record.read_bytes().splitlines()
        )

    def wait_for_executions(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Wait until the workers have begun so many requests, repetitions included."""
        size = count * 49  # 48 digits and the end of the line
        wait_until(
            lambda: sum(record.stat().st_size for record in self._records if record.exists()) >= size,
            f"{count} executions",
            timeout_s=timeout_s,
        )

    def close(self) -> None:
        """Kill the workers."""
        for worker in self._workers:
            worker.kill()
            worker.wait()


@contextmanager
def bulk_pair(
    *, workers: int = 2, store: str = "file", limits: Mapping[str, Any] | None = None
) -> Iterator[BulkPair]:
    """Run a pair whose primary is active, with workers; ``store`` as keyed_worker.py has it, or "file"."""
    changes = {"limits": limits or {}}
    with new_pair(QUICK, primary=changes, backup=changes) as pair:
        pair.launch()
        pair.primary.wait_for_state("ACTIVE")
        pair.backup.wait_for_state("PASSIVE")
        bulk = BulkPair(pair, workers, store)
        try:
            for node in pair.nodes:
                node.wait_for(f"with {workers} workers", lambda state: state["broker"]["workers"] == workers)
            yield bulk
        finally:
            bulk.close()


def ask_once(bulk: BulkPair, body: bytes) -> bytes:
    """One request in the ordinary way."""
    with HAClient(bulk.endpoints) as client:
        return client.request(SERVICE, body).body
