"""``bstar workers``: the workers of a node, and an operator who takes one out of work."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from bstar.base.printable import printable
from bstar_broker.core.snapshot import ListedWorker
from bstar_broker.operate.work_operations import (
    DRAIN_WORKER,
    LIST_WORKERS,
    LISTED_MAX,
    RESUME_WORKER,
    ListWish,
    WorkersTold,
    WorkWish,
)
from bstar_cli.node_control import who
from bstar_cli.options import NodeConfiguration, grouped
from bstar_cli.orders import Reason, order, settings_to_order
from bstar_cli.terminal import cell, json_line, print_tables, table

workers = typer.Typer(
    name="workers",
    no_args_is_help=True,
    add_completion=False,
    help="List the workers of a node, drain one, let it work again (docs/operations.md).",
)

_Worker = Annotated[str, typer.Argument(metavar="ID", help="The worker, as bstar workers ls lists it.")]


@workers.callback()
def _workers() -> None:
    pass


def _ls(
    node: NodeConfiguration,
    service: Annotated[str, typer.Option("--service", "-s", help="Only the workers of this service.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the workers of a node: which service each offers, what it holds, how it speaks, where it runs.

    HOST, PID and VERSION are what a worker of the client library tells; ADDRESS is where the node sees it.

    Run it on the machine of the node, as the user that runs the node. Both nodes know each worker, each
    by an id of its own.

    Exit codes: 0 listed; 1 refused: no such service; 2 wrong usage or configuration; 4 not known: the node
    got it and is silent.

    Examples:

        bstar workers ls --config configs/primary.yaml --service price
    """
    settings = settings_to_order(node)
    told = order(settings, LIST_WORKERS, ListWish(service), WorkersTold)
    if as_json:
        for worker in told.workers:
            typer.echo(json_line(worker))
    elif told.workers:
        shown = table(("ID", "SERVICE", "SPEAKS"), ("HOLDS", "AT MOST"))
        for heading in ("HOST", "PID", "ADDRESS", "VERSION", "SINCE", "NOTE"):
            shown.add_column(heading, justify="right" if heading == "PID" else "left")
        now = datetime.now().astimezone()
        for worker in told.workers:
            values = (worker.worker, worker.service, worker.dialect, worker.in_flight, worker.credit)
            shown.add_row(*map(cell, (*values, *_process(worker), _since(worker, now), _note(worker))))
        print_tables(shown)
    else:
        of = f' of service "{printable(service)}"' if service else ""
        typer.echo(f"the {settings.role} has no worker{of}", err=True)
    if told.total > len(told.workers):
        typer.echo(f"the first {LISTED_MAX:,} of {told.total:,}; --service shows fewer", err=True)


def _process(worker: ListedWorker) -> tuple[object, ...]:
    """Which process it is. Only a worker of ours says all of it."""
    return worker.host or "-", worker.pid or "-", worker.address or "-", worker.version or "-"


def _since(worker: ListedWorker, now: datetime) -> str:
    """When it registered, by the clock of this machine, which is the node's."""
    if worker.registered_s is None:
        return "-"
    return f"{now - timedelta(seconds=worker.registered_s):%Y-%m-%d %H:%M:%S}"


def _note(worker: ListedWorker) -> str:
    if worker.drain_why:
        return f"drained by {worker.drain_why}"
    return f"stuck for {worker.silent_s:.0f} s" if worker.silent_s else ""


def _drain(worker: _Worker, node: NodeConfiguration, reason: Reason) -> None:
    """Give a worker no more requests, in any dialect; it finishes what it holds.

    Run it on the machine of a node, as the user that runs the node. Once the worker holds nothing its process
    can be stopped and no request runs twice. The drain is this node's own and lasts until bstar workers
    resume, or until the worker's process or the node's ends. With the node that serves, a failover ends it.

    Exit codes: 0 drained; 1 refused: no such worker; 2 wrong usage or configuration; 4 not known: the node
    got it and is silent.

    Examples:

        bstar workers drain 1f4bc8d09e5a7723 --config configs/primary.yaml --reason "its host gets a new disk"
    """
    [state] = _order(node, DRAIN_WORKER, worker, reason)
    rest = "it holds nothing" if not state.in_flight else f"it holds {state.in_flight}: ask bstar workers ls"
    typer.echo(f"worker {worker} of {state.service} is drained, {rest}")


def _resume(worker: _Worker, node: NodeConfiguration, reason: Reason = "") -> None:
    """Let a drained worker work again.

    Exit codes: 0 it gets requests again; 1 refused: no such worker, or it is not drained; 2 wrong usage or
    configuration; 4 not known: the node got it and is silent.

    Examples:

        bstar workers resume 1f4bc8d09e5a7723 --config configs/primary.yaml
    """
    [state] = _order(node, RESUME_WORKER, worker, reason)
    typer.echo(f"worker {worker} of {state.service} gets requests again, {state.credit} at most")


def _order(node: NodeConfiguration, request: bytes, worker: str, reason: str) -> list[ListedWorker]:
    settings = settings_to_order(node, reason)
    return order(settings, request, WorkWish(worker, who(reason)), WorkersTold).workers


workers.command("ls")(grouped(_ls))
workers.command("drain")(grouped(_drain))
workers.command("resume")(grouped(_resume))
