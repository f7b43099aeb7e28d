"""From settings to tasks: what each file of the journal holds, down to the number of its first record.

Everything that depends on order (who served when, sequence numbers, requests' indices) is settled here, so
that the files can be written in any order by any number of processes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from bstar.errors import ConfigurationError
from bstar_pipeline.synth.bulk import Chunk
from bstar_pipeline.synth.process import Event, Process, Stretch
from bstar_pipeline.synth.settings import (
    CALM_S,
    EDGE_S,
    INCIDENT_KINDS,
    VIOLATION_KINDS,
    Incident,
    SynthSettings,
    Violation,
)
from bstar_pipeline.synth.specials import Specials, needs_of
from bstar_pipeline.synth.timeline import Timeline
from bstar_pipeline.synth.traffic import Bools, Ints, Rate, Traffic

# What a drawn incident and the calm around it need.
_SLOT_MIN_S = 60.0


@dataclass(slots=True)
class Segment:
    """One file: [since, until) of a process. ``events`` are already those of this file, in order."""

    pair_number: int
    process: Process
    place: int
    number: int
    since_us: int
    until_us: int
    first_seq: int
    lines: int
    events: list[Event]
    chunks: list[Chunk]
    hosts: list[str]
    is_closed: bool
    is_open: bool
    torn: bytes

    def load_moments(self, settings: SynthSettings) -> list[tuple[int, int, Chunk]]:
        """When the node tells its load: (since, until, chunk), just before ``until``."""
        every = settings.load_s * 1_000_000
        start = Rate(settings).start_us
        moments = []
        for chunk in self.chunks:
            edge = chunk.since_us
            first = start + ((edge - start) // every + 1) * every
            for until in range(first, chunk.until_us + 1, every):
                moments.append((edge, until, chunk))
                edge = until
            if edge < chunk.until_us and chunk.until_us != self.process.lost_from_us:
                # A node that stops serving tells what it did until then; one that is killed cannot.
                moments.append((edge, chunk.until_us, chunk))
        return moments


@dataclass(slots=True)
class PairPlan:
    """All of a pair. ``bulk`` ordinary requests are still to be counted into the truth."""

    number: int
    timeline: Timeline
    specials: Specials
    chunks: list[Chunk]
    segments: list[Segment]


@lru_cache(maxsize=8)
def traffic_of(settings: SynthSettings, pair: int) -> Traffic:
    """The traffic of a pair; made once in each process."""
    return Traffic(settings, pair)


def plan_pairs(settings: SynthSettings) -> Iterator[PairPlan]:
    """One plan after the other: a pair's records are only kept while it is written."""
    if settings.requests:
        share, rest = divmod(settings.requests, settings.pairs)
        targets: list[int | None] = [share + (number < rest) for number in range(settings.pairs)]
    else:
        targets = [None] * settings.pairs
    for number, target in enumerate(targets):
        yield _plan(settings, number, target)


def _plan(settings: SynthSettings, number: int, target: int | None) -> PairPlan:
    traffic = traffic_of(settings, number)
    timeline = Timeline(settings, number, traffic, _incidents(settings, number))
    specials = Specials(settings, number, traffic, timeline)
    for violation in _violations(settings, number, specials):
        specials.plant(violation)
    if target is not None:
        target -= specials.node_records.total()
        if target < 0:
            raise ConfigurationError(
                f"{settings.requests} requests are fewer than the incidents and violations need: ask for more"
            )
    chunks = _chunks(settings, timeline, specials.used, target)
    plan = PairPlan(number, timeline, specials, chunks, [])
    for place in range(len(timeline.processes)):
        plan.segments += _segments(settings, plan, place)
    return plan


# --- what is drawn ------------------------------------------------------------------------------------------


