"""Groups of options that several commands share, and what is made of them.

A group is a dataclass whose fields are options. A command that takes a group has all of them (``grouped``).
"""

import functools
import gc
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
import typer

from bstar.base.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar.fleet import Fleet
from bstar.security import Security
from bstar.security.trust import KEY_VARIABLE, SERVERS_VARIABLE
from bstar_client.arguments.environment import DEFAULT_ENDPOINTS, fleet_of_environment, fleet_of_text
from bstar_client.arguments.settings import Dialect

# What few commands need is imported where it is used: on a busy machine each costs bstar status a tenth of a
# second.
if TYPE_CHECKING:
    from bstar.net.http_endpoint import HttpPlace
    from bstar.settings import Settings
    from bstar_client import JournalSettings

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")

DialectOption = Annotated[
    Dialect, typer.Option("--dialect", help="native, or mdp01 or mdp02 for any broker of plain Majordomo.")
]


KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="Your secret key, for nodes with keys. Otherwise BSTAR_KEY.",
        show_default=False,
    ),
]
ServerKeys = Annotated[
    str | None,
    typer.Option(
        "--server-keys",
        metavar="FILE,…",
        help="The public keys of the nodes. Otherwise BSTAR_SERVER_KEYS.",
        show_default=False,
    ),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as Typer takes it: in the place of each group of options its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            only = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=only))

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, kind in groups.items():
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        command(**options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks there
    run.__doc__ = _flowing(command.__doc__)
    return run


def collect_garbage() -> None:
    """Collect cycles from now on, but never look through what the imports have made."""
    gc.freeze()
    gc.enable()


def _flowing(text: str | None) -> str:
    """The help text with each paragraph on one line: Typer keeps line ends, and terminals are narrow."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs)


def seconds_of(text: str, option: str) -> float:
    """A time on the command line: seconds, or a number with s, m, h or d."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{option} {text}: write seconds, or a number with s, m, h or d, as in 10m")
    return float(match[1]) * _UNITS[match[2]]


def refuse(condition: object, text: str) -> None:
    """ConfigurationError with ``text`` if the options are wrong."""
    if condition:
        raise ConfigurationError(text)


def check_folder(path: Path, text: str = "") -> None:
    """ConfigurationError with ``text`` unless this is a directory, with the reason if it cannot be seen."""
    try:
        is_there = path.is_dir()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be looked at: {error.strerror}") from error
    refuse(not is_there, text or f"{path} is no directory")


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Where the nodes of all pairs are."""

    endpoints: Annotated[
        str | None,
        typer.Option(
            "--endpoints",
            "-e",
            metavar="A,B[;C,D]",
            help="Where the nodes are, the primary first, separated by commas; semicolons part pairs. "
            f"Otherwise BSTAR_ENDPOINTS, otherwise {DEFAULT_ENDPOINTS}.",
            show_default=False,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="A client's configuration, which names the pairs. Otherwise BSTAR_CLIENT_CONFIG.",
            show_default=False,
        ),
    ] = None

    key_file: KeyFile = None
    server_keys: ServerKeys = None

    def fleet(self) -> Fleet:
        """The pairs. Raises ConfigurationError."""
        return fleet_of(self.endpoints, self.config)

    def security(self) -> Security | None:
        """What to connect with; None without a key. Raises ConfigurationError."""
        return Security.from_environment({**os.environ, **_keys(self.key_file, self.server_keys)})

    def export_security(self) -> None:
        """Say it in the environment, for the processes that this one starts. Raises ConfigurationError."""
        os.environ.update(_keys(self.key_file, self.server_keys))
        self.security()


def _keys(key_file: Path | None, server_keys: str | None) -> dict[str, str]:
    given = {KEY_VARIABLE: key_file and str(key_file), SERVERS_VARIABLE: server_keys}
    return {name: text for name, text in given.items() if text}


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The node that gets an order over the network, if any."""

    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoints",
            "-e",
            metavar="ENDPOINT",
            help="Give the order over the network to the node there (docs/security.md).",
            show_default=False,
        ),
    ] = None
    key_file: KeyFile = None
    server_keys: ServerKeys = None
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch",
            metavar="N",
            min=0,
            help="With -e: the order is for this epoch of the pair. Otherwise for the present one.",
            show_default=False,
        ),
    ] = None

    def place(self) -> tuple[str, Security]:
        """The node's endpoint, and what to connect with. Raises ConfigurationError."""
        fleet = fleet_of(self.endpoint, None)
        refuse(len(fleet.endpoints) != 1, "--endpoints: an order goes to one node: name that one")
        security = Security.from_environment({**os.environ, **_keys(self.key_file, self.server_keys)})
        text = "--endpoints: an order from elsewhere needs your key and the node's: --key-file, --server-keys"
        refuse(security is None, text)
        assert security is not None
        return fleet.endpoints[0], security


