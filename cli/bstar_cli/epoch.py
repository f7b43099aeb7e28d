"""``bstar epoch``: the file with a node's epoch, read and repaired while the node does not run.

Epochs need no care: whoever believed a false one comes down by itself (docs/adr/0013-epochs-are-claims.md). A
reset is for a file that holds no number, and for people who want small numbers back after a worker lied.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from bstar.base.printable import printable
from bstar.errors import ConfigurationError
from bstar.pair.epoch_file import EpochFile
from bstar.star.epochs import is_of, next_epoch
from bstar.star.rules import Role
from bstar.wire.epochs import EPOCH_STEP_MAX
from bstar_cli import exits
from bstar_cli.options import NodeConfiguration, check_folder, grouped, refuse
from bstar_cli.probe import probe

_TEXT_CHARS_MAX: Final = 40

epoch = typer.Typer(
    name="epoch",
    no_args_is_help=True,
    add_completion=False,
    help="The file with the epoch of a node's last activation (docs/operations.md).",
)

_IN_USE: Final = "not reset: a process uses {folder}: stop the node, it keeps its epoch in memory"
_LISTENS: Final = (
    "not reset: a process listens at {peer}, so the peer may run, and this node would take its epoch again. "
    "If that is too high: stop the peer first. If only this file is damaged: --force"
)
_UNREACHABLE: Final = (
    "not reset: {peer} cannot be reached ({why}), so it is unknown whether the peer runs. Make sure that it "
    "is stopped and stays so, then: --force"
)
_UNKNOWN_PEER: Final = (
    "not reset: a directory does not tell where the peer is: name the node's configuration with --config, or "
    "make sure that the peer is stopped and say --force"
)
_NEXT_STEPS: Final = """\
If the file was damaged and the peer has the right epoch, start this node: it takes the peer's.
If the epoch was too high, do all of this before you start a node:
1. withdraw the key that named it (docs/security.md);
2. stop both nodes;
3. stop all native workers: each tells the highest epoch that it obeyed;
4. reset the file of the other node, too.
Then start the primary, the backup and the workers. Clients and the arbiter keep no epoch that counts."""


@dataclass(frozen=True, kw_only=True)
class StateFolder(NodeConfiguration):
    """Which node's file: its directory, or its configuration."""

    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The node's state_dir, instead of its configuration.")
    ] = None

    def open(self) -> tuple[EpochFile, str | None]:
        """The file, and the endpoint where the peer publishes its state, if the configuration tells.

        Raises ConfigurationError.
        """
        if self.folder is not None:
            refuse(self.config or self.assignments, "DIR and --config both name a file: give one of them")
            check_folder(self.folder)
            return EpochFile(self.folder), None
        refuse(
            self.config is None and not self.assignments,
            "no node: name its configuration with --config FILE or BSTAR_CONFIG, or its state_dir",
        )
        settings = self.settings()
        if settings.state_dir is None:
            raise ConfigurationError("state_dir is null: this node keeps no epoch, so each start begins at 0")
        return EpochFile(settings.state_dir), settings.endpoints.peer_state


def _show(
    node: StateFolder, as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False
) -> None:
    """Print the epoch of a node's last activation, and what it means. It changes nothing.

    Exit codes: 0 printed; 2 wrong usage or configuration, or the file holds no epoch.

    Examples:

        bstar epoch show --config configs/primary.yaml

        bstar epoch show /var/lib/bstar --json
    """
    file, _ = node.open()
    stored = file.read()
    following = {role.value: next_epoch(role, stored) for role in Role}
    taker = next((role.value for role in Role if stored and is_of(role, stored)), None)
    is_plausible = stored <= EPOCH_STEP_MAX
    if as_json:
        found = {"path": str(file.path), "epoch": stored, "taken_by": taker, "next": following}
        typer.echo(json.dumps({**found, "is_plausible": is_plausible}))
        return
    typer.echo(f"{file.path}: {stored}")
    if taker is None:
        typer.echo("this node was never active, or its file was removed or reset")
    else:
        typer.echo(f"the {taker} took it: the primary takes odd numbers, the backup even ones")
    then = ", ".join(f"the {role} {number}" for role, number in following.items())
    typer.echo(f"next: {then}; a higher number if the peer or a worker knows a higher one")
    if not is_plausible:
        typer.echo(
            f"too high: no pair gets above {EPOCH_STEP_MAX} by itself. A worker named it, or the file is "
            'damaged. The pair serves all the same. docs/operations.md, "Epochs that are too high", says how '
            "to find who named it and how to begin again at 0"
        )


def _reset(
    node: StateFolder,
    force: Annotated[
        bool, typer.Option("--force", help="You have made sure that the peer is stopped, or that it may run.")
    ] = False,
) -> None:
    """Set the epoch of a stopped node to 0.

    Both nodes must be stopped, because the one that runs would raise the epoch again. This node holds a lock
    on its directory while it runs. The peer's state endpoint must refuse connections, which proves that no
    process listens there. Where it cannot be reached, --force says that you have made sure. Run it as the
    user that runs the node.

    Exit codes: 0 reset; 1 refused, with the reason; 2 wrong usage or configuration.

    Examples:

        bstar epoch reset --config configs/primary.yaml

        bstar epoch reset /var/lib/bstar --force
    """
    file, peer = node.open()
    refusal = _write(file, peer, is_forced=force)
    if refusal is not None:
        typer.echo(refusal, err=True)
        raise typer.Exit(exits.FAILED)
    typer.echo(_NEXT_STEPS)


def _why_not(peer: str | None) -> str | None:
    """Why the peer may run; None if its endpoint refuses us."""
    if peer is None:
        return _UNKNOWN_PEER
    found, why = probe(peer)
    return {
        "refuses": None,
        "listens": _LISTENS.format(peer=peer),
        "unreachable": _UNREACHABLE.format(peer=peer, why=why),
    }[found]


def _write(file: EpochFile, peer: str | None, *, is_forced: bool) -> str | None:
    """Store 0 while no node can have the file; why it did not, None if it did.

    This node is looked at before its peer: --force, which the texts about the peer name, does not help there.
    """
    folder = file.path.parent
    try:
        if not file.lock():
            return _IN_USE.format(folder=folder)
        if not is_forced and (refusal := _why_not(peer)) is not None:
            return refusal
        try:
            before = printable(file.path.read_bytes().strip(), _TEXT_CHARS_MAX)
        except FileNotFoundError:
            before = "no file"
        file.save(0)
    except OSError as error:
        return f"not reset: {folder}: {error.strerror or error}"
    finally:
        file.unlock()
    typer.echo(f"{file.path}: 0; before it was: {before}")
    return None


epoch.command("show")(grouped(_show))
epoch.command("reset")(grouped(_reset))