def _incidents(settings: SynthSettings, pair: int) -> list[Incident]:
    if not isinstance(settings.incidents, int):
        return [one for one in settings.incidents if one.pair == pair]
    count = settings.incidents
    if not count:
        return []
    chance = random.Random(f"{settings.seed}/{pair}/incidents")  # noqa: S311 - data for tests
    slot = (settings.span_s - 2 * EDGE_S) / count
    if slot < _SLOT_MIN_S:
        needed = count * _SLOT_MIN_S + 2 * EDGE_S
        raise ConfigurationError(
            f"{count} incidents need {needed:.0f} s, the journal has {settings.span_s:.0f} s"
        )
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(INCIDENT_KINDS, len(INCIDENT_KINDS))
    longest = {"crash": 25.0, "stop": 20.0, "pause": 6.0, "partition": 10.0, "both-active": 2.0}
    drawn = []
    for turn, kind in enumerate(kinds[:count]):
        limit = longest.get(kind, 0.0)
        at = EDGE_S + turn * slot + chance.uniform(CALM_S, slot - limit - 2 * CALM_S)
        drawn.append(
            Incident(
                kind,  # type: ignore[arg-type]
                round(at, 6),
                pair,
                "passive" if kind in ("crash", "stop", "pause") and chance.random() < 0.3 else "active",
                round(chance.uniform(0.1 if kind == "both-active" else 1.5, limit), 6) if limit else None,
                kind == "crash" and chance.random() < 0.5,
            )
        )
    return drawn


def _violations(settings: SynthSettings, pair: int, specials: Specials) -> list[Violation]:
    has = (settings.has_client_journals, settings.has_worker_journals)

    def may_be_proven(kind: str) -> bool:
        return all(is_there or not is_needed for is_needed, is_there in zip(needs_of(kind), has, strict=True))

    if not isinstance(settings.violations, int):
        for one in settings.violations:
            if not may_be_proven(one.kind):
                raise ConfigurationError(
                    f"{one.kind} cannot be seen without journals of clients or workers: add them"
                )
        return [one for one in settings.violations if one.pair == pair]
    chance = random.Random(f"{settings.seed}/{pair}/violations")  # noqa: S311 - data for tests
    kinds = [kind for kind in VIOLATION_KINDS if may_be_proven(kind)]
    start = Rate(settings).start_us
    drawn: list[Violation] = []
    for turn in range(settings.violations):
        for _ in range(1_000):
            at = round(chance.uniform(EDGE_S, settings.span_s - EDGE_S), 6)
            if specials.may_plant_at(start + round(at * 1e6)):
                drawn.append(Violation(kinds[turn % len(kinds)], at, pair))
                break
        else:
            raise ConfigurationError("violations need times in which a node serves: make the journal longer")
    return drawn


# --- ordinary requests --------------------------------------------------------------------------------------


def _chunks(settings: SynthSettings, timeline: Timeline, first: int, target: int | None) -> list[Chunk]:
    rate = Rate(settings)
    start = timeline.start_us

    def volume(stretch_since: int, until: int) -> float:
        return rate.until((until - start) / 1e6) - rate.until((stretch_since - start) / 1e6)

    total = sum(volume(one.since_us, one.until_us) for one in timeline.stretches)
    factor = settings.requests_per_s if target is None else target / total
    chunks: list[Chunk] = []
    done = 0.0
    index = first
    for stretch in timeline.stretches:
        for since, until in pairwise(
            _cuts(settings, stretch, start, factor * volume(stretch.since_us, stretch.until_us))
        ):
            done += volume(since, until)
            is_last = stretch is timeline.stretches[-1] and until == stretch.until_us
            # Rounded so that the sum is exact, whatever the number of chunks.
            count = (target if is_last and target is not None else int(done * factor)) - (index - first)
            chunks.append(
                Chunk(
                    len(chunks), stretch.process, stretch.epoch, stretch.since_us, since, until, index, count
                )
            )
            index += count
    return chunks


