"""``bstar keys``: the CURVE keys of nodes, workers and clients, and the list of who may connect."""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml

from bstar.errors import ConfigurationError
from bstar.security.keys import check_name, new_key, read_public_key, write_key
from bstar.security.principals import Principal, digest_of, principal_of
from bstar.settings.principals import LIST_HEAD, entry_line, load_principals
from bstar_cli.options import grouped, refuse

keys = typer.Typer(
    name="keys",
    no_args_is_help=True,
    add_completion=False,
    help="CURVE keys, and the list of who may connect (docs/security.md).",
)

LIST_NAME = "principals.yaml"
_TOKEN_BYTES = 32
# Stands in a line that is read for its roles alone.
_ANY_KEY = "0" * 40
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of keys and of the list.")]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What the owners of new keys may do."""

    peer: Annotated[bool, typer.Option("--peer", help="They are nodes of the pair.")] = False
    arbiter: Annotated[bool, typer.Option("--arbiter", help="They are arbiters.")] = False
    operator: Annotated[bool, typer.Option("--operator", help="They may look at everything.")] = False
    orders: Annotated[
        bool, typer.Option("--orders", help="They may give nodes orders (security.orders: true).")
    ] = False
    offers: Annotated[
        str | None, typer.Option("--offers", metavar="SERVICE,…", help="They are workers of these services.")
    ] = None
    calls: Annotated[
        str | None, typer.Option("--calls", metavar="SERVICE,…", help="They are clients of these services.")
    ] = None

    @property
    def words(self) -> list[str]:
        """As ``entry_line`` takes them."""
        given = {"peer": self.peer, "arbiter": self.arbiter, "operator": self.operator, "orders": self.orders}
        services = (("offers", self.offers), ("calls", self.calls))
        return [
            *(role for role, is_given in given.items() if is_given),
            *(f"{word}:{texts}" for word, texts in services if texts),
        ]


