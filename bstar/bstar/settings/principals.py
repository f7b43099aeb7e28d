"""The principals file of a node: who may connect, and as what.

    principals:
      bstar-primary: {keys: ['…'], peer: true}
      bstar-backup:  {keys: ['…'], peer: true}
      shop:          {keys: ['…'], calls: [price, "stock.*"]}
      price-worker:  {keys: ['…'], offers: [price]}
      ops:           {keys: ['…'], operator: true, orders: true}

One file for both nodes of a pair and for its arbiter. They read it again when it changes.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import yaml

from bstar.errors import ConfigurationError
from bstar.security.files import WatchedFiles
from bstar.security.keys import check_name
from bstar.security.principals import Principal, Principals, principal_of
from bstar.settings.document import Problems, kind, locator, read_document, shown

LIST_HEAD = """\
# Who may connect, and as what (docs/security.md). The same file for both nodes; they read it again when it
# changes. Roles: peer: true, arbiter: true, operator: true, orders: true, offers: [SERVICE], calls:
# [SERVICE]; SERVICE may end with * and then stands for all that begin so. Bounds, for all connections of an
# entry to one node: connections, messages_per_s, requests_per_s, bytes_per_s, outstanding. tokens: digests
# of tokens for HTTP.
principals:
"""
"""The first lines of a list that ``entry_line`` continues."""


def entry_line(
    name: str, public: str, roles: Iterable[str], proof: Literal["keys", "tokens"] = "keys"
) -> str:
    """One entry in one line. ``roles`` are peer, arbiter, operator, orders, ``offers:A,B`` or ``calls:A,B``.
    ``public`` is a public key, or with ``proof`` tokens the digest of a token.
    """
    said = []
    for role in roles:
        word, is_listed, texts = role.partition(":")
        listed = ", ".join(_quoted(text.strip()) for text in texts.split(",") if text.strip())
        said.append(f"{word}: [{listed}]" if is_listed else f"{word}: true")
    written = name if isinstance(yaml.safe_load(name), str) else f"'{name}'"
    return f"  {written}: {{{proof}: ['{public}'], {', '.join(said)}}}\n"


def _quoted(text: str) -> str:
    """A text in YAML, on one line. ConfigurationError for one that is no line of a list."""
    if not text.isprintable():
        raise ConfigurationError(
            f"{text!r} is no name of a service: it has characters that cannot be printed"
        )
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def load_principals(path: str | os.PathLike[str]) -> Principals:
    """Read a principals file. Raises ConfigurationError naming all that is wrong, with its lines."""
    problems = Problems()
    source = os.fspath(path)
    document, lines = read_document(Path(path), problems)
    where = locator(source, lines)
    for key in document:
        if key != "principals":
            problems.problem(where(str(key)), str(key), "unknown key; there is only principals")
    entries = document.get("principals")
    if not isinstance(entries, Mapping):
        problems.problem(
            where("principals"), "principals", f"must hold names with their keys, not {shown(entries)}"
        )
        entries = {}
    found: list[Principal] = []
    written = [path for path in lines if path.startswith("principals.")]
    for number, (name, entry) in enumerate(entries.items()):
        place = f"principals.{name}"
        if not isinstance(name, str):
            place = written[number] if number < len(written) else place
            word = place.removeprefix("principals.")
            text = f"YAML reads this name as {kind(name)}: put it in quotes, such as '{word}'"
            problems.problem(where(place), place, text)
            continue
        try:
            check_name(name)
            found.append(principal_of(name, entry))
        except ConfigurationError as error:
            problems.problem(where(place), place, str(error))
    problems.raise_all()
    try:
        return Principals(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def watch_principals(path: str | os.PathLike[str]) -> WatchedFiles[Principals]:
    """The file, read again when it changes. Raises ConfigurationError if it cannot be used."""
    return WatchedFiles("the principals file", [path], lambda: load_principals(path))
