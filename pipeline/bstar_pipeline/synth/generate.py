"""Writing a whole synthetic journal: plan each pair, write its files with all cores, add up the truth."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from bstar.errors import ConfigurationError
from bstar_pipeline.synth.plan import PairPlan, plan_pairs
from bstar_pipeline.synth.settings import SynthSettings
from bstar_pipeline.synth.truth import Truth, TruthIncident, TruthViolation
from bstar_pipeline.synth.write import Written, write_segment

JOURNAL = "journal"
TRUTH = "truth.json"

Progress = Callable[[int, int], None]
"""Called with the records written so far and how many there will be of the pairs planned by now."""

# Starting processes takes as long as writing this many records.
_ALONE_MAX = 400_000


def generate(settings: SynthSettings, folder: Path, progress: Progress | None = None) -> Truth:
    """Write ``folder/journal`` and ``folder/truth.json``; ConfigurationError if there is a journal already.

    Started by a script, that script needs its ``if __name__ == "__main__"``: big journals are written by
    several processes.
    """
    journal = folder / JOURNAL
    journal.mkdir(parents=True, exist_ok=True)
    if any(journal.iterdir()):
        raise ConfigurationError(f"{journal} is not empty: name another folder, or remove it")
    total = Written()
    requests: dict[str, dict[str, dict[str, int]]] = {}
    incidents: list[TruthIncident] = []
    violations: list[TruthViolation] = []
    pairs: list[str] = []
    files = planned = 0
    start_us = end_us = 0
    with ExitStack() as stack:
        pool: ProcessPoolExecutor | None = None
        for plan in plan_pairs(settings):
            timeline, specials = plan.timeline, plan.specials
            planned += sum(segment.lines for segment in plan.segments)
            if pool is None and planned > _ALONE_MAX and settings.processes != 1:
                pool = ProcessPoolExecutor(
                    settings.processes or os.cpu_count() or 1, multiprocessing.get_context("spawn")
                )
                stack.enter_context(pool)
            outcomes = specials.outcomes()
            for written in _written(settings, plan, journal, pool):
                total.records += written.records
                total.torn += written.torn
                total.node_records += written.node_records
                total.calls += written.calls
                total.executions += written.executions
                outcomes += written.requests
                files += 1
                if progress is not None:
                    progress(total.records, planned)
            total.node_records += specials.node_records
            total.calls += specials.calls
            total.executions += specials.executions
            pairs.append(timeline.pair)
            requests[timeline.pair] = _nested(outcomes)
            incidents += timeline.truth
            violations += specials.violations
            violations += _both_active(timeline.truth)
            start_us, end_us = timeline.start_us, timeline.end_us
    truth = Truth(
        seed=settings.seed,
        pairs=pairs,
        start_us=start_us,
        end_us=end_us,
        records=total.records,
        torn=total.torn,
        files=files,
        requests=requests,
        node_records=dict(sorted(total.node_records.items())),
        calls=dict(sorted(total.calls.items())),
        executions=total.executions,
        weight=1 / settings.sample,
        incidents=incidents,
        violations=violations,
    )
    truth.write(folder / TRUTH)
    return truth


def _written(
    settings: SynthSettings, plan: PairPlan, journal: Path, pool: ProcessPoolExecutor | None
) -> Iterator[Written]:
    """Write all segments; what each added, in any order."""
    if pool is None:
        for segment in plan.segments:
            yield write_segment(settings, segment, journal)
        return
    waiting: set[Future[Written]] = set()
    # A bounded number at a time: a segment's plan is small, but there may be thousands.
    at_once = 4 * (settings.processes or os.cpu_count() or 1)
    for segment in sorted(plan.segments, key=lambda segment: -segment.lines):
        waiting.add(pool.submit(write_segment, settings, segment, journal))
        if len(waiting) >= at_once:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    for future in wait(waiting).done:
        yield future.result()


def _nested(outcomes: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (service, outcome), count in sorted(outcomes.items()):
        nested.setdefault(service, {})[outcome] = count
    return nested


def _both_active(incidents: list[TruthIncident]) -> list[TruthViolation]:
    """Two nodes that serve at once break a promise, however they came to it."""
    return [
        TruthViolation(
            pair=one.pair,
            rule="both-active",
            kind="both-active",
            at_us=one.began_at_us,
            duration_us=one.ended_at_us - one.began_at_us,
        )
        for one in incidents
        if one.kind == "both-active" and one.ended_at_us is not None
    ]