@keys.command()
@grouped
def new(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Whose keys: a node, a worker, a client.")
    ],
    given: Roles,
    out: Out = Path("keys"),
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Leave those as they are that have a key and are listed.")
    ] = False,
) -> None:
    """Make a key for each name, and add it to DIR/principals.yaml with the roles that you give.

    NAME.key is secret (mode 0600): it goes to its owner alone. NAME.pub and the list are not. No file is
    replaced. Without a role the list is not touched. With --if-missing the command may be repeated. It
    changes no entry: if one has other roles, edit its line in the list.

    Exit codes: 0 made; 2 wrong usage, a file is there already, or an entry has other roles: nothing was made.

    Examples:

        bstar keys new primary backup --peer

        bstar keys new price-worker --offers price

        bstar keys new shop --calls 'price,stock.*' --out /etc/bstar/keys
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    refuse(twice, f"{', '.join(twice)}: stands twice")
    roles, listed = given.words, out / LIST_NAME
    entries = load_principals(listed).all if roles and os.path.lexists(listed) else ()
    known = {entry.name for entry in entries} & set(names)
    if if_missing:
        for entry in entries:
            if entry.name in known:
                _compare(entry, roles, listed)
        names = [name for name in names if not _is_made(name, out, is_listed=name in known or not roles)]
        known &= set(names)
    refuse(known, f"{listed} lists {', '.join(sorted(known))} already: bstar keys rotate changes a key")
    if not names:
        return
    paths = [out / f"{name}{suffix}" for name in names for suffix in (".key", ".pub")]
    there = ", ".join(str(path) for path in paths if os.path.lexists(path))
    refuse(there, f"{there}: there already, so nothing was made: use another name or folder, or remove that")
    made = [new_key(name) for name in names]
    lines = [entry_line(key.name, key.public.decode(), roles) for key in made]
    if roles:
        _read(lines)
    for key in made:
        secret, public = write_key(key, out)
        typer.echo(f"{secret} (secret, for {key.name} alone), {public}")
    if roles:
        _append(listed, lines)
        typer.echo(f"{listed} lists {', '.join(names)} as {', '.join(roles)}")
    if not roles:
        text = (
            f"not listed: no node admits {', '.join(names)} before an entry of {listed} has these public keys"
        )
        typer.echo(text, err=True)
    for name in names if given.peer else ():
        path = out / f"{name}.key"
        typer.echo(f"\n# in the configuration of {name}:\nsecurity:\n  key: {path}\n  principals: {listed}")


@keys.command()
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token.")],
    *,
    calls: Annotated[
        str, typer.Option("--calls", metavar="SERVICE,…", help="What its owner may call over HTTP.")
    ],
    out: Out = Path("keys"),
) -> None:
    """Print a new token for HTTP callers, and add its owner to DIR/principals.yaml (docs/http.md).

    The list holds the token's SHA-256, and nothing else holds the token: give it to its owner. For a second
    one, while the first is replaced, write the digest of both into the entry's tokens by hand.

    Exit codes: 0 made; 2 wrong usage, or the list has an entry of this name.

    Examples:

        bstar keys token shop-web --calls 'price,stock.*'
    """
    check_name(name)
    listed = out / LIST_NAME
    entries = load_principals(listed).all if os.path.lexists(listed) else ()
    refuse(any(entry.name == name for entry in entries), f"{listed} lists {name} already")
    made = secrets.token_urlsafe(_TOKEN_BYTES)
    line = entry_line(name, digest_of(made), [f"calls:{calls}"], "tokens")
    _read([line])
    _append(listed, [line])
    typer.echo(f"{listed} lists {name}; its token follows", err=True)
    typer.echo(made)


@keys.command()
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Files .key or .pub, or a principals file.")
    ],
) -> None:
    """Print names, public keys and roles; never a secret key.

    Exit codes: 0 printed; 2 a file holds no keys.

    Examples:

        bstar keys show keys/shop.key

        bstar keys show keys/principals.yaml
    """
    for file in files:
        if file.suffix in (".yaml", ".yml"):
            for entry in load_principals(file).all:
                typer.echo(f"{entry.name}: {_roles_of(entry)}")
                for public in entry.keys:
                    typer.echo(f"  {public}")
                for digest in entry.tokens:
                    typer.echo(f"  token {digest}")
        else:
            name, key = read_public_key(file)
            typer.echo(f"{name}: {key.decode()}")


@keys.command()
def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key.")], out: Out = Path("keys")
) -> None:
    """Make a second key for NAME, and list it beside the first: both are good until the first is retired.

    The new files are NAME.next.key and NAME.next.pub. Nodes take the new key some seconds after the list
    has reached them. Give the new key to its owner, restart that, then: bstar keys retire NAME.

    For a node's key: clients and workers must trust both keys before the node is restarted with the new one.

    Exit codes: 0 made; 2 NAME is not listed, or has two keys already.

    Examples:

        bstar keys rotate shop --out /etc/bstar/keys
    """
    listed = out / LIST_NAME
    old = _keys_of(listed, name)
    refuse(
        len(old) > 1,
        f"{name} has {len(old)} keys in {listed}: end that rotation first. Its owner must use the new key, "
        f"{out / name}.next.key, before bstar keys retire {name} --out {out} ends the old one",
    )
    key = new_key(name)
    secret, public = write_key(key, out, file_name=f"{name}.next")
    _replace_keys(listed, name, [*old, key.public.decode()])
    entry = next(each for each in load_principals(listed).all if each.name == name)
    trust = (
        f"restart every process that connects to {name} with both {name}.pub and {public.name} among its "
        "server keys, "
        if entry.is_peer or entry.is_arbiter
        else ""
    )
    typer.echo(
        f"{secret} (secret, for {name} alone), {public}\n{listed} lists both keys of {name}. Take it to both "
        f"nodes, {trust}take the new key to its owner, restart that, then: bstar keys retire {name} "
        f"--out {out}"
    )


@keys.command()
def retire(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose old key.")], out: Out = Path("keys")
) -> None:
    """End a rotation: take the first key of NAME off the list, and let the new files have its names.

    Whoever still uses the old key is refused from then on, on open connections, too.

    Exit codes: 0 done; 2 NAME has no second key, or its files are missing.

    Examples:

        bstar keys retire shop --out /etc/bstar/keys
    """
    listed = out / LIST_NAME
    old = _keys_of(listed, name)
    files = [(out / f"{name}.next{suffix}", out / f"{name}{suffix}") for suffix in (".key", ".pub")]
    # One that was killed after the list was written goes on. The .pub is renamed last.
    is_begun = len(old) == 1 and files[1][0].exists() and old == [read_public_key(files[1][0])[1].decode()]
    refuse(
        len(old) < 2 and not is_begun,
        f"{name} has one key in {listed}: bstar keys rotate {name} makes the second",
    )
    missing = [str(new) for new, _ in files if not (is_begun or new.exists())]
    refuse(missing, f"{' and '.join(missing)}: missing, so nothing was changed; bstar keys rotate made them")
    if not is_begun:
        _replace_keys(listed, name, old[1:])
    for new, former in files:
        if new.exists():
            new.replace(former)
    typer.echo(
        f"{listed} lists the new key of {name} alone. Take it to both nodes. The files have their old names: "
        f"who names {files[0][0].name} or {files[1][0].name} there must name {files[0][1].name} or "
        f"{files[1][1].name} before its next start"
    )


def _is_made(name: str, out: Path, *, is_listed: bool) -> bool:
    """Say it if the key of this name needs not be made."""
    path = out / f"{name}.key"
    if is_listed and os.path.lexists(path):
        typer.echo(f"{path} is there, and stays as it is")
        return True
    return False


def _compare(entry: Principal, roles: list[str], listed: Path) -> None:
    """Raise ConfigurationError if ``new`` would write other roles into a line of this name."""
    [asked] = _read([entry_line(entry.name, _ANY_KEY, roles)])
    has, wanted = _roles_of(entry), _roles_of(asked)
    refuse(
        has != wanted,
        f"{listed} lists {entry.name} with {has}, and you say {wanted}. bstar keys new changes no entry: "
        f"edit the line of {entry.name} there, or say what it has",
    )


def _roles_of(entry: Principal) -> str:
    """What its owner may do, in one line; the order of services does not matter."""
    said = [word for word in entry.roles if word not in ("offers", "calls")]
    services = (("offers", entry.offers.texts), ("calls", entry.calls.texts))
    said += [f"{word} {', '.join(sorted(set(texts)))}" for word, texts in services if texts]
    return "; ".join(said)


def _read(lines: list[str]) -> list[Principal]:
    """The entries of these lines. ConfigurationError if the list could not be read with them in it."""
    return [principal_of(str(name), entry) for name, entry in yaml.safe_load("".join(lines)).items()]


def _append(listed: Path, lines: list[str]) -> None:
    try:
        text = listed.read_text(encoding="utf-8") if listed.exists() else LIST_HEAD
    except OSError as error:
        raise ConfigurationError(f"{listed}: cannot be read: {error.strerror}") from error
    _write_list(listed, text + "\n" * (not text.endswith("\n")) + "".join(lines))


def _write_list(listed: Path, text: str) -> None:
    """Nodes read the list: they find the old one or the new one, also after a crash or on a full disk."""
    new = listed.with_name(f"{listed.name}.new")
    try:
        listed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(listed)
    except OSError as error:
        raise ConfigurationError(f"{listed}: cannot be written: {error.strerror}") from error


def _keys_of(listed: Path, name: str) -> list[str]:
    found = [entry for entry in load_principals(listed).all if entry.name == name]
    refuse(not found, f"{listed} lists no {name}")
    return list(found[0].keys)


def _replace_keys(listed: Path, name: str, public: list[str]) -> None:
    text = listed.read_text(encoding="utf-8")
    entry = re.compile(
        rf"^(\s+'?{re.escape(name)}'?:\s*\{{.*?keys:\s*\[)[^'\]]*(?:'[^']*'[^'\]]*)*(\])", re.MULTILINE
    )
    listing = ", ".join(f"'{key}'" for key in public)
    text, count = entry.subn(lambda found: f"{found[1]}{listing}{found[2]}", text)
    refuse(
        count != 1,
        f"{listed}: the entry of {name} is not in one line as bstar keys new writes it: put these keys there "
        f"yourself: {listing}",
    )
    _write_list(listed, text)
