"""``bstar check-config`` and ``bstar sample-config``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from bstar.errors import ConfigurationError
from bstar.net.curve import NodeSecurity
from bstar.security.zap import is_peer
from bstar.settings import (
    Settings,
    check_pair,
    load,
    load_fleet,
    node_warnings,
    pair_warnings,
    sample_client_configuration,
    sample_configuration,
)
from bstar.settings.principals import load_principals
from bstar.settings.services import overlaps


def check_config(
    files: Annotated[list[Path], typer.Argument(metavar="FILE [FILE]", help="One node's, or both nodes'.")],
    client: Annotated[
        bool, typer.Option("--client", help="The files configure clients and workers, not nodes.")
    ] = False,
) -> None:
    """Check a node's configuration, or two and whether they are a pair.

    Variables of the environment (BSTAR_…) override the files here as they would for serve.

    Exit codes: 0 right; 2 wrong, with all that is wrong on stderr.

    Examples:

        bstar check-config primary.yaml

        bstar check-config primary.yaml backup.yaml

        bstar check-config --client client.yaml
    """
    if client:
        for file in files:
            pairs = load_fleet(file).pairs
            typer.echo(f"{file}: right, {len(pairs)} pair{'s' * (len(pairs) > 1)}")
        return
    if len(files) > 2:
        raise ConfigurationError(f"one file or two, not {len(files)}: a pair has two nodes")
    loaded = [load(file) for file in files]
    keys = [
        _check_keys(file, settings, is_alone=len(files) == 1)
        for file, settings in zip(files, loaded, strict=True)
    ]
    warnings = [warning for settings in loaded for warning in node_warnings(settings)]
    if len(loaded) == 2:
        check_pair(*loaded)
        _check_trust(loaded, keys)
        warnings += pair_warnings(*loaded)
    for warning in dict.fromkeys(warnings):
        typer.echo(f"warning: {warning}", err=True)
    for file, settings in zip(files, loaded, strict=True):
        typer.echo(f"{file}: right, the {settings.role} of the pair {settings.pair}")
        for inner, outer in overlaps(settings.services):
            typer.echo(f"{file}: services: what matches {inner} has its limits alone, not those of {outer}")
    if len(loaded) == 2:
        typer.echo("the two are a pair")


def _check_keys(file: Path, settings: Settings, *, is_alone: bool) -> NodeSecurity | None:
    """Read a node's key and its list. The key of a node of another machine need not be here: None."""
    security = settings.security
    if security.key is None or security.principals is None:
        return None
    if is_alone or Path(security.key).exists():
        return NodeSecurity.of(security)
    load_principals(security.principals)
    typer.echo(f"{file}: not checked: {security.key} is not on this machine", err=True)
    return None


def _check_trust(pair: Sequence[Settings], keys: Sequence[NodeSecurity | None]) -> None:
    """Each node's list must have the other's key, or they do not hear each other."""
    for settings, own, other in zip(pair, keys, reversed(keys), strict=True):
        if own is None or other is None or other.key.public.decode() in own.principals.keys_of(is_peer):
            continue
        raise ConfigurationError(
            f"security.principals: the list of the {settings.role}, {settings.security.principals}, lacks "
            f"the other node's key {other.key.name} with peer: true: give both nodes the same list"
        )


def sample_config(
    role: Annotated[
        Literal["primary", "backup", "client"],
        typer.Option("--role", help="Which node's, or that of clients and workers."),
    ] = "primary",
) -> None:
    """Print a complete configuration with every key explained.

    Examples:

        bstar sample-config --role primary > primary.yaml

        bstar sample-config --role backup > backup.yaml

        bstar sample-config --role client > client.yaml
    """
    typer.echo(sample_client_configuration() if role == "client" else sample_configuration(role), nl=False)
