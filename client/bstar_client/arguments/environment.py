"""Where a program connects that names no endpoints: one rule for programs and the ``bstar`` command.

    BSTAR_ENDPOINTS         the nodes, the primary first: A,B for a pair, A,B;C,D for two
    BSTAR_CLIENT_CONFIG     or a file that names the pairs (docs/fleet.md)
    (neither)               the pair of this machine
    BSTAR_KEY, BSTAR_SERVER_KEYS    the keys, if the nodes have keys

The variables are read when a client, a worker or an App begins, never at an import.
"""

import os
from typing import TypeAlias

import msgspec

from bstar.base.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar.fleet import Endpoints, Fleet
from bstar.security import Security

# None stays an error: a program that looks its endpoints up and finds none must not ask another pair.
Given: TypeAlias = Endpoints | msgspec.UnsetType
NOT_GIVEN = msgspec.UNSET

DEFAULT_ENDPOINTS = "tcp://127.0.0.1:5001,tcp://127.0.0.1:5002"


def or_environment(endpoints: Given, security: Security | None) -> tuple[Endpoints, Security | None]:
    """What a program gave; what the environment has if it gave no endpoints. A key that it gave is used."""
    if not isinstance(endpoints, msgspec.UnsetType):
        return endpoints, security
    return fleet_of_environment(), Security.from_environment() if security is None else security


def fleet_of_environment() -> Fleet:
    """The pairs that the environment names, otherwise the one of this machine."""
    file, text = os.environ.get("BSTAR_CLIENT_CONFIG"), os.environ.get("BSTAR_ENDPOINTS")
    if file and text:
        raise ConfigurationError(
            "BSTAR_CLIENT_CONFIG and BSTAR_ENDPOINTS both say where the nodes are: set one of them"
        )
    if file:
        from bstar.settings import load_fleet  # noqa: PLC0415 - YAML is for those who name a file

        return load_fleet(file)
    return fleet_of_text("BSTAR_ENDPOINTS", text or DEFAULT_ENDPOINTS)


def fleet_of_text(where: str, text: str) -> Fleet:
    """The pairs of ``A,B;C,D``. An error names the option or variable that has the text."""
    try:
        for part in text.split(";"):
            _check(where, part)
        return Fleet.of(text)
    except ConfigurationError as error:
        raise ConfigurationError(str(error) if where in str(error) else f"{where}: {error}") from error


def _check(where: str, text: str) -> None:
    """One pair's endpoints."""
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
