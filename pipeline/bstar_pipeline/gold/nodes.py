"""What the journals prove about processes, not about single requests. Rows of ``gold.audit``.

*both-active* (guarantee 3): both nodes served at once for longer than the clock error, which breaks the
guarantee also where a pair without an arbiter cannot prevent it. It is unproven if the journal of a node or
of its peer is not here, or if a clock is unsure. *epoch-reused*: both nodes took one epoch. *stale-epoch*: a
worker began a request of an epoch after it had ended one of a higher epoch (guarantee 5 in
docs/guarantees.md). *lost*: by its own counts a node accepted more requests than its journal, which is whole,
has ends of; unproven after a kill. Further rows say what journals lack.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from bstar_pipeline.gold.history import CLOCK_ERROR_US, PairHistory
from bstar_pipeline.partitions import Row, Rows, grouped
from bstar_pipeline.tables import utc

# What the journal of a run may lack: how much, and its sentence.
_LACKING = (
    ("before", "records that it wrote before its first one here are not here"),
    ("missing", "records that it wrote are not here"),
    ("conflicts", "records have the number of another: its boot id ran twice, as after a restored snapshot"),
    ("dropped", "records it could not write in time"),
    ("is_sampled", "its records of requests are a sample"),
)
_RULES = {"client": "lost", "worker": "executed-twice"}


def process_findings(
    facts: Mapping[str, Rows],
    runs: Rows,
    histories: Mapping[str, PairHistory],
    clock_error_us: int = CLOCK_ERROR_US,
) -> list[dict[str, Any]]:
    """Rows of gold.audit, of ``silver.facts``, rows of ``silver.runs`` and ``silver.histories``."""
    of_boot = {run["boot"]: run for run in runs}
    return [
        *_gaps(runs),
        *_unsure(runs, clock_error_us),
        *_without_journal(runs),
        *(row for pair, history in histories.items() for row in _of_history(pair, history)),
        *_reused(facts.get("event", ()), of_boot),
        *_stale(facts.get("stale", ()), of_boot),
        *_uncounted(facts, of_boot),
    ]


def _finding(rule: str, verdict: str, text: str, about: Row, at_us: int, **more: Any) -> dict[str, Any]:
    """``about``: what has its pair and day, and its node if it is of one."""
    place = {name: about[name] for name in ("pair", "day", "node", "service") if name in about}
    found = {"rule": rule, "verdict": verdict, "text": text, "count": 1, "at_us": at_us}
    return {**place, **found, **more}


def _gaps(runs: Rows) -> Iterator[dict[str, Any]]:
    """Runs whose journals lack something."""
    for run in runs:
        rule = _RULES.get(run["source"], "answered-twice")
        for name, text in _LACKING:
            if run[name]:
                sentence = f"{run['source']} {run['node']}: {text}"
                yield _finding(rule, "unproven", sentence, run, run["started_at_us"], count=int(run[name]))


def _unsure(runs: Rows, clock_error_us: int) -> Iterator[dict[str, Any]]:
    """Nodes whose clocks went differently from others': whether they served at once is not known."""
    for run in runs:
        unsure_us, at_us = run["clock_unsure_us"], run["started_at_us"]
        if run["source"] == "broker" and unsure_us > clock_error_us:
            text = (
                f"the clock of {run['node']} is unsure by {unsure_us / 1e6:.3f} s, because it drifted or "
                "because nothing says which of two is right: shorter times cannot be measured"
            )
            yield _finding("both-active", "unproven", text, run, at_us, duration_us=unsure_us, service=None)


def _without_journal(runs: Rows) -> Iterator[dict[str, Any]]:
    """Pairs of which fewer than two nodes have a journal here."""
    for pair, of_pair in grouped(runs, "pair").items():
        nodes = sorted({run["node"] for run in of_pair if run["source"] == "broker"})
        if len(nodes) < 2:
            text = f"the journal of the peer of {nodes[0]} is not here" if nodes else ""
            began_us = min(run["started_at_us"] for run in of_pair)
            about = {"pair": pair, "day": min(run["day"] for run in of_pair)}
            yield _finding("both-active", "unproven", text or "no journal of a node is here", about, began_us)


def _of_history(pair: str, history: PairHistory) -> Iterator[dict[str, Any]]:
    """Nodes whose last moments are in no journal, and times in which both served."""
    for state in history.states:
        if state.ended_by == "kill":
            text = f"broker {state.node} ended without a word: its last records may be missing"
            about = {"pair": pair, "node": state.node, "day": utc(state.until_at_us).date()}
            yield _finding("lost", "unproven", text, about, state.until_at_us)
    for each in history.overlaps:
        lasted_us = each.until_at_us - each.since_at_us
        who = " and ".join(f"{one.node} (epoch {one.epoch})" for one in (each.old, each.new))
        text = f"{who} both served for {lasted_us / 1000:.1f} ms"
        about = {"pair": pair, "node": each.old.node, "day": utc(each.since_at_us).date()}
        yield _finding("both-active", "violated", text, about, each.since_at_us, duration_us=lasted_us)


def _reused(events: Rows, runs: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Epochs that more than one node took."""
    taken: defaultdict[tuple[str, int], list[tuple[int, str, dt.date]]] = defaultdict(list)
    for event in events:
        if event["kind"] == "active" and event["epoch"]:
            at_us = event["mono"] + runs[event["boot"]]["offset_us"]
            taken[event["pair"], event["epoch"]].append((at_us, event["node"], event["day"]))
    for (pair, epoch), words in sorted(taken.items()):
        nodes = sorted({node for _, node, _ in words})
        if len(nodes) > 1:
            at_us, node, day = max(words)
            text = f"{' and '.join(nodes)} both took epoch {epoch}"
            yield _finding("epoch-reused", "violated", text, {"pair": pair, "node": node, "day": day}, at_us)


def _stale(found: Rows, runs: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Workers that began a request of an epoch when one of a higher epoch had ended: the last request."""
    for last in found:
        run = runs[last["boot"]]
        text = (
            f"worker {run['node']} began it in epoch {last['epoch']}, after it had executed in epoch "
            f"{last['higher']}"
        )
        about = {**run, "day": last["day"], "service": last["service"]}
        request = {name: last[name] for name in ("client", "number")}
        yield _finding("stale-epoch", "violated", text, about, last["mono"] + run["offset_us"], **request)


def _uncounted(facts: Mapping[str, Rows], runs: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Nodes that stopped in good order and accepted more requests than they recorded the ends of.

    What a node still held at its last count may have ended later: it is left out.
    """
    ends: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in facts.get("sum", ()):
        if row["topic"] == "requests":
            ends[row["boot"], row["service"]] += row["records"] - row["late"]
    for row in facts.get("loads", ()):
        run = runs[row["boot"]]
        is_whole = not any(run[name] for name in ("is_sampled", "missing", "dropped", "conflicts"))
        if run["source"] != "broker" or not run["is_clean"] or not is_whole:
            continue
        accepted, first = row["accepted"], row["first_load"]
        # Without its beginning the journal may lack what an interval counts.
        if run["before"] and first["began"] + run["offset_us"] < run["started_at_us"]:
            accepted -= first["accepted"]
        held, ended = row["last_load"]["held"], ends[row["boot"], row["service"]]
        lost = accepted - held - ended
        if lost > 0:
            text = (
                f"{run['node']} accepted {accepted} requests, held {held} of them at its last count, and "
                f"recorded the end of {ended}"
            )
            about = {**run, "day": row["day"], "service": row["service"]}
            yield _finding("lost", "violated", text, about, row["mono"] + run["offset_us"], count=lost)
