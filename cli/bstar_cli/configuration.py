"""``bstar check-config`` and ``bstar sample-config``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bstar.errors import ConfigurationError
from bstar.settings import check_pair, load, load_fleet, sample_client_configuration, sample_configuration


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
    if len(loaded) == 2:
        check_pair(*loaded)
    for file, settings in zip(files, loaded, strict=True):
        typer.echo(f"{file}: right, the {settings.role} of the pair {settings.pair}")
    if len(loaded) == 2:
        typer.echo("the two are a pair")


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
