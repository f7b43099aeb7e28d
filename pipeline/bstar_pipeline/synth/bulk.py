"""Ordinary requests by the million: a chunk is a time in which one node served, and how many ended in it.

Everything is drawn as arrays; only the last step, a record's line, is done one by one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bstar import records
from bstar_pipeline.synth.process import Process
from bstar_pipeline.synth.traffic import Ints, Traffic

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
        self.of_process = traffic.process_of(self.client)
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


def node_lines(traffic: Traffic, process: Process, chunk: Chunk, bulk: Bulk, seq: Ints) -> list[bytes]:
    """The lines of the node that served, one for each request; ``seq`` numbers them."""
    encode, request, pair, node, boot, epoch = (
        records.encode, records.Request, process.pair, process.node, process.boot, chunk.epoch,
    )  # fmt: skip
    clients, senders, services = traffic.clients, traffic.senders, traffic.services
    workers = [worker.routing_id for worker in traffic.workers]
    weight = 1 / traffic.settings.sample
    seqs, ats, monos = _clock(process, bulk.end, seq)
    lines = [
        encode(
            request(
                v=1,
                pair=pair,
                node=node,
                boot=boot,
                seq=n,
                at=at,
                mono=mono,
                client=clients[c],
                number=number,
                service=services[s],
                sender=senders[c],
                outcome="answered",
                epoch=epoch,
                total_us=q + b,
                queued_us=q,
                busy_us=b,
                worker=workers[w],
                bytes_in=i,
                bytes_out=o,
                weight=weight,
            )
        )
        for n, at, mono, c, number, s, q, b, w, i, o in zip(
            seqs, ats, monos, bulk.client.tolist(), bulk.number.tolist(), bulk.service.tolist(),
            bulk.queued.tolist(), bulk.busy.tolist(), bulk.worker.tolist(), bulk.bytes_in.tolist(),
            bulk.bytes_out.tolist(), strict=True,
        )
    ]  # fmt: skip
    # The few that did not go well are written anew.
    for place in np.flatnonzero(bulk.fate).tolist():
        record = records.decode(lines[place])
        assert isinstance(record, records.Request)
        lines[place] = encode(_gone_wrong(record, int(bulk.fate[place])))
    return lines


def _gone_wrong(record: records.Request, fate: int) -> records.Request:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    if fate == 1:
        return records.Request(**{**fields, "outcome": "failed"})
    return records.Request(**{**fields, "outcome": "expired", "worker": "", "deliveries": 0, "bytes_out": 0})


def call_lines(
    traffic: Traffic,
    process: Process,
    chunk: Chunk,
    bulk: Bulk,
    mine: npt.NDArray[np.bool_],
    seq: Ints,
    host: str,
) -> list[bytes]:
    """The lines of a client process for those of its clients."""
    weight = 1 / traffic.settings.sample
    total = bulk.queued[mine] + bulk.busy[mine] + 2 * _NET_US
    crcs = traffic.crc_of(bulk.index[mine])
    outcomes = ("answered", "failed", "timeout")
    endpoint = f"tcp://{host}:5555"
    seqs, ats, monos = _clock(process, bulk.end[mine] + _NET_US, seq)
    columns = (bulk.client, bulk.number, bulk.service, bulk.fate, bulk.bytes_in, bulk.bytes_out)
    return [
        records.encode(
            records.Call(
                v=1,
                pair=process.pair,
                node=process.node,
                boot=process.boot,
                seq=n,
                at=at,
                mono=mono,
                client=traffic.clients[c],
                number=number,
                service=traffic.services[s],
                outcome=outcomes[fate],  # type: ignore[arg-type]
                total_us=t,
                endpoint=endpoint,
                epoch=chunk.epoch,
                bytes_in=i,
                bytes_out=o if fate == 0 else 0,
                reply_crc=crc if fate == 0 else None,
                weight=weight,
            )
        )
        for n, at, mono, t, crc, c, number, s, fate, i, o in zip(
            seqs, ats, monos, total.tolist(), crcs.tolist(),
            *(column[mine].tolist() for column in columns), strict=True,
        )
    ]  # fmt: skip


def execution_lines(
    traffic: Traffic,
    process: Process,
    chunk: Chunk,
    bulk: Bulk,
    mine: npt.NDArray[np.bool_],
    seq: Ints,
    host: str,
) -> list[bytes]:
    """The lines of a worker for what it executed."""
    weight = 1 / traffic.settings.sample
    crcs = traffic.crc_of(bulk.index[mine])
    endpoint = f"tcp://{host}:5555"
    seqs, ats, monos = _clock(process, bulk.end[mine] - _NET_US, seq)
    columns = (bulk.client, bulk.number, bulk.fate, bulk.busy, bulk.bytes_in, bulk.bytes_out)
    return [
        records.encode(
            records.Execution(
                v=1,
                pair=process.pair,
                node=process.node,
                boot=process.boot,
                seq=n,
                at=at,
                mono=mono,
                client=traffic.clients[c],
                number=number,
                service=process.service,
                outcome="answered" if fate == 0 else "failed",
                epoch=chunk.epoch,
                busy_us=max(1, b - 2 * _NET_US),
                endpoint=endpoint,
                bytes_in=i,
                bytes_out=o if fate == 0 else 0,
                reply_crc=crc if fate == 0 else None,
                weight=weight,
            )
        )
        for n, at, mono, crc, c, number, fate, b, i, o in zip(
            seqs, ats, monos, crcs.tolist(), *(column[mine].tolist() for column in columns), strict=True
        )
    ]
