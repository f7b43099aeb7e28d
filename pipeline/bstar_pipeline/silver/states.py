"""The history of each pair, and of it the intervals of each node's state; ``gold.history`` explains both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from bstar_pipeline.gold.history import CLOCK_ERROR_US, Event, History, PairHistory, Run, State, overlaps
from bstar_pipeline.partitions import Row, Rows, grouped

_OF_PULSES = ("first_state", "first_epoch", "pulse_us", "longest_us")


def histories(
    facts: Mapping[str, Rows], runs: Rows, clock_error_us: int = CLOCK_ERROR_US
) -> dict[str, PairHistory]:
    """The history of every pair, of ``silver.facts`` and rows of ``silver.runs``."""
    pulses = _pulses(facts.get("pulses", ()))
    offsets = {run["boot"]: run["offset_us"] for run in runs}
    events = grouped(facts.get("event", ()), "pair")
    found, none = {}, dict.fromkeys(_OF_PULSES)
    for pair, of_pair in sorted(grouped(runs, "pair").items()):
        merged = [
            msgspec.convert({**row, "at_us": row["mono"] + offsets[row["boot"]]}, Event)
            for row in events.get(pair, ())
        ]
        processes = [msgspec.convert({**run, **(pulses.get(run["boot"]) or none)}, Run) for run in of_pair]
        history = History(processes, merged, clock_error_us)
        states = history.states()
        both = overlaps(states, history.runs, clock_error_us)
        found[pair] = PairHistory(states, history.incidents(states), both)
    return found


def histories_of(histories: Mapping[str, PairHistory], runs: Rows) -> dict[str, PairHistory]:
    """What ``histories`` have since these runs began here, which may be later than they began."""
    begins = {run["boot"]: run for run in runs}
    found = {}
    for pair, of_pair in grouped(runs, "pair").items():
        history, began_us = histories[pair], min(run["started_at_us"] for run in of_pair)
        states = [_since(state, begins[state.boot]) for state in history.states if state.boot in begins]
        overlaps = [each for each in history.overlaps if each.since_at_us >= began_us]
        found[pair] = replace(
            history, states=[state for state in states if state is not None], overlaps=overlaps
        )
    return found


def _since(state: State, run: Row) -> State | None:
    """What is left of a state since a run's first record here."""
    if state.since_at_us >= run["started_at_us"]:
        return state
    if state.until_at_us < run["started_at_us"]:
        return None
    return replace(state, since_at_us=run["started_at_us"], day=run["day"])


def _pulses(rows: Rows) -> dict[str, dict[str, Any]]:
    """Those of each run; of several days the earlier first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(row["boot"], dict.fromkeys(_OF_PULSES))
        for name in _OF_PULSES:
            if name == "longest_us":
                known[name] = max(known[name] or 0, row[name] or 0) or None
            elif known[name] is None:
                known[name] = row[name]
    return found


def states(histories: Mapping[str, PairHistory]) -> Iterable[dict[str, Any]]:
    """Rows of ``silver.states``. An interval is of the day of the record that begins it."""
    return (asdict(state) for history in histories.values() for state in history.states)
