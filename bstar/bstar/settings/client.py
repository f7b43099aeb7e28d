"""The configuration of clients and workers: the pairs of a fleet and the services pinned to one of them.

    pairs:
      east: [tcp://10.0.0.1:5001, tcp://10.0.0.2:5001]
      west: [tcp://10.0.1.1:5001, tcp://10.0.1.2:5001]
    pins:
      billing: east

One file for all clients and workers, since they must agree. ``load_fleet`` reads it; ``HAClient`` and
``Worker`` take what it returns. An error names its line, as in a node's configuration. Pairs may
also be a list of lists, without names.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bstar.base.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar.fleet import Fleet, Pair
from bstar.settings.document import Problems, locator, read_document, shown

_KEYS = ("pairs", "pins")

_SAMPLE = """\
# bstar: where the brokers are, for clients and workers, as printed by: bstar sample-config --role client.
# One file for all of them: a worker must be where clients look for it. Every key is here.

# The pairs by name, each with the endpoints of its nodes, the primary's first. With several pairs each
# service belongs to one of them, which clients and workers compute from the names (docs/fleet.md): a node
# may move to another machine, but a pair with another name gets other services. Name a pair as its nodes do
# (their key pair); journals bear the name, too. 1 to 64 letters, digits, '.', '_' and '-'.
pairs:
  bstar: [tcp://127.0.0.1:5001, tcp://127.0.0.1:5002]

# Services that belong to a certain pair, by its name, whatever is computed; a service that ends with *
# stands for all that begin so, the longest beginning wins. Such as {billing: bstar, "eu.*": bstar}.
pins: {}
"""


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """Read a client's configuration. Raises ConfigurationError naming all that is wrong."""
    problems = Problems()
    source = os.fspath(path)
    document, lines = read_document(Path(path), problems)
    where = locator(source, lines)
    if "pairs" not in document and {"role", "endpoints"} & document.keys():
        raise ConfigurationError(
            f"{source} is a node's configuration, and this one asks the pair as clients do: name a client's "
            "(bstar sample-config --role client), or the nodes with --endpoints"
        )
    for key in document:
        if key not in _KEYS:
            problems.problem(where(str(key)), str(key), "unknown key; there are pairs and pins")
    pairs = _pairs(document.get("pairs"), problems, where)
    pins = document.get("pins") or {}
    if not isinstance(pins, Mapping):
        problems.problem(where("pins"), "pins", f"must hold services with their pairs, not {shown(pins)}")
        pins = {}
    for service, target in pins.items():
        if not isinstance(service, str) or not isinstance(target, str):
            path_of = f"pins.{service}"
            problems.problem(where(path_of), path_of, f"{shown(target)} is no pair's name")
    problems.raise_all()
    try:
        return Fleet(pairs, pins=pins)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def sample_client_configuration() -> str:
    """``configs/client.yaml``: the pair of the sample configurations, with every key explained."""
    return _SAMPLE


def _pairs(listed: object, problems: Problems, where: Callable[[str], str]) -> list[Pair]:
    if listed is None:
        problems.problem(where("pairs"), "pairs", "is missing; it must hold names with endpoints of nodes")
        return []
    if isinstance(listed, Mapping):
        named: list[tuple[str | None, object]] = [(str(name), nodes) for name, nodes in listed.items()]
    elif isinstance(listed, list):
        named = [(None, nodes) for nodes in listed]
    else:
        problems.problem(where("pairs"), "pairs", f"must hold names with endpoints, not {shown(listed)}")
        return []
    pairs = []
    for number, (name, nodes) in enumerate(named):
        path = f"pairs.{number if name is None else name}"
        if not isinstance(nodes, list):
            problems.problem(
                where(path), path, f"{shown(nodes)} is no list of endpoints, the primary's first"
            )
            continue
        for endpoint in nodes:
            try:
                parse_endpoint(endpoint if isinstance(endpoint, str) else shown(endpoint), bind=False)
            except ValueError as error:
                problems.problem(where(path), path, str(error))
        pairs.append(Pair(tuple(map(str, nodes)), name))
    return pairs
