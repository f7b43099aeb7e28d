"""``bstar status``: the nodes of all pairs side by side, and whether that is how pairs should look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar.base.printable import duration
from bstar.fleet import Fleet
from bstar_broker.core.snapshot import DiskState, NodeState, PairState, StoreState
from bstar_cli import exits
from bstar_cli.diagnosis import (
    Seen,
    Stray,
    Trouble,
    Verdict,
    find_troubles,
    judge,
    judge_all,
    judge_services,
    judge_strays,
    node_findings,
    strays,
)
from bstar_cli.options import Nodes
from bstar_cli.streams import OutputLostError, forgive_reader
from bstar_cli.terminal import cell, json_line, print_tables, sentence, table
from bstar_client.calls.status import NodeReport, node_states


def status(
    nodes: Nodes,
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
    the nodes say of themselves and of each other. Each finding of a node or about a service has a line: what
    is wrong, since when, what to do, and its section of the runbook. Every alert that a node alone can know
    is among them. Of several pairs, services at another pair than their own are shown, too.

    Exit codes: 0 every node answers and exactly one serves; 1 one serves, but a node cannot be reached, is
    down, does not hear its peer or the arbiter, or has found something wrong; 2 wrong usage, or a node does
    not let this key ask; 3 none serves; 4 more than one serves; 5 the pairs are well, but a service is not;
    6 the pairs are well, but services or nodes are at another pair than the list says. Of several pairs it
    is that of the worst.

    Examples:

        bstar status

        bstar status --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar status --config client.yaml

        bstar status --json | jq '.nodes[].state.pair.state'
    """
    findings = _look(nodes, timeout, service or ())
    if as_json:
        _print(lambda: typer.echo(json_line(_document(findings))))
    else:
        _show(findings)
    raise typer.Exit(findings.verdict.code)


@dataclass(frozen=True, slots=True)
class _Findings:
    """What was seen of all nodes, and what it means; ``titles``: what each node's pair is called here."""

    fleet: Fleet
    titles: list[str]
    reports: list[NodeReport]
    nodes: list[Seen]
    by_pair: dict[str, Verdict]
    verdict: Verdict
    strays: list[Stray]
    troubles: list[Trouble]
    homes: dict[str, str]


def _look(asked: Nodes, timeout_s: float, services: Sequence[str]) -> _Findings:
    """Ask all nodes, and judge."""
    fleet = asked.fleet()
    reports = node_states(fleet.endpoints, timeout_s, asked.security())
    nodes = [Seen.of(report) for report in reports]
    titles = _titles(fleet)
    of_pairs: dict[str, list[Seen]] = {title: [] for title in titles}
    for title, seen in zip(titles, nodes, strict=True):
        of_pairs[title].append(seen)
    by_pair = {
        title: judge(seen, pair.name)
        for (title, seen), pair in zip(of_pairs.items(), fleet.pairs, strict=True)
    }
    astray = strays(fleet, of_pairs)
    troubles = find_troubles(of_pairs)
    verdict = judge_services(judge_strays(judge_all(by_pair), astray), troubles)
    # What the first node of the service's pair is called.
    homes = {
        service: titles[fleet.endpoints.index(fleet.pair_of(service).endpoints[0])] for service in services
    }
    return _Findings(fleet, titles, reports, nodes, by_pair, verdict, astray, troubles, homes)


def _document(findings: _Findings) -> dict[str, object]:
    def shown(verdict: Verdict) -> dict[str, object]:
        return {"healthy": verdict.code == exits.OK, "reason": verdict.reason, "why": verdict.why}

    nodes = zip(findings.titles, findings.reports, findings.nodes, strict=True)
    return {
        **shown(findings.verdict),
        "pairs": [{"pair": title, **shown(verdict)} for title, verdict in findings.by_pair.items()],
        "troubles": findings.troubles,
        "findings": [
            {"pair": title, "endpoint": seen.endpoint, **msgspec.structs.asdict(each)}
            for title, seen in zip(findings.titles, findings.nodes, strict=True)
            if seen.view is not None
            for each in seen.view.findings or ()
        ],
        "strays": findings.strays,
        "homes": findings.homes,
        "nodes": [
            {
                "pair": title,
                "endpoint": report.endpoint,
                "state": report.state,
                "reason": seen.reason,
                "error": seen.error,
            }
            for title, report, seen in nodes
        ],
    }


