"""Ordinary requests by the million: a chunk is a time in which one node served, and how many ended in it.

Everything is drawn as arrays; only the last step, a record's line, is done one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bstar import records
from bstar_pipeline.synth.process import Process
from bstar_pipeline.synth.traffic import Bools, Ints, Traffic

# No request of a chunk ends so near its edges that a record of another process would lie in the next one.
_EDGE_US = 1_000
_NET_US = 100


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` requests end in [since, until); their indices begin with ``first``."""

    number: int
    process: int
    epoch: int
    stretch_since_us: int
    since_us: int
    until_us: int
    first: int
    count: int


class Bulk:
    """The requests of a chunk that are recorded, ordered by their end."""

    def __init__(self, traffic: Traffic, pair: int, chunk: Chunk) -> None:
        rng = np.random.default_rng([traffic.settings.seed, pair, chunk.number])
        index = np.arange(chunk.first, chunk.first + chunk.count, dtype=np.int64)
        low, high = chunk.since_us + _EDGE_US, chunk.until_us - _EDGE_US
        end = np.sort(rng.integers(low, max(low + 1, high), chunk.count))
        service = traffic.service_of(index)
        mean = traffic.busy_mean_us[service]
        busy = np.maximum(300, rng.lognormal(-0.18, 0.6, chunk.count) * mean).astype(np.int64)
        queued = np.maximum(20, rng.exponential(400.0, chunk.count)).astype(np.int64)
        bytes_in = rng.integers(20, 2_000, chunk.count)
        bytes_out = rng.integers(20, 4_000, chunk.count)
        fate = traffic.fate_of(index)
        # What expired was never given to a worker.
        is_expired = fate == 2
        queued = np.where(is_expired, 5_000_000, queued)
        busy = np.where(is_expired, 0, busy)
        # Nobody served before the stretch began.
        busy = np.minimum(busy, np.maximum(300, end - chunk.stretch_since_us - queued))
        keep = traffic.is_sampled(index)
        self.index: Ints = index[keep]
        self.end: Ints = end[keep]
        self.service: Ints = service[keep]
        self.queued: Ints = queued[keep]
        self.busy: Ints = np.where(is_expired, 0, busy)[keep]
        self.bytes_in: Ints = bytes_in[keep]
        self.bytes_out: Ints = bytes_out[keep]
        self.fate: Ints = fate[keep]
        self.client = traffic.client_of(self.index)
        self.number = traffic.number_of(self.index)
        self.worker = traffic.worker_of(self.index)
        # A load counts all requests, whatever the sample has.
        self.all_end: Ints = end
        self.all_service: Ints = service
        self.all_fate: Ints = fate
        self.all_busy: Ints = busy

    def __len__(self) -> int:
        return len(self.index)


def _clock(process: Process, true_us: Ints, seq: Ints) -> tuple[list[int], list[int], list[int]]:
    machine = process.machine
    ahead = np.full(len(true_us), machine.skew_us, dtype=np.int64)
    for step_at, step in machine.steps:
        ahead += np.where(true_us >= step_at, step, 0)
    return seq.tolist(), (true_us + ahead).tolist(), (true_us - machine.booted_us).tolist()


_KINDS = {"broker": records.Request, "client": records.Call, "worker": records.Execution}
_OUTCOMES = {
    "broker": ("answered", "failed", "expired"),
    "client": ("answered", "failed", "timeout"),
    "worker": ("answered", "failed"),
}
# A client has a reply after the node, a worker gave it before.
_DELAY_US = {"broker": 0, "client": _NET_US, "worker": -_NET_US}


def record_lines(
    traffic: Traffic, process: Process, chunk: Chunk, bulk: Bulk, mine: Bools, seq: Ints, host: str
) -> list[bytes]:
    """The lines of a process about its requests (``mine``) of a chunk; ``seq`` numbers them.

    ``host`` is that of the node which served.
    """
    source, fate = process.source, bulk.fate[mine]
    client, queued, busy, bytes_out = (
        column[mine] for column in (bulk.client, bulk.queued, bulk.busy, bulk.bytes_out)
    )
    seqs, ats, monos = _clock(process, bulk.end[mine] + _DELAY_US[source], seq)
    fixed: dict[str, Any] = {
        "v": records.VERSION,
        "pair": process.pair,
        "node": process.node,
        "boot": process.boot,
        "epoch": chunk.epoch,
        "weight": 1 / traffic.settings.sample,
    }
    columns: dict[str, list[Any]] = {
        "seq": seqs,
        "at": ats,
        "mono": monos,
        "client": _named(traffic.clients, client),
        "number": bulk.number[mine].tolist(),
        "service": _named(traffic.services, bulk.service[mine]),
        "outcome": _named(_OUTCOMES[source], fate),
        "bytes_in": bulk.bytes_in[mine].tolist(),
    }
    if source == "broker":
        workers = [*(worker.routing_id for worker in traffic.workers), ""]
        is_expired = fate == 2
        columns |= {
            "sender": _named(traffic.senders, client),
            "total_us": (queued + busy).tolist(),
            "queued_us": queued.tolist(),
            "busy_us": busy.tolist(),
            # The last of the names is that of no worker.
            "worker": _named(workers, np.where(is_expired, -1, bulk.worker[mine])),
            "deliveries": np.where(is_expired, 0, 1).tolist(),
            "bytes_out": np.where(is_expired, 0, bytes_out).tolist(),
        }
    else:
        is_answered = fate == 0
        crcs = traffic.crc_of(bulk.index[mine])
        fixed["endpoint"] = f"tcp://{host}:5555"
        columns["bytes_out"] = np.where(is_answered, bytes_out, 0).tolist()
        columns["reply_crc"] = np.where(is_answered, crcs, None).tolist()  # type: ignore[call-overload]
        if source == "client":
            columns["total_us"] = (queued + busy + 2 * _NET_US).tolist()
        else:
            columns["busy_us"] = np.maximum(1, busy - 2 * _NET_US).tolist()
    kind, names = _KINDS[source], tuple(columns)
    rows = zip(*columns.values(), strict=True)
    return [records.encode(kind(**fixed, **dict(zip(names, row, strict=True)))) for row in rows]


def _named(names: Sequence[str], places: Ints) -> list[str]:
    return [names[place] for place in places.tolist()]
