"""``bstar service``: an operator holds a service's requests back, lets them go, or ends what waits."""

from typing import Annotated

import typer

from bstar.settings import Settings
from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar_broker.operate.service_operations import (
    PAUSE_SERVICE,
    PURGE_SERVICE,
    RESUME_SERVICE,
    ServiceTold,
    ServiceWish,
)
from bstar_cli.node_control import who
from bstar_cli.options import NodeConfiguration, grouped, refuse
from bstar_cli.orders import Reason, order, settings_to_order
from bstar_cli.stored import seconds_of

service = typer.Typer(
    name="service",
    no_args_is_help=True,
    add_completion=False,
    help="Pause, resume or purge one service of a pair (docs/operations.md).",
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The service, as bstar status lists it.")]


@service.callback()
def _service() -> None:
    pass


def _pause(
    name: _Name,
    node: NodeConfiguration,
    reason: Reason,
    time: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="End by itself: seconds, or 30m, 2h; one day at most."),
    ] = None,
) -> None:
    """Hold a service's requests back: they wait in its queue, and workers get none.

    Run it on the machine of a node, as the user that runs the node. Workers finish what they hold. The pause
    is this node's own: pause the service on the other node as well, or a failover resumes it. It ends with
    its time, with bstar service resume, or with the node's process.

    Exit codes: 0 paused; 1 refused, and nothing has changed; 2 wrong usage or configuration; 4 not known: the
    node got it and is silent.

    Examples:

        bstar service pause price --config configs/primary.yaml --for 30m --reason "its database is ill"
    """
    for_s = 0.0 if time is None else seconds_of(time, "--for")
    refuse(time is not None and not 0 < for_s <= PAUSE_S_MAX, f"--for {time}: write more than 0, at most 24h")
    settings, told = _order(node, PAUSE_SERVICE, name, reason, for_s)
    until = f"for {time}" if time else "until bstar service resume"
    typer.echo(f"{name} is paused on the {settings.role} {until}: {told.queued} wait, {told.in_flight} go on")
    peer = "backup" if settings.role == "primary" else "primary"
    text = f"the {peer} has pauses of its own: give this order on its machine, too, or a failover resumes it"
    typer.echo(text, err=True)


def _resume(name: _Name, node: NodeConfiguration, reason: Reason = "") -> None:
    """End a pause of a service on this node; its workers get what waits.

    Exit codes: 0 resumed; 1 refused: it is not paused on this node; 2 wrong usage or configuration; 4 not
    known: the node does not answer.

    Examples:

        bstar service resume price --config configs/primary.yaml
    """
    settings, told = _order(node, RESUME_SERVICE, name, reason)
    typer.echo(f"{name} is resumed on the {settings.role}: {told.queued} wait, {told.in_flight} at workers")


def _purge(name: _Name, node: NodeConfiguration, reason: Reason) -> None:
    """End all requests that wait for a service; each caller gets an error and does not send it again.

    Run it on the machine of the node that serves. The callers hear that their request was not executed, or,
    if a worker was lost with it, that it may have been. Callers of plain Majordomo hear nothing: their
    timeout applies, and some send again. What workers hold goes on. Durable requests stay.

    Exit codes: 0 purged, with how many; 1 refused, and nothing has changed; 2 wrong usage or configuration;
    4 not known: the node got it and is silent.

    Examples:

        bstar service purge price --config configs/primary.yaml --reason "orders of a broken client"
    """
    _, told = _order(node, PURGE_SERVICE, name, reason)
    typer.echo(f"{name}: {told.purged} requests purged, {told.queued} durable ones wait on")


def _order(
    node: NodeConfiguration, request: bytes, name: str, reason: str, for_s: float = 0.0
) -> tuple[Settings, ServiceTold]:
    settings = settings_to_order(node, reason)
    return settings, order(settings, request, ServiceWish(name, who(reason), for_s), ServiceTold)


service.command("pause")(grouped(_pause))
service.command("resume")(grouped(_resume))
service.command("purge")(grouped(_purge))