def _show(findings: _Findings) -> None:
    views = [seen.view for seen in findings.nodes]
    tables = [_nodes_table(findings.titles, findings.nodes)]
    further = [make(findings.titles, views) for make in (_stores_table, _fronts_table, _services_table)]
    tables += [each for each in further if each is not None]
    _print(lambda: print_tables(*tables, titles=2 if len(findings.by_pair) > 1 else 1))
    talk = Console(stderr=True, soft_wrap=True)
    for seen in findings.nodes:
        if seen.view is None:
            talk.print(sentence(f"{seen.endpoint}: {seen.error}"))
    for role, found in node_findings([view for view in views if view is not None]):
        runbook = f" (docs/operations.md#{found.alert.lower()})" if found.alert else ""
        talk.print(sentence(f"{role}, for {duration(found.for_s)}: {found}{runbook}", style="yellow"))
    for title in dict.fromkeys(
        title for title, view in zip(findings.titles, views, strict=True) if _forgets(view)
    ):
        whose = f"the store of {title}" if len(findings.by_pair) > 1 else "the store"
        talk.print(sentence(f"{whose} is in memory: what it holds is lost when both nodes have ended"))
    for shown in (*findings.strays, *findings.troubles):
        talk.print(sentence(shown, style="yellow"))
    for service, home in findings.homes.items():
        endpoints = ", ".join(findings.fleet.pair_of(service).endpoints)
        talk.print(sentence(f"{service} belongs to {home}: {endpoints}"))
    verdict = findings.verdict
    talk.print(sentence(verdict.why, style="green" if verdict.code == exits.OK else "bold red"))


def _print(show: Callable[[], None]) -> None:
    """Print, and go on if the reader has left: the exit code is the verdict all the same."""
    try:
        show()
    except OutputLostError as error:
        forgive_reader(error)


def _titles(fleet: Fleet) -> list[str]:
    """For each node what its pair is called here: its name, or its number in the list."""
    return [pair.name or f"#{number}" for number, pair in enumerate(fleet.pairs, 1) for _ in pair.endpoints]