@dataclass(frozen=True, kw_only=True)
class KeptJournal:
    """Where a client or a worker keeps a journal, if anywhere."""

    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="DIR", help="Keep a journal in this directory, which is made when missing."
        ),
    ] = None
    journal_pair: Annotated[
        str | None,
        typer.Option(
            "--journal-pair",
            metavar="PAIR",
            help="What the nodes call their pair, for the journal. Otherwise bstar.",
            show_default=False,
        ),
    ] = None
    journal_name: Annotated[
        str | None,
        typer.Option(
            "--journal-name",
            metavar="NAME",
            help="What this process is called in the journal. Otherwise what it is, and the machine's name.",
            show_default=False,
        ),
    ] = None

    def settings(self) -> "JournalSettings | None":
        """What clients and workers take. Raises ConfigurationError."""
        if self.journal is None:
            for option, value in (("pair", self.journal_pair), ("name", self.journal_name)):
                text = f"--journal-{option} says something about the journal: add --journal DIR"
                refuse(value is not None, text)
            return None
        from bstar_client import JournalSettings  # noqa: PLC0415 - see above

        settings = JournalSettings(str(self.journal), name=self.journal_name or "")
        pair = self.journal_pair
        return settings if pair is None else msgspec.structs.replace(settings, pair=pair)


@dataclass(frozen=True, kw_only=True)
class ServedHttp:
    """Where a worker or an arbiter serves its health and metrics, if anywhere."""

    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="ADDRESS:PORT", help="Serve /healthz, /readyz and /metrics there (loopback)."
        ),
    ] = None
    http_allow_remote: Annotated[
        bool, typer.Option("--http-allow-remote", help="Others may reach the address.")
    ] = False

    def place(self) -> "HttpPlace | None":
        """What workers and arbiters take. Raises ConfigurationError."""
        if self.http is None:
            text = "--http-allow-remote says something about --http: add --http ADDRESS:PORT"
            refuse(self.http_allow_remote, text)
            return None
        from bstar.net.http_endpoint import HttpPlace  # noqa: PLC0415 - see above

        return HttpPlace.of(HttpPlace(bind=self.http, allow_remote=self.http_allow_remote))


@dataclass(frozen=True, kw_only=True)
class NodeConfiguration:
    """A node's configuration, with keys overridden."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar="BSTAR_CONFIG", metavar="FILE", help="The node's configuration."
        ),
    ] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as log.level=debug."),
    ] = None

    def settings(self) -> "Settings":
        """Raises ConfigurationError naming all that is wrong."""
        from bstar.settings import load  # noqa: PLC0415 - see above

        return load(self.config, options=parse_set(self.assignments or ()))


def check_listens(
    option: str, bind: str, key: Path | None, principals: Path | None, *, is_insecure: bool
) -> None:
    """ConfigurationError if strangers reach this address without a key."""
    try:
        is_loopback = parse_endpoint(bind, bind=True).is_loopback
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    refuse((key is None) != (principals is None), "--key-file and --principals belong together: give both")
    refuse(
        not (is_loopback or is_insecure or key),
        f"{option} {bind}: others can reach this address, and without --key-file there is no encryption and "
        "no authentication: make keys (bstar keys new), bind 127.0.0.1, or say --insecure if the network "
        "itself keeps strangers out",
    )


def fleet_of(endpoints: str | None, config: Path | None) -> Fleet:
    """The pairs: of one of the options, else those of a program that names none."""
    both = "both say where the nodes are"
    refuse(endpoints is not None and config, f"--endpoints and --config {both}: give one of them")
    if config is not None:
        from bstar.settings import load_fleet  # noqa: PLC0415 - see above

        return load_fleet(config)
    return fleet_of_environment() if endpoints is None else fleet_of_text("--endpoints", endpoints)


def parse_set(assignments: Sequence[str]) -> dict[str, object]:
    """``key=value`` texts as overrides by dotted path."""
    options: dict[str, object] = {}
    for assignment in assignments:
        path, separator, value = assignment.partition("=")
        is_wrong = not separator or not path
        refuse(is_wrong, f"--set {assignment}: write --set KEY=VALUE, such as log.level=debug")
        options[path.strip()] = value
    return options
