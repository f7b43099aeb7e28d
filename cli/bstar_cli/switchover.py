"""``bstar switchover``: move the role to the other node, on purpose and without losing a request."""

import time
from typing import Annotated, Final

import msgspec
import typer

from bstar.settings import RoleName, Settings
from bstar_broker.operate.control import UNHEARD_OF
from bstar_broker.operate.operations import SWITCH_OVER, SWITCHOVER, SwitchoverTold, SwitchoverWish
from bstar_cli import exits
from bstar_cli.node_control import NobodyError, control_of
from bstar_cli.options import NodeConfiguration, refuse

_ASK_AGAIN_S: Final = 0.05


class _UnknownError(Exception):
    """The node got the request, and its answer is lost."""


def switchover(
    node: NodeConfiguration,
    to: Annotated[
        RoleName | None, typer.Option("--to", help="Which node is to serve. Otherwise the other one.")
    ] = None,
    if_healthy: Annotated[
        bool, typer.Option("--if-healthy", help="Refuse if the node knows of any trouble of the pair.")
    ] = False,
) -> None:
    """Move the role to the other node without losing a request.

    Run it on the machine of the node that serves, as the user that runs it. The node lets workers finish
    what they hold, while new requests wait. Then it gives the role to its peer, and what waits goes there. If
    workers do not finish within timing.drain_timeout_s, the switchover is called off and the node serves on.

    It is refused if the peer is silent, is drained or does not stand by, if the peer's durable store is not
    in sync, while takeovers are paused (bstar pause), and while the node is stopping. With --if-healthy also
    if the arbiter does not answer, the node cannot store its epoch, is short of descriptors, or cannot read a
    file of its security.

    Exit codes: 0 the other node serves; 1 refused or called off, with the reason, and the role is where it
    was; 2 wrong usage or configuration; 4 not known: the node got it and is silent, so ask bstar status.

    Examples:

        bstar switchover --config configs/primary.yaml

        bstar switchover --config configs/backup.yaml --to primary --if-healthy
    """
    is_nothing_given = node.config is None and not node.assignments
    refuse(is_nothing_given, "no configuration: name the node's with --config FILE or BSTAR_CONFIG")
    settings = node.settings()
    try:
        told = _move(settings, SwitchoverWish(to or "", if_healthy))
    except _UnknownError as error:
        typer.echo(f"not known whether the role has moved: {error}. Ask bstar status", err=True)
        raise typer.Exit(exits.UNKNOWN) from error
    except NobodyError as error:
        told = SwitchoverTold("refused", str(error))
    if told.phase != "moved":
        typer.echo(f"not moved: {told.refusal}", err=True)
        raise typer.Exit(exits.FAILED)
    typer.echo(
        f"the {told.to} of the pair {settings.pair} serves, epoch {told.epoch}: the handover took "
        f"{told.handover_s:.3f} s, and no request was dispatched for {told.waited_s:.3f} s"
    )


def _move(settings: Settings, wish: SwitchoverWish) -> SwitchoverTold:
    """Ask for the switchover, and wait for its end. NobodyError if no node got the request."""
    timing = settings.timing
    until = time.monotonic() + timing.drain_timeout_s + 4 * timing.failover_timeout_max_s
    with control_of(settings) as ask:
        try:
            answer = ask(SWITCH_OVER, msgspec.json.encode(wish))
            if answer == UNHEARD_OF:
                return SwitchoverTold("refused", "the node is of a release that knows no switchover")
            told = _told(answer)
            while told.phase in ("drains", "released"):
                if time.monotonic() > until:
                    raise _UnknownError("the peer has not said that it serves")
                time.sleep(_ASK_AGAIN_S)
                told = _told(ask(SWITCHOVER))
        except NobodyError as error:
            if error.was_sent:
                raise _UnknownError(str(error)) from error
            raise
    return told


def _told(answer: str) -> SwitchoverTold:
    return msgspec.json.decode(answer, type=SwitchoverTold)
