"""The history of a pair in plain Python: which signs belong to which incident."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

from bstar_pipeline.gold.history import Event, History, Incident, Run

MS = 1_000
S = 1_000_000
DAY = dt.date(2026, 11, 2)
END = 100 * S


def run(node: str, *, source: str = "broker", last: int = END, is_clean: bool = False) -> Run:
    """One that began at 0."""
    return Run(
        "orders",
        node,
        node,
        source,
        DAY,
        0,
        last,
        is_clean,
        False,
        "machine",
        100 * MS,
        300 * MS,
        0,
        None,
        None,
        5e6,
        5 * S,
    )


def event(node: str, at_us: int, kind: str, **fields: Any) -> Event:
    return Event(node, node, at_us, at_us, DAY, kind, **fields)


SERVES = (
    event("primary", S, "state", old="PRIMARY", new="ACTIVE", event="PEER_BACKUP"),
    event("primary", S, "active", epoch=1),
    event("backup", S, "state", old="BACKUP", new="PASSIVE", event="PEER_ACTIVE"),
)


def incidents(
    runs: list[Run], events: list[Event], before: tuple[Event, ...] = SERVES
) -> dict[str, Incident]:
    """Of the pair, by kind."""
    history = History([*runs, run("client", source="client")], [*before, *events])
    return {each.kind: each for each in history.incidents(history.states())}


def crash_at(at_us: int, missed_after_us: int) -> list[Event]:
    """The primary is killed; the client's connection breaks at once, and the backup misses it later."""
    lost_us = at_us + missed_after_us
    return [
        event("client", at_us + MS, "disconnected"),
        event("backup", lost_us, "peer-lost", reason="silent", silent_us=missed_after_us),
        event("backup", lost_us + MS, "state", old="PASSIVE", new="ACTIVE", event="CLIENT_REQUEST"),
        event("backup", lost_us + MS, "active", epoch=2),
    ]


def test_a_pause_that_nobody_noticed_has_no_sign_of_the_crash_after_it() -> None:
    runs = [run("primary", last=40 * S), run("backup")]
    found = incidents(runs, [event("primary", 10 * S, "stall", gap_us=400 * MS), *crash_at(40 * S, 300 * MS)])
    assert found["pause"].detected_at_us is None
    assert found["crash"].detected_at_us == 40 * S + MS


def test_a_stop_of_the_standby_has_no_sign_of_the_crash_after_it() -> None:
    runs = [run("primary", last=40 * S), run("backup", last=10 * S, is_clean=True)]
    stopped = [
        event("backup", 10 * S, "stopped", reason="SIGTERM"),
        event("client", 40 * S + MS, "active-lost"),
    ]
    again = replace(run("backup"), boot="backup-2", started_at_us=15 * S)
    lost = event("backup", 41 * S, "peer-lost", reason="gone", silent_us=S)
    found = incidents([*runs, again], [*stopped, replace(lost, boot="backup-2")])
    assert found["stop"].detected_at_us is None
    assert found["crash"].detected_at_us == 40 * S + MS


def test_the_first_sign_is_the_earlier_one_of_a_client_and_the_peer() -> None:
    runs = [run("primary", last=40 * S), run("backup")]
    found = incidents(runs, crash_at(40 * S, 300 * MS))
    assert found["crash"].detected_at_us == 40 * S + MS
    assert found["crash"].taken_over_at_us == 40 * S + 301 * MS


def test_a_node_that_serves_since_before_its_journal_here_is_the_active_one() -> None:
    runs = [
        replace(run("primary", last=40 * S), began_before=True, first_state="ACTIVE", first_epoch=1),
        replace(run("backup"), began_before=True, first_state="PASSIVE", first_epoch=1),
    ]
    crash = incidents(runs, crash_at(40 * S, 300 * MS), before=())["crash"]
    assert crash.was_serving
    assert (crash.successor, crash.taken_over_at_us, crash.epoch) == ("backup", 40 * S + 301 * MS, 2)
