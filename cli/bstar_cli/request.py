"""``bstar request``: what waits or runs at a node, and an operator who ends one of it."""

from typing import Annotated

import typer

from bstar_broker.core.snapshot import RequestState
from bstar_broker.operate.work_operations import (
    CANCEL_REQUEST,
    LIST_REQUESTS,
    LISTED_MAX,
    SHOW_REQUEST,
    ListWish,
    RequestsTold,
    WorkWish,
)
from bstar_cli.node_control import who
from bstar_cli.options import NodeConfiguration, grouped
from bstar_cli.orders import Reason, order, settings_to_order
from bstar_cli.terminal import cell, json_line, print_tables, table

request = typer.Typer(
    name="request",
    no_args_is_help=True,
    add_completion=False,
    help="List, show or cancel requests that wait or run at a node (docs/operations.md).",
)

_Id = Annotated[str, typer.Argument(metavar="ID", help="48 hexadecimal digits: see bstar request ls.")]
_AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@request.callback()
def _request() -> None:
    pass


def _ls(
    node: NodeConfiguration,
    service: Annotated[str, typer.Option("--service", "-s", help="Only requests of this service.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LISTED_MAX, help="So many at workers, and so many that wait.")
    ] = 20,
    as_json: _AsJson = False,
) -> None:
    """List the oldest requests at workers, and of each client the oldest that waits.

    Run it on the machine of the node that serves, as the user that runs it. Requests of one batch are one row
    while nothing tells them apart; its id is that of the first of them.

    Exit codes: 0 listed; 1 refused: no such service; 2 wrong usage or configuration; 4 not known: the node
    got it and is silent.

    Examples:

        bstar request ls --config configs/primary.yaml --service price
    """
    settings = settings_to_order(node)
    told = order(settings, LIST_REQUESTS, ListWish(service, limit), RequestsTold)
    _print(told.requests, as_json=as_json)
    typer.echo(f"{told.running:,} at workers, {told.waiting:,} waiting", err=True)


def _show(identity: _Id, node: NodeConfiguration, as_json: _AsJson = False) -> None:
    """Show one request: who asked for it, how long ago, who has it.

    Exit codes: 0 shown; 1 refused: it has ended, or this node does not serve; 2 wrong usage or configuration;
    4 not known: the node got it and is silent.

    Examples:

        bstar request show 5b9f20...0001 --config configs/primary.yaml
    """
    told = order(settings_to_order(node), SHOW_REQUEST, WorkWish(identity, who("")), RequestsTold)
    _print(told.requests, as_json=as_json)


def _cancel(identity: _Id, node: NodeConfiguration, reason: Reason) -> None:
    """End one request; its caller gets an error with the reason and does not send it again.

    Run it on the machine of the node that serves, as the user that runs it. A request that waits is not
    executed. A worker that has it runs on, and its answer is dropped. Callers of plain Majordomo hear
    nothing: their timeout applies, and some send again.

    Exit codes: 0 cancelled; 1 refused, and nothing has changed; 2 wrong usage or configuration; 4 not known:
    the node got it and is silent.

    Examples:

        bstar request cancel 5b9f20...0001 --config configs/primary.yaml --reason "a year of prices"
    """
    settings = settings_to_order(node, reason)
    [state] = order(settings, CANCEL_REQUEST, WorkWish(identity, who(reason)), RequestsTold).requests
    how = f"worker {state.worker} runs on, its answer is dropped" if state.worker else "it waited"
    typer.echo(f"request {identity} of {state.service} is cancelled: {how}")


def _print(requests: list[RequestState], *, as_json: bool) -> None:
    if as_json:
        for state in requests:
            typer.echo(json_line(state))
    elif requests:
        shown = table(("ID", "SERVICE", "CLIENT"), ("REQUESTS", "AGE S", "OCTETS"))
        shown.add_column("WHERE")
        for state in requests:
            words = (state.request, state.service, f"{state.client} {state.dialect}")
            numbers = (state.requests, f"{state.age_s:.3f}", state.body_bytes)
            shown.add_row(*map(cell, (*words, *numbers, _where(state))))
        print_tables(shown)


def _where(state: RequestState) -> str:
    if state.worker:
        times = "" if state.deliveries == 1 else f", after {state.deliveries - 1} lost workers"
        given_up = "given up: " if state.is_given_up else ""
        return f"{given_up}worker {state.worker} for {state.held_s:.3f} s{times}"
    return f"waits, for {state.expires_in_s:.0f} s more at most"


request.command("ls")(grouped(_ls))
request.command("show")(grouped(_show))
request.command("cancel")(grouped(_cancel))
