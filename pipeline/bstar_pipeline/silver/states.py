"""The history of each pair, and of it the intervals of each node's state; ``gold.history`` explains both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from bstar_pipeline.gold.history import CLOCK_ERROR_US, Event, History, PairHistory, Run, overlaps
from bstar_pipeline.pair_rows import Row, Rows, by_pair

_OF_PULSES = ("first_state", "first_epoch", "pulse_us", "longest_us")


def histories(
    facts: Mapping[str, Rows], runs: Rows, clock_error_us: int = CLOCK_ERROR_US
) -> dict[str, PairHistory]:
    """The history of every pair, of ``silver.facts`` and rows of ``silver.runs``."""
    pulses = {row["boot"]: row for row in facts.get("pulses", ())}
    offsets = {run["boot"]: run["offset_us"] for run in runs}
    events = by_pair(facts.get("event", ()))
    found = {}
    for pair, of_pair in sorted(by_pair(runs).items()):
        told = [_event(row, offsets[row["boot"]]) for row in events.get(pair, ())]
        history = History([_run(run, pulses) for run in of_pair], told, clock_error_us)
        states = history.states()
        both = overlaps(states, history.runs, clock_error_us)
        found[pair] = PairHistory(states, history.incidents(states), both)
    return found


def histories_of(histories: Mapping[str, PairHistory], runs: Rows) -> dict[str, PairHistory]:
    """``histories`` with the states of these runs alone, and the overlaps since the first of them began."""
    boots = {run["boot"] for run in runs}
    begins = {pair: min(run["started_at_us"] for run in of_pair) for pair, of_pair in by_pair(runs).items()}
    return {
        pair: replace(
            history,
            states=[state for state in history.states if state.boot in boots],
            overlaps=[each for each in history.overlaps if each.since_at_us >= begins[pair]],
        )
        for pair, history in histories.items()
        if pair in begins
    }


def _run(run: Row, pulses: Mapping[str, Row]) -> Run:
    pulse = pulses.get(run["boot"], {}) if run["source"] == "broker" else {}
    told = {**run, **{name: pulse.get(name) for name in _OF_PULSES}}
    return Run(**{field.name: told[field.name] for field in fields(Run)})


def _event(row: Row, offset_us: int) -> Event:
    told = {**row, "at_us": row["mono"] + offset_us}
    return Event(**{field.name: told[field.name] for field in fields(Event)})


def states(histories: Mapping[str, PairHistory]) -> Iterable[dict[str, Any]]:
    """Rows of ``silver.states``. An interval is of the day of the record that begins it."""
    return (asdict(state) for history in histories.values() for state in history.states)
