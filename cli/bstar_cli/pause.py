"""``bstar pause`` and ``bstar resume``: an operator holds the role where it is, for a while."""

import time
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
import typer

from bstar.settings import Settings
from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar_broker.operate.control import UNHEARD_OF
from bstar_broker.operate.operations import PAUSE, PAUSED, RESUME, PauseTold, PauseWish
from bstar_cli import exits
from bstar_cli.node_control import REASON_CHARS_MAX, NobodyError, control_of, who
from bstar_cli.options import NodeConfiguration, refuse
from bstar_cli.stored import seconds_of

_ASK_AGAIN_S: Final = 0.05


def pause(
    node: NodeConfiguration,
    time_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For so long: seconds, or 30m, 2h; one day at most.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; others see it in the status.")
    ],
) -> None:
    """Pause takeovers: while it lasts, no node serves because its peer is silent.

    Run it on the machine of either node, as the user that runs the node; the peer hears of it at once. The
    node that serves goes on. A node that stops or starts again says so itself, and the other one serves as
    always; bstar promote still works. The role does not follow clients that are cut off. A restart of a node
    does not end the pause, and it ends by itself.

    While it lasts nobody takes over from a node that dies or is cut off. bstar status shows the pause, with
    your name and the reason.

    Exit codes: 0 both nodes know it; 1 refused, or the peer has not heard of it, which is said; 2 wrong usage
    or configuration; 4 not known: the node got it and is silent.

    Examples:

        bstar pause --config configs/primary.yaml --for 30m --reason "new switch in rack 4"
    """
    for_s = seconds_of(time_, "--for")
    refuse(not 0 < for_s <= PAUSE_S_MAX, f"--for {time_}: write more than 0 and at most 24h")
    refuse(len(reason) > REASON_CHARS_MAX, f"--reason: write {REASON_CHARS_MAX} characters at most")
    settings, told = _order(node, PAUSE, PauseWish(who(reason), for_s))
    end = datetime.now().astimezone() + timedelta(seconds=told.for_s)
    typer.echo(f"takeovers of the pair {settings.pair} are paused until {end:%Y-%m-%d %H:%M:%S %Z}")
    _check_peer(told, "pause: it may take over")


def resume(
    node: NodeConfiguration,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it goes to the log and the journal.")
    ] = "",
) -> None:
    """End a pause of takeovers before its time (bstar pause).

    Run it on the machine of either node, as the user that runs the node; the peer hears of it at once.

    Exit codes: 0 both nodes know it; 1 takeovers are not paused, or the peer has not heard of it, which is
    said; 2 wrong usage or configuration; 4 not known: the node got it and is silent.

    Examples:

        bstar resume --config configs/primary.yaml
    """
    refuse(len(reason) > REASON_CHARS_MAX, f"--reason: write {REASON_CHARS_MAX} characters at most")
    settings, told = _order(node, RESUME, PauseWish(who(reason)))
    typer.echo(f"takeovers of the pair {settings.pair} are resumed")
    _check_peer(told, "end of the pause: it goes on there until its time is over, or it hears of it")


def _order(node: NodeConfiguration, request: bytes, wish: PauseWish) -> tuple[Settings, PauseTold]:
    """Give the order; wait until the peer knows it, or for two failover timeouts."""
    is_nothing_given = node.config is None and not node.assignments
    refuse(is_nothing_given, "no configuration: name the node's with --config FILE or BSTAR_CONFIG")
    settings = node.settings()
    until = time.monotonic() + 2 * settings.timing.failover_timeout_max_s
    try:
        with control_of(settings) as ask:
            answer = ask(request, msgspec.json.encode(wish))
            if answer == UNHEARD_OF:
                told = PauseTold(0.0, False, "the node is of a release that knows no pause")
            else:
                told = msgspec.json.decode(answer, type=PauseTold)
            while not told.refusal and not told.is_shared and time.monotonic() < until:
                time.sleep(_ASK_AGAIN_S)
                told = msgspec.json.decode(ask(PAUSED), type=PauseTold)
    except NobodyError as error:
        typer.echo(f"{'not known' if error.was_sent else 'refused'}: {error}", err=True)
        raise typer.Exit(exits.UNKNOWN if error.was_sent else exits.FAILED) from error
    if told.refusal:
        typer.echo(f"refused: {told.refusal}", err=True)
        raise typer.Exit(exits.FAILED)
    return settings, told


def _check_peer(told: PauseTold, what: str) -> None:
    if not told.is_shared:
        typer.echo(f"the peer has not heard of the {what}", err=True)
        raise typer.Exit(exits.FAILED)
