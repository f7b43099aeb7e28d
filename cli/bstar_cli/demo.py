"""``bstar demo``: a pair under load loses its active node, and the client loses nothing.

Real processes: two brokers and two workers; the client is in this one. The active broker is killed with
SIGKILL, the backup takes over, the primary comes back, and the role is handed back by stopping the backup.
Then everything is counted: what was asked and answered, what was executed twice, and how long the client had
to wait.
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from bstar_cli.demo_show import Show, counts_table, leave, perform, printer
from bstar_cli.demo_stage import Load, Stage
from bstar_cli.terminal import table
from bstar_testing import Node

# Of the time under load, the share before the kill, after the takeover, after the primary's return, after the
# handover, and after the backup's return.
_SHARES = (0.25, 0.25, 0.1, 0.25, 0.15)


class EventReport(msgspec.Struct, frozen=True):
    """What the client saw of one event: until the next event, or the end."""

    event: str
    at_s: float
    in_flight: int
    longest_gap_s: float
    longest_call_s: float


class Report(msgspec.Struct, frozen=True):
    """The demo's result. ``duplicated_executions`` are executions beyond the first of a request."""

    ok: bool
    sent: int
    answered: int
    lost: int
    crossed: int
    executions: int
    duplicated_executions: int
    resends: int
    seconds: float
    rate: float
    events: list[EventReport]
    failures: list[str]


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=2, max=600, help="How long the load lasts, about.")
    ] = 15.0,
    rate: Annotated[float, typer.Option("--rate", min=10, max=2000, help="Requests per second.")] = 200.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="DIR", help="Keep the journals of brokers, workers and client here."
        ),
    ] = None,
) -> None:
    """Start a pair, kill the active broker under load, and count what the client lost: nothing.

    Exit codes: 0 every request was answered, with its own reply; 1 not so, or something did not come (the
    folder with the logs is named then); 2 wrong usage; 130 interrupted.

    Examples:

        bstar demo

        bstar demo --seconds 30 --rate 500

        bstar demo --json | jq .events

        bstar demo --journal journal
    """
    show = Show()
    stage = Stage(show.refresh, journal)
    report = perform(stage, show, lambda: _play(stage, show, seconds, rate), is_live=not as_json)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report)
        if journal is not None:
            console = Console(stderr=True)
            console.print(Text(f"journals: {journal}"), soft_wrap=True)
    leave(stage, is_ok=report.ok)


# --- the play -----------------------------------------------------------------------------------------------


def _play(stage: Stage, show: Show, seconds: float, rate: float) -> Report:
    steady = [max(1, round(rate * seconds * share)) for share in _SHARES]
    events: list[tuple[str, float]] = []

    def happens(what: str) -> None:
        events.append((what, time.monotonic()))
        show.say(what)

    show.say("starting the primary, the backup and two workers")
    for node in stage.nodes:
        node.launch()
    stage.launch_demo_workers(rate)
    active, passive = wait_pair(stage)
    show.say(f"the {active.role} serves; the client sends {rate:g} requests per second")
    started = time.monotonic()
    load = stage.launch_load(rate)
    stage.wait_answers(steady[0], "the client gets answers")

    happens(f"kill -9 of the active {active.role}")
    active.kill()
    _wait_takeover(stage, passive)
    show.say(f"the {passive.role} has taken over")
    stage.wait_answers(steady[1], "the client gets answers after the failover")

    happens(f"restart of the {active.role}")
    active.launch()
    active, passive = wait_pair(stage)
    show.say(f"the {passive.role} is back and stands by")
    stage.wait_answers(steady[2], "the client gets answers after the node's return")

    happens(f"handover: SIGTERM to the active {active.role}")
    stage.finish_node(active)
    _wait_takeover(stage, passive)
    show.say(f"the {passive.role} serves again")
    stage.wait_answers(steady[3], "the client gets answers after the handover")

    happens(f"restart of the {active.role}")
    active.launch()
    wait_pair(stage)
    show.say("the pair is complete again")
    stage.wait_answers(steady[4], "the client gets answers at the end")

    show.say("the client sends nothing more and waits for what is outstanding")
    load.finish()
    ended = time.monotonic()
    executions = stage.finish_workers()
    show.say("done")
    return _report(load, executions, events, started=started, ended=ended, rate=rate)


