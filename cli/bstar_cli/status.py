"""``bstar status``: the nodes of all pairs side by side, and whether that is how pairs should look."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar.fleet import Fleet
from bstar_cli import exits
from bstar_cli.options import ClientConfigOption, EndpointsOption, fleet_of
from bstar_client.status import NodeReport, node_states

__all__ = ["Stray", "Verdict", "judge", "judge_all", "status", "strays"]

# From bad to worse.
_WORSE = (exits.OK, exits.FAILED, exits.NONE_ACTIVE, exits.MANY_ACTIVE)


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


class Stray(msgspec.Struct, frozen=True):
    """A service with workers at a pair that it does not belong to: no client looks for them there."""

    service: str
    pair: str
    belongs_to: str


def status(
    endpoints: EndpointsOption = None,
    config: ClientConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the nodes.")
    ] = 2.0,
) -> None:
    """Show every node of every pair: role, state, epoch, peer, services, workers, queues.

    Looking is no vote: it never changes which node is active. Of several pairs, services with workers at
    another pair than their own are told, too.

    Exit codes: 0 every node answers and exactly one serves; 1 exactly one serves, but a node does not answer,
    or the one that serves does not hear its peer, or the arbiter does not answer a node; 2 wrong usage; 3
    none serves; 4 more than one serves. Of several pairs it is that of the worst.

    Examples:

        bstar status

        bstar status --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar status --config client.yaml

        bstar status --json | jq '.nodes[].state.pair.state'
    """
    fleet = fleet_of(endpoints, config)
    try:
        reports = node_states(fleet.endpoints, timeout)
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    views = [_view(report) for report in reports]
    names = _names(fleet)
    by_pair: dict[str, list[NodeView | None]] = {name: [] for name in names}
    for name, view in zip(names, views, strict=True):
        by_pair[name].append(view)
    verdicts = {name: judge(of_pair) for name, of_pair in by_pair.items()}
    verdict = judge_all(verdicts)
    astray = strays(fleet, by_pair)
    if as_json:
        document = {
            "healthy": verdict.code == exits.OK,
            "why": verdict.why,
            "pairs": [
                {"pair": name, "healthy": of_pair.code == exits.OK, "why": of_pair.why}
                for name, of_pair in verdicts.items()
            ],
            "strays": astray,
            "nodes": [
                {
                    "pair": name,
                    "endpoint": report.endpoint,
                    "state": report.state,
                    "error": _error(report, view),
                }
                for name, report, view in zip(names, reports, views, strict=True)
            ],
        }
        typer.echo(msgspec.json.encode(document).decode())
    else:
        # Not a terminal: nothing is cut, so that a script finds whole words.
        console = Console(width=None if sys.stdout.isatty() else 200)
        console.print(_nodes_table(names, reports, views))
        services = _services_table(names, views)
        if services is not None:
            console.print(services)
        talk = Console(stderr=True, soft_wrap=True)
        for report, view in zip(reports, views, strict=True):
            if view is None:
                talk.print(Text(f"{report.endpoint}: {_error(report, view)}"))
        for stray in astray:
            told = (
                f"{stray.service} has workers at {stray.pair}, but clients look for it at {stray.belongs_to}"
            )
            talk.print(Text(told, style="yellow"))
        talk.print(Text(verdict.why, style="green" if verdict.code == exits.OK else "bold red"))
    raise typer.Exit(verdict.code)


def _names(fleet: Fleet) -> list[str]:
    """For each node what its pair is called here: its name, or its number in the list."""
    return [pair.name or f"#{number}" for number, pair in enumerate(fleet.pairs, 1) for _ in pair.endpoints]


def judge_all(verdicts: Mapping[str, Verdict]) -> Verdict:
    """What to think of several pairs: the code of the worst of them, and what is wrong with each."""
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    worst = max((verdict.code for verdict in verdicts.values()), key=_WORSE.index)
    if worst == exits.OK:
        return Verdict(worst, f"all {len(verdicts)} pairs are served")
    told = [f"{name}: {verdict.why}" for name, verdict in verdicts.items() if verdict.code != exits.OK]
    return Verdict(worst, f"{len(told)} of {len(verdicts)} pairs: {'; '.join(told)}")


def strays(fleet: Fleet, by_pair: Mapping[str, Sequence[NodeView | None]]) -> list[Stray]:
    """Services with workers at a pair that they do not belong to."""
    names = list(by_pair)
    found = {
        Stray(service.service, name, home)
        for name, views in by_pair.items()
        for view in views
        if view is not None
        for service in view.broker.services
        # A name that is no text is told with escapes, and its pair cannot be computed from those.
        if service.workers and "\\x" not in service.service
        if (home := names[fleet.place(service.service.encode())]) != name
    }
    return sorted(found, key=lambda stray: (stray.service, stray.pair))


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


def _nodes_table(
    names: Sequence[str], reports: Sequence[NodeReport], views: Sequence[NodeView | None]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_fleet = len(set(names)) > 1
    for heading in (*(["PAIR"] if is_fleet else []), "ENDPOINT", "ROLE", "STATE"):
        table.add_column(heading, no_wrap=True)
    for heading in ("EPOCH", "PEER", "PEER AGE", "SERVICES", "WORKERS", "QUEUED"):
        table.add_column(heading, justify="right")
    has_arbiter = any(view is not None and view.pair.quorum is not None for view in views)
    if has_arbiter:
        table.add_column("ARBITER", justify="right")
    for name, report, view in zip(names, reports, views, strict=True):
        # Text, because a name or an error may look like markup.
        named = [Text(name)] if is_fleet else []
        if view is None:
            table.add_row(*named, Text(report.endpoint), Text("-"), Text("no answer", style="red"))
            continue
        pair, broker = view.pair, view.broker
        table.add_row(
            *named,
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


def _services_table(names: Sequence[str], views: Sequence[NodeView | None]) -> Table | None:
    """The services as the active node of each pair sees them; of several or none, as all nodes do."""
    services = [
        (service.service, name, view.pair.role, service)
        for name, view in zip(names, views, strict=True)
        if view is not None and view.pair.is_active
        for service in view.broker.services
    ]
    if not services:
        return None
    is_fleet = len(set(names)) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("SERVICE", *(["PAIR"] if is_fleet else []), "ON"):
        table.add_column(f"\n{heading}")
    for heading in ("WORKERS", "IDLE", "IN FLIGHT", "QUEUED", "ANSWERED"):
        table.add_column(f"\n{heading}", justify="right")
    for title, name, role, service in sorted(services, key=lambda each: each[:3]):
        words = (title, *([name] if is_fleet else []), role)
        numbers = (service.workers, service.idle, service.in_flight, service.queued, service.answered)
        table.add_row(*(Text(str(each)) for each in (*words, *numbers)))
    return table
