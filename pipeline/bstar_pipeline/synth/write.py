"""One file of a synthetic journal, from its plan: made in memory, packed, and put in place by a rename."""

import gzip
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bstar import records
from bstar_pipeline.synth.bulk import Bulk, record_lines
from bstar_pipeline.synth.plan import Segment, is_told_by, traffic_of
from bstar_pipeline.synth.process import Event, Process
from bstar_pipeline.synth.settings import SynthSettings
from bstar_pipeline.synth.traffic import Ints, Traffic

_FATES = ("answered", "failed", "expired")
_CALL_OF = {"answered": "answered", "failed": "failed", "expired": "timeout"}


@dataclass(slots=True)
class Written:
    """What a file added. ``requests``: ordinary ones by service and outcome."""

    records: int = 0
    torn: int = 0
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    node_records: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    executions: int = 0


def write_segment(settings: SynthSettings, segment: Segment, folder: Path) -> Written:
    """Write the file that ``segment`` plans into ``folder``."""
    traffic = traffic_of(settings, segment.pair_number)
    process = segment.process
    written = Written()
    bulks = [Bulk(traffic, segment.pair_number, chunk) for chunk in segment.chunks]
    rare = list(segment.events)
    if process.source == "broker":
        rare += _pulses(settings, segment)
        rare += _loads(settings, traffic, segment, bulks)
        rare.sort(key=lambda event: event.true_us)
    rare_us = np.array([event.true_us for event in rare], dtype=np.int64)
    mine = [is_told_by(process, traffic, bulk.index) for bulk in bulks]
    ends = np.concatenate([bulk.end[own] for bulk, own in zip(bulks, mine, strict=True)] or [rare_us[:0]])
    bulk_seq = segment.first_seq + np.arange(len(ends)) + np.searchsorted(rare_us, ends, side="right")
    rare_seq = segment.first_seq + np.arange(len(rare)) + np.searchsorted(ends, rare_us, side="left")
    lines: list[bytes] = [b""] * (len(ends) + len(rare))
    for event, seq in zip(rare, rare_seq.tolist(), strict=True):
        lines[seq - segment.first_seq] = _line(process, event, seq)
    done = 0
    for chunk, bulk, own in zip(segment.chunks, bulks, mine, strict=True):
        count = int(own.sum())
        seqs = bulk_seq[done : done + count]
        done += count
        made = record_lines(traffic, process, chunk, bulk, own, seqs, segment.hosts[chunk.process])
        for seq, line in zip((seqs - segment.first_seq).tolist(), made, strict=True):
            lines[seq] = line
        _tally(settings, traffic, written, process, bulk, bulk.fate[own])
    assert len(lines) == segment.lines, (process.node, segment.number, len(lines), segment.lines)
    if segment.is_closed:
        end = segment.until_us - 1
        closing = Event(end, records.SegmentClosed, {"lines": len(lines)})
        lines.append(_line(process, closing, segment.first_seq + len(lines)))
    written.records = len(lines)
    written.torn = int(bool(segment.torn))
    _put(settings, segment, folder, lines)
    return written


def _tally(
    settings: SynthSettings, traffic: Traffic, written: Written, process: Process, bulk: Bulk, fates: Ints
) -> None:
    counts = {_FATES[fate]: int(n) for fate, n in enumerate(np.bincount(fates, minlength=3)) if n}
    if process.source == "client":
        written.calls.update({_CALL_OF[outcome]: n for outcome, n in counts.items()})
    elif process.source == "worker":
        written.executions += len(fates)
    else:
        written.node_records.update(counts)
        for service, name in enumerate(traffic.services):
            of_service = np.bincount(bulk.fate[bulk.service == service], minlength=3)
            for fate, n in enumerate(of_service.tolist()):
                told = _CALL_OF[_FATES[fate]] if settings.has_client_journals else _FATES[fate]
                if n:
                    written.requests[name, told] += n


def _line(process: Process, event: Event, seq: int) -> bytes:
    machine, true_us = process.machine, event.true_us
    return records.encode(
        event.kind(
            v=records.VERSION,
            pair=process.pair,
            node=process.node,
            boot=process.boot,
            seq=seq,
            at=true_us + machine.wall_ahead(true_us),
            mono=machine.mono(true_us),
            **event.fields,
        )
    )


def _pulses(settings: SynthSettings, segment: Segment) -> list[Event]:
    beats = segment.process.pulses(settings.pulse_s * 1_000_000, segment.since_us, segment.until_us)
    return [
        Event(
            at,
            records.Pulse,
            {
                "state": phase.state,
                "epoch": phase.epoch,
                "workers": settings.workers,
                "queued": 0,
                "in_flight": 0,
                "lag_us": 100 + at // 1_000_000 % 400,
            },
        )
        for at, phase in beats
    ]


def _loads(settings: SynthSettings, traffic: Traffic, segment: Segment, bulks: list[Bulk]) -> list[Event]:
    """One record for each service and interval in which the node served; exact also for a sampled journal."""
    of_chunk = dict(zip((chunk.number for chunk in segment.chunks), bulks, strict=True))
    special = [event for event in segment.events if event.kind is records.Request]
    workers = [sum(one.service == s for one in traffic.workers) for s in range(settings.services)]
    made = []
    for since, until, chunk in segment.load_moments(settings):
        bulk = of_chunk[chunk.number]
        low, high = np.searchsorted(bulk.all_end, [since, until])
        services, fates, busy = (
            array[low:high] for array in (bulk.all_service, bulk.all_fate, bulk.all_busy)
        )
        told = [event.fields for event in special if since <= event.true_us < until]
        for number, name in enumerate(traffic.services):
            here = services == number
            counts = Counter(one["outcome"] for one in told if one["service"] == name)
            for fate, n in enumerate(np.bincount(fates[here], minlength=3).tolist()):
                counts[_FATES[fate]] += n
            held = int(busy[here].sum()) + sum(one["busy_us"] for one in told if one["service"] == name)
            span = until - since
            fields = {
                "service": name,
                "interval_us": span,
                "workers": workers[number],
                "credit": workers[number] * settings.credit,
                "queued": 0,
                "in_flight": min(workers[number] * settings.credit, round(held / span)),
                "busy_us": held,
                "accepted": sum(counts.values()) - counts["late"],
                "answered": counts["answered"],
                "failed": counts["failed"],
                "expired": counts["expired"],
                "returned": counts["returned"],
            }
            made.append(Event(until - 1, records.Load, fields))
    return made


def _put(settings: SynthSettings, segment: Segment, folder: Path, lines: list[bytes]) -> None:
    process = segment.process
    opened_us = segment.since_us + process.machine.wall_ahead(segment.since_us)
    stamp = datetime.fromtimestamp(opened_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{process.pair}.{process.node}.{stamp}.{process.boot[:8]}.{segment.number:04d}.ndjson"
    data = b"\n".join(lines) + b"\n" if lines else b""
    data += segment.torn
    if segment.is_open:
        name += ".open"
    elif settings.is_packed:
        name += ".gz"
        data = gzip.compress(data, compresslevel=1, mtime=0)
    part = folder / f"{name}.part"
    part.write_bytes(data)
    part.rename(folder / name)
