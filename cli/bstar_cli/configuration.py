"""``bstar check-config`` and ``bstar sample-config``."""

from pathlib import Path
from typing import Annotated

import typer

from bstar.errors import ConfigurationError
from bstar.settings import RoleName, check_pair, load, sample_configuration

__all__ = ["check_config", "sample_config"]


def check_config(
    files: Annotated[list[Path], typer.Argument(metavar="FILE [FILE]", help="One node's, or both nodes'.")],
) -> None:
    """Check a node's configuration, or two and whether they are a pair.

    Variables of the environment (BSTAR_…) override the files here as they would for serve.

    Exit codes: 0 right; 2 wrong, with all that is wrong on stderr.

    Examples:

        bstar check-config primary.yaml

        bstar check-config primary.yaml backup.yaml
    """
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
    role: Annotated[RoleName, typer.Option("--role", help="Which node's.")] = "primary",
) -> None:
    """Print a complete configuration with every key explained.

    Examples:

        bstar sample-config --role primary > primary.yaml

        bstar sample-config --role backup > backup.yaml
    """
    typer.echo(sample_configuration(role), nl=False)
