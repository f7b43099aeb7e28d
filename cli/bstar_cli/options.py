"""Options that several commands share, and what is made of them."""

import os
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from bstar.errors import ConfigurationError
from bstar.settings import parse_endpoint

__all__ = ["DEFAULT_ENDPOINTS", "Dialect", "DialectOption", "EndpointsOption", "endpoints_of", "parse_set"]

DEFAULT_ENDPOINTS = "tcp://127.0.0.1:5001,tcp://127.0.0.1:5002"

Dialect = Literal["native", "mdp02"]

EndpointsOption = Annotated[
    str | None,
    typer.Option(
        "--endpoints",
        "-e",
        metavar="A,B",
        help="Where the nodes are, the primary first, separated by commas. "
        f"Otherwise BSTAR_ENDPOINTS, otherwise {DEFAULT_ENDPOINTS}.",
        show_default=False,
    ),
]
DialectOption = Annotated[
    Dialect, typer.Option("--dialect", help="native, or mdp02 for any broker of plain Majordomo 0.2.")
]


def endpoints_of(option: str | None) -> list[str]:
    """The endpoints: of the option, else of BSTAR_ENDPOINTS, else the default."""
    where, text = "--endpoints", option
    if text is None:
        where, text = "BSTAR_ENDPOINTS", os.environ.get("BSTAR_ENDPOINTS") or DEFAULT_ENDPOINTS
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
    return endpoints


def parse_set(assignments: Sequence[str]) -> dict[str, object]:
    """``key=value`` texts as overrides by dotted path."""
    options: dict[str, object] = {}
    for assignment in assignments:
        path, separator, value = assignment.partition("=")
        if not separator or not path:
            raise ConfigurationError(f"--set {assignment}: write --set KEY=VALUE, such as log.level=debug")
        options[path.strip()] = value
    return options
