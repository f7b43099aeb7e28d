"""An operator's order to a node on this machine, and the end of the command if it is refused."""

from typing import Annotated, Protocol, TypeVar

import msgspec
import typer

from bstar.settings import Settings
from bstar_broker.operate.control import UNHEARD_OF
from bstar_cli import exits
from bstar_cli.node_control import REASON_CHARS_MAX, NobodyError, control_of
from bstar_cli.options import NodeConfiguration, refuse

Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it goes to the status, the log and the journal.")
]


class _Told(Protocol):
    @property
    def refusal(self) -> str:
        """Why nothing has changed, or ""."""
        ...


Told = TypeVar("Told", bound=_Told)


def settings_to_order(node: NodeConfiguration, reason: str = "") -> Settings:
    """The configuration of the node that gets the order; the command ends with 2 if it is not given."""
    refuse(len(reason) > REASON_CHARS_MAX, f"--reason: write {REASON_CHARS_MAX} characters at most")
    is_nothing_given = node.config is None and not node.assignments
    refuse(is_nothing_given, "no configuration: name the node's with --config FILE or BSTAR_CONFIG")
    return node.settings()


def order(settings: Settings, request: bytes, wish: msgspec.Struct, kind: type[Told]) -> Told:
    """Give the order; what the node tells. The command ends with 1 if it is refused, 4 if that is unknown."""
    try:
        with control_of(settings) as ask:
            answer = ask(request, msgspec.json.encode(wish))
    except NobodyError as error:
        typer.echo(f"{'not known' if error.was_sent else 'refused'}: {error}", err=True)
        raise typer.Exit(exits.UNKNOWN if error.was_sent else exits.FAILED) from error
    refusal = "the node is of a release that knows no such order"
    if answer != UNHEARD_OF:
        told = msgspec.json.decode(answer, type=kind)
        if not told.refusal:
            return told
        refusal = told.refusal
    typer.echo(f"refused: {refusal}", err=True)
    raise typer.Exit(exits.FAILED)