def wait_pair(stage: Stage) -> tuple[Node, Node]:
    """Until one node is active and the other passive, both with every worker; the two in this order.

    Which is which is the pair's business: on a machine that stalls it may fail over unasked.
    """

    def is_pair() -> bool:
        return all(any(stage.is_in(node, name) for node in stage.nodes) for name in ("ACTIVE", "PASSIVE"))

    stage.wait("one node is active and one passive, both with every worker", is_pair)
    active, passive = sorted(stage.nodes, key=lambda node: stage.is_in(node, "PASSIVE"))
    return active, passive


def _wait_takeover(stage: Stage, node: Node) -> None:
    stage.wait(f"the {node.role} takes over", lambda: stage.is_in(node, "ACTIVE"))


# --- counting -----------------------------------------------------------------------------------------------


def _report(
    load: Load,
    executions: Sequence[str],
    events: Sequence[tuple[str, float]],
    *,
    started: float,
    ended: float,
    rate: float,
) -> Report:
    counts, calls = load.counts(), load.calls
    lost = counts.sent - len(calls)
    ends = [at for _, at in events[1:]] + [ended]
    reports = []
    for (what, at), end in zip(events, ends, strict=True):
        gap_s, call_s = outage(calls, at, end)
        in_flight = sum(sent <= at < answered for sent, answered in calls)
        reports.append(
            EventReport(what, round(at - started, 3), in_flight, round(gap_s, 4), round(call_s, 4))
        )
    return Report(
        ok=lost == 0 and counts.crossed == 0 and counts.sent > 0,
        sent=counts.sent,
        answered=len(calls),
        lost=lost,
        crossed=counts.crossed,
        executions=len(executions),
        duplicated_executions=sum(Counter(executions).values()) - len(set(executions)),
        resends=load.client.counters.resends,
        seconds=round(ended - started, 3),
        rate=rate,
        events=reports,
        failures=load.failures[:20],
    )


def outage(calls: Sequence[tuple[float, float]], start: float, end: float) -> tuple[float, float]:
    """The longest time without an answer, and the longest call, of what reaches into the time given.

    ``calls`` are the times of sending and of the answer.
    """
    answers = sorted(answered for _, answered in calls)
    gaps = [later - earlier for earlier, later in pairwise(answers) if later > start and earlier < end]
    durations = [answered - sent for sent, answered in calls if answered > start and sent < end]
    return max(gaps, default=0.0), max(durations, default=0.0)


# --- showing ------------------------------------------------------------------------------------------------


def _print(report: Report) -> None:
    console = printer()
    rows = [
        ("requests sent", report.sent),
        ("answered", report.answered),
        ("lost", report.lost),
        ("crossed replies", report.crossed),
        ("executions", report.executions),
        ("duplicated executions", report.duplicated_executions),
        ("requests sent again by the client", report.resends),
    ]
    counts = counts_table(rows, bad=("lost", "crossed replies"))
    events = table(["EVENT"], ("AT", "IN FLIGHT", "OUTAGE", "LONGEST CALL"), no_wrap=True)
    for event in report.events:
        events.add_row(
            Text(event.event),
            Text(f"{event.at_s:.1f} s"),
            Text(str(event.in_flight)),
            Text(f"{event.longest_gap_s:.3f} s"),
            Text(f"{event.longest_call_s:.3f} s"),
        )
    console.print(Text(), counts, Text(), events, Text(), sep="\n")
    for failure in report.failures:
        console.print(Text(failure, style="red"), soft_wrap=True)
    if report.ok:
        console.print("Outage: the longest time without any answer, as the client saw it.")
        console.print(Text("Nothing was lost and nothing was crossed.", style="bold green"))
    else:
        console.print(Text("Requests were lost or replies crossed.", style="bold red"))
