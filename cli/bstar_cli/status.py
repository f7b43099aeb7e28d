"""``bstar status``: both nodes side by side, and whether that is how a pair should look."""

import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar_cli import exits
from bstar_cli.options import EndpointsOption, endpoints_of
from bstar_client.status import NodeReport, node_states

__all__ = ["Verdict", "judge", "status"]


class _Service(msgspec.Struct, frozen=True):
    service: str
    workers: int
    idle: int
    in_flight: int
    queued: int
    answered: int


class _Broker(msgspec.Struct, frozen=True):
    workers: int
    queued: int
    services: list[_Service]


class _Quorum(msgspec.Struct, frozen=True):
    is_arbiter_heard: bool = False
    is_arbiter_granting: bool = False


class _Pair(msgspec.Struct, frozen=True):
    pair: str
    role: str
    state: str
    is_active: bool
    epoch: int
    peer_state: str | None = None
    peer_age_s: float | None = None
    is_peer_fresh: bool = False
    is_peer_gone: bool = False
    quorum: _Quorum | None = None


class NodeView(msgspec.Struct, frozen=True):
    """What this command needs of a node's state; it need not be of the node's own version."""

    version: str
    pair: _Pair
    broker: _Broker


class Verdict(msgspec.Struct, frozen=True):
    """Whether a pair is as it should be: an exit code and the sentence that explains it."""

    code: int
    why: str


def status(
    endpoints: EndpointsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the nodes.")
    ] = 2.0,
) -> None:
    """Show every node of the pair: role, state, epoch, peer, services, workers, queues.

    Looking is no vote: it never changes which node is active.

    Exit codes: 0 every node answers and exactly one serves; 1 exactly one serves, but a node does not answer,
    or the one that serves does not hear its peer, or the arbiter does not answer a node; 2 wrong usage; 3
    none serves; 4 more than one serves.

    Examples:

        bstar status

        bstar status --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar status --json | jq '.nodes[].state.pair.state'
    """
    try:
        reports = node_states(endpoints_of(endpoints), timeout)
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    views = [_view(report) for report in reports]
    verdict = judge(views)
    if as_json:
        document = {
            "healthy": verdict.code == exits.OK,
            "why": verdict.why,
            "nodes": [
                {"endpoint": report.endpoint, "state": report.state, "error": _error(report, view)}
                for report, view in zip(reports, views, strict=True)
            ],
        }
        typer.echo(msgspec.json.encode(document).decode())
    else:
        # Not a terminal: nothing is cut, so that a script finds whole words.
        console = Console(width=None if sys.stdout.isatty() else 200)
        console.print(_nodes_table(reports, views))
        services = _services_table(views)
        if services is not None:
            console.print(services)
        talk = Console(stderr=True, soft_wrap=True)
        for report, view in zip(reports, views, strict=True):
            if view is None:
                talk.print(Text(f"{report.endpoint}: {_error(report, view)}"))
        talk.print(Text(verdict.why, style="green" if verdict.code == exits.OK else "bold red"))
    raise typer.Exit(verdict.code)


def judge(views: Sequence[NodeView | None]) -> Verdict:
    """What to think of a pair whose nodes look like this; None is a node that did not answer."""
    known = [view for view in views if view is not None]
    active = [view.pair.role for view in known if view.pair.is_active]
    silent = len(views) - len(known)
    if len(active) > 1:
        return Verdict(exits.MANY_ACTIVE, f"{len(active)} nodes serve: {', '.join(active)}")
    if not active:
        states = ", ".join(f"{view.pair.role} {view.pair.state}" for view in known) or "no node answers"
        hint = "; a request from a client will turn one active" if _may_be_voted(known) else ""
        return Verdict(exits.NONE_ACTIVE, f"no node serves: {states}{hint}")
    if silent:
        return Verdict(
            exits.FAILED, f"the {active[0]} serves, but {silent} of {len(views)} nodes did not answer"
        )
    if len(views) > 1 and not all(view.pair.is_peer_fresh for view in known):
        return Verdict(exits.FAILED, f"the {active[0]} serves, but the nodes do not hear each other")
    deaf = [view.pair.role for view in known if view.pair.quorum and not view.pair.quorum.is_arbiter_heard]
    if deaf:
        return Verdict(
            exits.FAILED,
            f"the {active[0]} serves, but the arbiter does not answer the {' and the '.join(deaf)}",
        )
    return Verdict(exits.OK, f"the {active[0]} serves")


def _may_be_voted(known: Sequence[NodeView]) -> bool:
    return any(
        view.pair.state in ("PASSIVE", "PRIMARY")
        and not view.pair.is_peer_fresh
        and (view.pair.quorum is None or view.pair.quorum.is_arbiter_heard)
        for view in known
    )


def _view(report: NodeReport) -> NodeView | None:
    if report.state is None:
        return None
    try:
        return msgspec.convert(report.state, NodeView)
    except msgspec.ValidationError:
        return None


def _error(report: NodeReport, view: NodeView | None) -> str | None:
    if report.error is not None or view is not None:
        return report.error
    return "the node's answer is not what this version of bstar understands"


def _nodes_table(reports: Sequence[NodeReport], views: Sequence[NodeView | None]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("ENDPOINT", "ROLE", "STATE"):
        table.add_column(heading, no_wrap=True)
    for heading in ("EPOCH", "PEER", "PEER AGE", "SERVICES", "WORKERS", "QUEUED"):
        table.add_column(heading, justify="right")
    has_arbiter = any(view is not None and view.pair.quorum is not None for view in views)
    if has_arbiter:
        table.add_column("ARBITER", justify="right")
    for report, view in zip(reports, views, strict=True):
        # Text, because a name or an error may look like markup.
        if view is None:
            table.add_row(Text(report.endpoint), Text("-"), Text("no answer", style="red"))
            continue
        pair, broker = view.pair, view.broker
        table.add_row(
            Text(report.endpoint),
            Text(pair.role),
            Text(pair.state, style="bold green" if pair.is_active else ""),
            Text(str(pair.epoch)),
            Text(pair.peer_state or "-")
            if pair.is_peer_fresh
            else Text("gone" if pair.is_peer_gone else "silent", style="red"),
            Text("-" if pair.peer_age_s is None else f"{pair.peer_age_s:.3f} s"),
            Text(str(len(broker.services))),
            Text(str(broker.workers)),
            Text(str(broker.queued)),
            *([_arbiter_cell(pair)] if has_arbiter else []),
        )
    return table


def _arbiter_cell(pair: _Pair) -> Text:
    if pair.quorum is None:
        return Text("none", style="red")
    if not pair.quorum.is_arbiter_heard:
        return Text("silent", style="red")
    return Text("grants" if pair.quorum.is_arbiter_granting else "answers")


def _services_table(views: Sequence[NodeView | None]) -> Table | None:
    """The services as the active node sees them; of several or none, as all nodes together do."""
    chosen = [view for view in views if view is not None and view.pair.is_active]
    services = [(view.pair.role, service) for view in chosen for service in view.broker.services]
    if not services:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("\nSERVICE")
    table.add_column("\nON")
    for heading in ("WORKERS", "IDLE", "IN FLIGHT", "QUEUED", "ANSWERED"):
        table.add_column(f"\n{heading}", justify="right")
    for role, service in sorted(services, key=lambda each: each[1].service):
        numbers = (service.workers, service.idle, service.in_flight, service.queued, service.answered)
        table.add_row(Text(service.service), Text(role), *(Text(str(number)) for number in numbers))
    return table