def _cuts(settings: SynthSettings, stretch: Stretch, start: int, count: float) -> list[int]:
    """Where a stretch is cut into chunks: at whole load intervals, so that every load is of one chunk."""
    load, limit = settings.load_s * 1_000_000, settings.segment_s * 1_000_000
    pieces = int(count // settings.segment_lines) + 1
    span = stretch.until_us - stretch.since_us
    wanted = {
        start + (stretch.since_us + span * k // pieces - start) // load * load for k in range(1, pieces)
    }
    wanted |= set(range(start + ((stretch.since_us - start) // limit + 1) * limit, stretch.until_us, limit))
    inner = sorted(cut for cut in wanted if stretch.since_us < cut < stretch.until_us)
    return [stretch.since_us, *inner, stretch.until_us]


# --- files --------------------------------------------------------------------------------------------------


def _segments(settings: SynthSettings, plan: PairPlan, place: int) -> list[Segment]:
    timeline = plan.timeline
    process = timeline.processes[place]
    is_broker = process.source == "broker"
    chunks = [one for one in plan.chunks if not is_broker or one.process == place]
    events = sorted(process.events, key=lambda event: event.true_us)
    if process.lost_from_us is not None:
        events = [event for event in events if event.true_us < process.lost_from_us]
    # The end lies behind the last record.
    end = process.lost_from_us or process.ended_us + 1
    limit = settings.segment_s * 1_000_000
    cuts = {one.since_us for one in chunks if one.since_us != one.stretch_since_us}
    cuts |= set(range(timeline.start_us + limit, end, limit))
    edges = [process.started_us, *sorted(cut for cut in cuts if process.started_us < cut < end), end]
    hosts = [one.machine.host for one in timeline.processes]
    segments: list[Segment] = []
    seq = 1
    next_event = next_chunk = 0
    for since, until in pairwise(edges):
        last_event, last_chunk = next_event, next_chunk
        while last_event < len(events) and events[last_event].true_us < until:
            last_event += 1
        while last_chunk < len(chunks) and chunks[last_chunk].since_us < until:
            last_chunk += 1
        segment = Segment(
            plan.number,
            replace(process, events=[], torn=b""),
            place,
            len(segments) + 1,
            since,
            until,
            seq,
            0,
            events[next_event:last_event],
            chunks[next_chunk:last_chunk],
            hosts,
            is_closed=True,
            is_open=False,
            torn=b"",
        )
        next_event, next_chunk = last_event, last_chunk
        segment.lines = _count(settings, segment)
        is_last = until == end
        if is_last and process.end == "kill":
            segment.is_closed, segment.is_open, segment.torn = False, not process.is_followed, process.torn
        elif is_last and process.end == "" and settings.finish == "open":
            segment.is_closed, segment.is_open = False, True
        if segment.lines or is_last:
            segments.append(segment)
            seq += segment.lines + segment.is_closed
    return segments


def _count(settings: SynthSettings, segment: Segment) -> int:
    """How many records there will be, without the closing one."""
    traffic = traffic_of(settings, segment.pair_number)
    process = segment.process
    lines = len(segment.events)
    if process.source == "broker":
        lines += len(process.pulses(settings.pulse_s * 1_000_000, segment.since_us, segment.until_us))
        lines += len(segment.load_moments(settings)) * settings.services
        if settings.sample >= 1:
            return lines + sum(one.count for one in segment.chunks)
    for chunk in segment.chunks:
        index = np.arange(chunk.first, chunk.first + chunk.count, dtype=np.int64)
        index = index[traffic.is_sampled(index)]
        lines += int(is_told_by(process, traffic, index).sum())
    return lines


def is_told_by(process: Process, traffic: Traffic, index: Ints) -> Bools:
    """Which of these requests, if they are recorded, the process records."""
    told: Bools = np.ones(len(index), dtype=np.bool_)
    if process.source == "client":
        told = traffic.process_of(traffic.client_of(index)) == process.rank
    elif process.source == "worker":
        # What expired was never executed.
        told = (traffic.worker_of(index) == process.rank) & (traffic.fate_of(index) != 2)
    return told
