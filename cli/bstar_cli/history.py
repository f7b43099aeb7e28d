"""``bstar history``: each change of role of a pair's nodes: when, from what to what, and why."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar.records.role import RoleChange
from bstar_cli import exits
from bstar_cli.diagnosis import Seen
from bstar_cli.options import Nodes, check_folder, refuse
from bstar_cli.terminal import cell, json_line, print_tables, sentence, table
from bstar_client.calls.status import node_states

_US = 1_000_000


def history(
    nodes: Nodes,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="The state_dir of one node or of both, without asking them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each change.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the nodes.")
    ] = 2.0,
) -> None:
    """Show each change of role: when, from what to what, its cause and epoch, and the longest wait.

    Without a directory the nodes send their last 20 changes. A directory has the last 500 of its node,
    whether that runs or not. The cause is the event of the node's rules (docs/binary-star.md); --json has its
    sentence as well. WAITED is the longest that a client can have waited. On a node that took over: since it
    last heard its peer, also if no client asked meanwhile. On a node that gave the role up by a switchover:
    since it last dispatched a request, until its peer served.

    Exit codes: 0 printed; 1 a node does not answer, or a file is missing or has lines that cannot be read,
    which is said; 2 wrong usage.

    Examples:

        bstar history

        bstar history /var/lib/bstar

        bstar history --json | jq 'select(.new == "ACTIVE") | .text'
    """
    if folders:
        refuse(nodes.endpoints or nodes.config, "DIR and the nodes both have the history: name one of them")
        changes, troubles = _read(folders)
    else:
        changes, troubles = _ask(nodes, timeout)
    changes.sort(key=lambda change: change.at)
    if as_json:
        for change in changes:
            typer.echo(json_line(change))
    elif changes:
        print_tables(history_table(changes), titles=3)
    else:
        typer.echo("no change of role is known", err=True)
    for trouble in troubles:
        Console(stderr=True, soft_wrap=True).print(sentence(trouble, style="yellow"))
    raise typer.Exit(exits.FAILED if troubles else exits.OK)


def _ask(nodes: Nodes, timeout_s: float) -> tuple[list[RoleChange], list[str]]:
    changes: list[RoleChange] = []
    troubles: list[str] = []
    for seen in map(Seen.of, node_states(nodes.fleet().endpoints, timeout_s, nodes.security())):
        if seen.view is None:
            troubles.append(f"{seen.endpoint}: {seen.error}")
        else:
            changes += seen.view.history
    return changes, troubles


def _read(folders: list[Path]) -> tuple[list[RoleChange], list[str]]:
    from bstar_broker.operate.role_history import history_path, read_history  # noqa: PLC0415  # only now needed

    changes: list[RoleChange] = []
    troubles: list[str] = []
    for folder in folders:
        check_folder(folder, f"{folder} is no directory: name the state_dir of a node")
        try:
            found, damaged = read_history(folder)
        except OSError as error:
            troubles.append(f"{history_path(folder)}: {error.strerror or error}")
            continue
        changes += found
        if damaged:
            troubles.append(f"{history_path(folder)}: {damaged} lines cannot be read, and are left out")
    return changes, troubles


def history_table(changes: list[RoleChange]) -> Table:
    """The changes as a table that fits into 80 columns."""
    shown = table(("WHEN", "NODE", "CHANGE", "CAUSE"), ("EPOCH", "WAITED"), no_wrap=True)
    for change in changes:
        when = datetime.fromtimestamp(change.at / _US, UTC).astimezone()
        is_start = change.new == "ACTIVE"
        shown.add_row(
            cell(f"{when:%Y-%m-%d %H:%M:%S}"),
            cell(change.node),
            cell(f"{change.old.lower()} -> {change.new.lower()}", style="bold green" if is_start else ""),
            cell(change.event.lower()),
            Text(str(change.epoch)),
            Text("-" if change.waited_us is None else f"{change.waited_us / _US:.3f} s"),
        )
    return shown
