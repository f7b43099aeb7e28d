"""``bstar status``: the nodes of all pairs side by side, and whether that is how pairs should look."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar.fleet import Fleet
from bstar_cli import exits
from bstar_cli.diagnosis import (
    NodeView,
    PairView,
    Seen,
    find_troubles,
    judge,
    judge_all,
    judge_services,
    judge_strays,
    strays,
)
from bstar_cli.options import ClientConfigOption, EndpointsOption, fleet_of
from bstar_cli.streams import OutputLostError, forgive_reader
from bstar_cli.terminal import cell, json_line, print_tables, sentence
from bstar_client.status import NodeReport, node_states

__all__ = ["status"]


def status(
    endpoints: EndpointsOption = None,
    config: ClientConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the nodes.")
    ] = 2.0,
    service: Annotated[
        list[str] | None, typer.Option("--service", "-s", help="Say which pair this service belongs to.")
    ] = None,
) -> None:
    """Show every node of every pair: role, state, epoch, peer, services, workers, queues.

    Looking is no vote: it never changes which node is active. The last line says what is wrong, from what
    the nodes say of themselves and of each other. Services in trouble are told in a sentence each: nobody
    offers them, a request is held or waits for long, or many ended badly in the last five minutes. Of several
    pairs, services at another pair than their own are told, too.

    Exit codes: 0 every node answers and exactly one serves; 1 one serves, but a node cannot be reached, is
    down or does not hear its peer or the arbiter; 2 wrong usage; 3 none serves; 4 more than one serves; 5 the
    pairs are well, but a service is not; 6 the pairs are well, but services or nodes are at another pair than
    the list says. Of several pairs it is that of the worst.

    Examples:

        bstar status

        bstar status --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar status --config client.yaml

        bstar status --json | jq '.nodes[].state.pair.state'
    """
    fleet = fleet_of(endpoints, config)
    reports = node_states(fleet.endpoints, timeout)
    nodes = [Seen.of(report) for report in reports]
    views = [seen.view for seen in nodes]
    names = _names(fleet)
    by_pair: dict[str, list[Seen]] = {name: [] for name in names}
    for name, seen in zip(names, nodes, strict=True):
        by_pair[name].append(seen)
    named = [pair.name for pair in fleet.pairs]
    verdicts = {
        title: judge(of_pair, name) for (title, of_pair), name in zip(by_pair.items(), named, strict=True)
    }
    astray = strays(fleet, by_pair)
    troubled = find_troubles(by_pair)
    verdict = judge_services(judge_strays(judge_all(verdicts), astray), troubled)
    homes = {each: names[_first_node(fleet, each)] for each in service or ()}
    if as_json:
        document = {
            "healthy": verdict.code == exits.OK,
            "reason": verdict.reason,
            "why": verdict.why,
            "pairs": [
                {
                    "pair": name,
                    "healthy": of_pair.code == exits.OK,
                    "reason": of_pair.reason,
                    "why": of_pair.why,
                }
                for name, of_pair in verdicts.items()
            ],
            "troubles": troubled,
            "strays": astray,
            "homes": homes,
            "nodes": [
                {
                    "pair": name,
                    "endpoint": report.endpoint,
                    "state": report.state,
                    "reason": seen.reason,
                    "error": seen.error,
                }
                for name, report, seen in zip(names, reports, nodes, strict=True)
            ],
        }
        _print(lambda: typer.echo(json_line(document)))
    else:
        tables = [_nodes_table(names, reports, views)]
        services = _services_table(names, views)
        if services is not None:
            tables.append(services)
        _print(lambda: print_tables(*tables, titles=2 if len(by_pair) > 1 else 1))
        talk = Console(stderr=True, soft_wrap=True)
        for seen in nodes:
            if seen.view is None:
                talk.print(sentence(f"{seen.endpoint}: {seen.error}"))
        for told in (*astray, *troubled):
            talk.print(sentence(told, style="yellow"))
        for each, home in homes.items():
            talk.print(sentence(f"{each} belongs to {home}: {', '.join(fleet.pair_of(each).endpoints)}"))
        talk.print(sentence(verdict.why, style="green" if verdict.code == exits.OK else "bold red"))
    raise typer.Exit(verdict.code)


def _print(show: Callable[[], None]) -> None:
    """Print, and go on if the reader has left: the exit code is the verdict all the same."""
    try:
        show()
    except OutputLostError as error:
        forgive_reader(error)


def _names(fleet: Fleet) -> list[str]:
    """For each node what its pair is called here: its name, or its number in the list."""
    return [pair.name or f"#{number}" for number, pair in enumerate(fleet.pairs, 1) for _ in pair.endpoints]


def _first_node(fleet: Fleet, service: str) -> int:
    """The index among all nodes of the first node of the service's pair."""
    return fleet.endpoints.index(fleet.pair_of(service).endpoints[0])


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
        named = [cell(name)] if is_fleet else []
        if view is None:
            table.add_row(*named, cell(report.endpoint), Text("-"), Text("no answer", style="red"))
            continue
        pair, broker = view.pair, view.broker
        table.add_row(
            *named,
            cell(report.endpoint),
            cell(pair.role),
            cell(pair.state, style="bold green" if pair.is_active else ""),
            Text(str(pair.epoch)),
            cell(pair.peer_state or "-")
            if pair.is_peer_fresh
            else Text("gone" if pair.is_peer_gone else "silent", style="red"),
            Text("-" if pair.peer_age_s is None else f"{pair.peer_age_s:.3f} s"),
            Text(str(len(broker.services))),
            Text(str(broker.workers)),
            Text(str(broker.queued)),
            *([_arbiter_cell(pair)] if has_arbiter else []),
        )
    return table


def _arbiter_cell(pair: PairView) -> Text:
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
        table.add_column(heading)
    for heading in ("WORKERS", "IDLE", "IN FLIGHT", "QUEUED", "ANSWERED"):
        table.add_column(heading, justify="right")
    for title, name, role, service in sorted(services, key=lambda each: each[:3]):
        words = (title, *([name] if is_fleet else []), role)
        numbers = (service.workers, service.idle, service.in_flight, service.queued, service.answered)
        table.add_row(*(cell(each) for each in (*words, *numbers)))
    return table
