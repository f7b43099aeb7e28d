"""``bstar drain``: take a node out of the pair without losing a request, and put it back."""

import time
from typing import Annotated, Final

import msgspec
import typer

from bstar.settings import Settings
from bstar_broker.operate.control import UNHEARD_OF
from bstar_broker.operate.operations import DRAIN, DRAINED, REJOIN, DrainTold, DrainWish
from bstar_cli import exits
from bstar_cli.node_control import REASON_CHARS_MAX, NobodyError, control_of, who
from bstar_cli.options import NodeConfiguration, refuse

_ASK_AGAIN_S: Final = 0.05
_PROGRESS_S: Final = 1.0


def drain(
    node: NodeConfiguration,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; others see it in the status.")
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Put the node back into the pair.")] = False,
) -> None:
    """Take a node out of the pair: it gives the role up, finishes what it has, and stands by no more.

    Run it on the machine of that node, as the user that runs it. A node that serves moves the role first, as
    bstar switchover does, and refuses for the same reasons: a silent peer, a durable store that is not in
    sync, paused takeovers, a node that is stopping, workers that do not finish within timing.drain_timeout_s.
    Then it falls silent, and its peer goes on alone. The process goes on; --undo or its restart ends the
    drain. Progress goes to standard error.

    Exit codes: 0 the node is drained and nothing is left on it, or is back; 1 refused, and the node is as it
    was; 2 wrong usage or configuration; 4 not known: the node got it and is silent, so ask bstar status.

    Examples:

        bstar drain --config configs/primary.yaml --reason "new disk"

        bstar drain --config configs/primary.yaml --undo
    """
    refuse(len(reason) > REASON_CHARS_MAX, f"--reason: write {REASON_CHARS_MAX} characters at most")
    is_nothing_given = node.config is None and not node.assignments
    refuse(is_nothing_given, "no configuration: name the node's with --config FILE or BSTAR_CONFIG")
    settings = node.settings()
    try:
        told = _order(settings, REJOIN if undo else DRAIN, DrainWish(who(reason)))
    except NobodyError as error:
        begin = "not known whether the node is drained" if error.was_sent else "not drained"
        typer.echo(f"{begin}: {error}", err=True)
        raise typer.Exit(exits.UNKNOWN if error.was_sent else exits.FAILED) from error
    if told.phase != ("none" if undo else "drained"):
        typer.echo(f"not {'put back' if undo else 'drained'}: {told.refusal}", err=True)
        raise typer.Exit(exits.FAILED)
    does = "is back in the pair" if undo else "is drained: no request is left on it, and it stands by no more"
    typer.echo(f"the {settings.role} of the pair {settings.pair} {does}")


def _order(settings: Settings, request: bytes, wish: DrainWish) -> DrainTold:
    """Give the order, and wait for the end of a drain. Raises NobodyError."""
    shown_at = time.monotonic()
    with control_of(settings) as ask:
        answer = ask(request, msgspec.json.encode(wish))
        if answer == UNHEARD_OF:
            return DrainTold("refused", "the node is of a release that knows no drain")
        told = msgspec.json.decode(answer, type=DrainTold)
        while told.phase == "drains":
            if time.monotonic() >= shown_at:
                shown_at = time.monotonic() + _PROGRESS_S
                typer.echo(f"{told.in_flight} requests at workers, {told.queued} wait", err=True)
            time.sleep(_ASK_AGAIN_S)
            told = msgspec.json.decode(ask(DRAINED), type=DrainTold)
    return told