def _nodes_table(names: Sequence[str], nodes: Sequence[Seen]) -> Table:
    is_fleet = len(set(names)) > 1
    has_arbiter = any(seen.view is not None and seen.view.pair.quorum is not None for seen in nodes)
    shown = table(
        (*(["PAIR"] if is_fleet else []), "ENDPOINT", "ROLE", "STATE"),
        ("EPOCH", "PEER", "PEER AGE", "SERVICES", "WORKERS", "QUEUED", *(["ARBITER"] if has_arbiter else [])),
        no_wrap=True,
    )
    for name, seen in zip(names, nodes, strict=True):
        named, view = [cell(name)] if is_fleet else [], seen.view
        if view is None:
            shown.add_row(*named, cell(seen.endpoint), Text("-"), Text(seen.word, style="red"))
            continue
        pair, broker = view.pair, view.broker
        shown.add_row(
            *named,
            cell(seen.endpoint),
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
    return shown


def _arbiter_cell(pair: PairState) -> Text:
    if pair.quorum is None:
        return Text("none", style="red")
    if pair.is_drained:
        return Text("-")
    if not pair.quorum.is_arbiter_heard:
        return Text("silent", style="red")
    return Text("grants" if pair.quorum.is_arbiter_granting else "answers")


def _stores_table(names: Sequence[str], views: Sequence[NodeState | None]) -> Table | None:
    """The durable store of each node that has one; None if none has."""
    stores = [
        (name, view.pair.role, view.store)
        for name, view in zip(names, views, strict=True)
        if view is not None and view.store is not None
    ]
    if not stores:
        return None
    is_fleet = len(set(names)) > 1
    words = ("STORE ON", *(["PAIR"] if is_fleet else []), "PLAYS")
    shown = table(
        words,
        ("COPIES", "LAG", "PENDING", "OLDEST", "RUNNING", "ANSWERED", "DEAD", "DISK FREE"),
        no_wrap=True,
    )
    for name, role, store in stores:
        shown.add_row(
            cell(role),
            *([cell(name)] if is_fleet else []),
            Text("waits", style="red")
            if store.trouble
            else Text("leads", style="bold green")
            if store.is_leading
            else Text("follows"),
            Text(str(store.copies), style="" if store.copies > 1 or not store.is_leading else "red"),
            Text(_lag(store)),
            Text(str(store.pending)),
            Text(f"{store.oldest_pending_s:.0f} s" if store.oldest_pending_s else "-"),
            Text(str(store.running)),
            Text(str(store.answered)),
            Text(str(store.dead), style="yellow" if store.dead else ""),
            Text(_room(store.disk)),
        )
    return shown


def _forgets(view: NodeState | None) -> bool:
    store = None if view is None else view.store
    return store is not None and store.disk is not None and store.disk.is_in_memory


def _room(disk: DiskState | None) -> str:
    if disk is None:
        return "-"
    if disk.is_in_memory:
        return "in memory"
    # Below 1 GiB it is soon over, and each MiB counts.
    return (
        f"{disk.free_bytes / 2**30:.1f} GiB" if disk.free_bytes >= 2**30 else f"{disk.free_bytes >> 20} MiB"
    )


def _lag(store: StoreState) -> str:
    """How far the other copy is: the entries that it lacks, the part of its way, or nothing is known."""
    if not store.is_peer_heard:
        return "-"
    return str(store.lag_entries) if store.catch_up == 1 else f"{store.catch_up:.0%}"


def _fronts_table(names: Sequence[str], views: Sequence[NodeState | None]) -> Table | None:
    """The fronts of each node; None if none has any."""
    fronts = [
        (front.name, name, view.pair.role, front)
        for name, view in zip(names, views, strict=True)
        if view is not None
        for front in view.fronts
    ]
    if not fronts:
        return None
    is_fleet = len(set(names)) > 1
    shown = table(("FRONT", *(["PAIR"] if is_fleet else []), "ON", "PEERS", "ERROR"))
    for title, name, role, front in sorted(fronts, key=lambda each: each[:3]):
        peers = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in front.peers.items())
        names_of = (title, *([name] if is_fleet else []), role, peers)
        error = cell(front.error, style="red") if front.error else Text("-")
        shown.add_row(*(cell(each) for each in names_of), error)
    return shown


def _services_table(names: Sequence[str], views: Sequence[NodeState | None]) -> Table | None:
    """The services as each active node sees them; None if there are none."""
    services = [
        (service.service, name, view.pair.role, service)
        for name, view in zip(names, views, strict=True)
        if view is not None and view.pair.is_active
        for service in view.broker.services
    ]
    if not services:
        return None
    is_fleet = len(set(names)) > 1
    words = ("SERVICE", *(["PAIR"] if is_fleet else []), "ON")
    is_bound = any(service.bound for _, _, _, service in services)
    columns = ("WORKERS", "IDLE", "IN FLIGHT", "QUEUED", "ANSWERED", *(["BOUND BY"] if is_bound else []))
    shown = table(words, columns)
    for title, name, role, service in sorted(services, key=lambda each: each[:3]):
        names_of = (title, *([name] if is_fleet else []), role)
        numbers = (service.workers, service.idle, service.in_flight, service.queued, service.answered)
        bound = [service.bound or "-"] if is_bound else []
        shown.add_row(*(cell(each) for each in (*names_of, *numbers, *bound)))
    return shown
