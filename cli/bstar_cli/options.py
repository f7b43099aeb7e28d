"""Options that several commands share, and what is made of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from bstar.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar.fleet import Fleet
from bstar.settings import load_fleet
from bstar_client import JournalSettings

__all__ = [
    "DEFAULT_ENDPOINTS",
    "ClientConfigOption",
    "Dialect",
    "DialectOption",
    "EndpointsOption",
    "JournalNameOption",
    "JournalOption",
    "JournalPairOption",
    "fleet_of",
    "journal_of",
    "parse_set",
]

DEFAULT_ENDPOINTS = "tcp://127.0.0.1:5001,tcp://127.0.0.1:5002"

Dialect = Literal["native", "mdp02"]

EndpointsOption = Annotated[
    str | None,
    typer.Option(
        "--endpoints",
        "-e",
        metavar="A,B[;C,D]",
        help="Where the nodes are, the primary first, separated by commas; semicolons part pairs. "
        f"Otherwise BSTAR_ENDPOINTS, otherwise {DEFAULT_ENDPOINTS}.",
        show_default=False,
    ),
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="A client's configuration, which names the pairs. Otherwise BSTAR_CLIENT_CONFIG.",
        show_default=False,
    ),
]
DialectOption = Annotated[
    Dialect, typer.Option("--dialect", help="native, or mdp02 for any broker of plain Majordomo 0.2.")
]

JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal", metavar="DIR", help="Keep a journal in this directory, which is made when missing."
    ),
]
JournalPairOption = Annotated[
    str | None,
    typer.Option(
        "--journal-pair",
        metavar="PAIR",
        help="What the nodes call their pair, for the journal. Otherwise bstar.",
        show_default=False,
    ),
]
JournalNameOption = Annotated[
    str | None,
    typer.Option(
        "--journal-name",
        metavar="NAME",
        help="What this process is called in the journal. Otherwise what it is, and the machine's name.",
        show_default=False,
    ),
]


def journal_of(directory: Path | None, pair: str | None, name: str | None) -> JournalSettings | None:
    """Where to keep a journal, if anywhere."""
    if directory is None:
        for option, value in (("--journal-pair", pair), ("--journal-name", name)):
            if value is not None:
                raise ConfigurationError(f"{option} says something about the journal: add --journal DIR")
        return None
    settings = JournalSettings(str(directory), name=name or "")
    return settings if pair is None else msgspec.structs.replace(settings, pair=pair)


def fleet_of(endpoints: str | None, config: Path | None) -> Fleet:
    """The pairs: of one of the options, else of one of the variables, else the default."""
    if endpoints is not None and config is not None:
        raise ConfigurationError("--endpoints and --config both say where the nodes are: give one of them")
    if config is not None:
        return load_fleet(config)
    file, text = os.environ.get("BSTAR_CLIENT_CONFIG"), os.environ.get("BSTAR_ENDPOINTS")
    if endpoints is None and file:
        if text:
            raise ConfigurationError(
                "BSTAR_CLIENT_CONFIG and BSTAR_ENDPOINTS both say where the nodes are: set one of them"
            )
        return load_fleet(file)
    where, text = (
        ("BSTAR_ENDPOINTS", text or DEFAULT_ENDPOINTS) if endpoints is None else ("--endpoints", endpoints)
    )
    try:
        for part in text.split(";"):
            _check(where, part)
        return Fleet.of(text)
    except ConfigurationError as error:
        raise ConfigurationError(str(error) if where in str(error) else f"{where}: {error}") from error


def _check(where: str, text: str) -> None:
    """One pair's endpoints; what is wrong with them is told with the place where they stand."""
    endpoints = [part.strip() for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ConfigurationError(f"{where} names no endpoint: write tcp://ADDRESS:PORT,tcp://ADDRESS:PORT")
    if len(set(endpoints)) != len(endpoints):
        raise ConfigurationError(f"{where} names an endpoint twice: {text}")
    for endpoint in endpoints:
        try:
            parse_endpoint(endpoint, bind=False)
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}") from error


def parse_set(assignments: Sequence[str]) -> dict[str, object]:
    """``key=value`` texts as overrides by dotted path."""
    options: dict[str, object] = {}
    for assignment in assignments:
        path, separator, value = assignment.partition("=")
        if not separator or not path:
            raise ConfigurationError(f"--set {assignment}: write --set KEY=VALUE, such as log.level=debug")
        options[path.strip()] = value
    return options
