"""``bstar promote``: let a backup serve that is alone since it started, when its primary is dead."""

import time
from typing import Annotated, Final

import typer

from bstar.settings import Settings
from bstar_cli import exits
from bstar_cli.node_control import node_at
from bstar_cli.options import NodeConfiguration, refuse
from bstar_cli.probe import probe

_ASK_AGAIN_S = 0.1

_LISTENS: Final = (
    "a process listens at {peer}, so the primary may live: restart it or end it, and mend the link. Only if "
    "that is not the primary (a proxy, another program): --force"
)
_UNREACHABLE: Final = (
    "{peer} cannot be reached ({why}), so nobody knows whether the primary lives and serves others. Make "
    "sure that it is off and stays off, then: --force"
)


def promote(
    node: NodeConfiguration,
    force: Annotated[
        bool, typer.Option("--force", help="You have made sure that the primary does not run.")
    ] = False,
) -> None:
    """Let a backup serve that has been alone since it started.

    A backup that starts alone never serves by itself, because the primary may serve where it cannot be
    heard. If the primary is dead, run this on the backup's machine, as the user that runs the backup. The
    node must not hear its primary; then the primary's state endpoint must refuse connections, which proves
    that no process listens there. Where it cannot be reached, --force says that you have made sure. With an
    arbiter the majority is needed as well, whatever you say. A primary that comes back stands by.

    Exit codes: 0 the backup serves; 1 refused, with the reason; 2 wrong usage or configuration.

    Examples:

        bstar promote --config configs/backup.yaml

        docker compose exec backup bstar promote --config /etc/bstar/compose-backup.yaml
    """
    is_nothing_given = node.config is None and not node.assignments
    refuse(is_nothing_given, "no configuration: name the backup's with --config FILE or BSTAR_CONFIG")
    settings = node.settings()
    refuse(
        settings.role != "backup",
        "role is primary: a primary that is alone serves with the next request and needs no promotion",
    )
    refusal = _ask(settings, is_forced=force)
    if refusal is not None:
        typer.echo(f"not promoted: {refusal}", err=True)
        raise typer.Exit(exits.FAILED)
    typer.echo(f"the backup of the pair {settings.pair} serves")


def _why_not(peer: str) -> str | None:
    """Why the primary may live; None if its endpoint refuses us."""
    found, why = probe(peer)
    return {
        "refuses": None,
        "listens": _LISTENS.format(peer=peer),
        "unreachable": _UNREACHABLE.format(peer=peer, why=why),
    }[found]


def _ask(settings: Settings, *, is_forced: bool) -> str | None:
    """Ask the node, then the primary's endpoint, then the node to serve; why it does not, None if it does."""
    from bstar_broker.operate import control  # noqa: PLC0415  # only now needed

    request = control.FORCE if is_forced else control.PROMOTE
    with node_at(settings) as answer_to:
        # The node first: if it hears its primary, what listens there needs no mending.
        answer = answer_to(control.QUESTION)
        if answer == control.MAY:
            refusal = None if is_forced else _why_not(settings.endpoints.peer_state)
            if refusal is not None:
                return refusal
            answer = answer_to(request)
        # A claim takes until the ballots of the dead primary have run out, and one question to the arbiter.
        until = time.monotonic() + 4 * settings.timing.failover_timeout_max_s + 1.0
        while answer == control.CLAIMING:
            if time.monotonic() > until:
                return (
                    "the node has no majority: neither its peer nor the arbiter confirms it. Start the "
                    "arbiter, or mend the link to it"
                )
            time.sleep(_ASK_AGAIN_S)
            answer = answer_to(request)
    return None if answer == control.SERVES else answer
