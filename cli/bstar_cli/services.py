"""``bstar services``: what the workers of a pair say of their services.

Every node knows it, active or not. Of several answers the one counts whose node knows of most workers.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NoReturn, TypeVar

import msgspec
import typer

from bstar.base.printable import counted, printable
from bstar.errors import ConfigurationError, NoActiveNodeError, RemoteProtocolError
from bstar.security import Security
from bstar.wire.description import Offer, Schema, ServiceSummary
from bstar.wire.mmi import NOT_FOUND, OK, Service
from bstar_cli import exits
from bstar_cli.options import Nodes, grouped, refuse
from bstar_cli.schemas import mixture, outline, versions_text
from bstar_cli.terminal import cell, json_line, lines, print_tables, table
from bstar_client.calls.status import NodeAnswer, ask_nodes

T = TypeVar("T", ServiceSummary, Offer)

_TIMEOUT_S: Final = 2.0

services = typer.Typer(
    name="services",
    no_args_is_help=True,
    add_completion=False,
    help="What services say of themselves: versions, descriptions, schemas (docs/clients.md).",
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The service.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON; of a listing one object per line.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the nodes of a pair.")
]


def offers_of(
    endpoints: Sequence[str], service: str, timeout_s: float, security: Security | None
) -> list[Offer]:
    """How workers describe a service, as the first node knows that knows any; empty if no node does."""
    answers = ask_nodes(
        endpoints,
        Service.DESCRIPTIONS.value,
        timeout_s,
        security,
        body=service.encode("utf-8", "surrogateescape"),
        is_enough=lambda body: len(body) == 2 and body[1] != b"[]",
    )
    try:
        return _best(answers, list[Offer])
    except (NoActiveNodeError, RemoteProtocolError, ConfigurationError):
        return []


def _ls(nodes: Nodes, as_json: _Json = False, timeout: _Timeout = _TIMEOUT_S) -> None:
    """List the services with their versions, workers and descriptions.

    Two versions of one service at once, as during a rolling upgrade, are flagged. A version "none" is that of
    workers that name none: those of plain Majordomo, of earlier releases, and those without version=.

    Exit codes: 0 listed; 2 wrong usage, or the nodes do not let this key ask; 3 no node answers.

    Examples:

        bstar services ls

        bstar services ls --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar services ls --json | jq -r 'select(.is_mixed).service'
    """
    fleet, security = nodes.fleet(), nodes.security()
    rows = []
    for number, pair in enumerate(fleet.pairs, 1):
        answers = ask_nodes(pair.endpoints, Service.DESCRIPTIONS.value, timeout, security)
        title = pair.name or f"#{number}"
        rows += [(each, title) for each in _best(answers, list[ServiceSummary])]
    rows.sort(key=lambda row: (row[0].service, row[1]))
    is_fleet = len(fleet.pairs) > 1
    if as_json:
        for each, title in rows:
            place = {"pair": title} if is_fleet else {}
            flags = {"is_mixed": len(each.versions) > 1}
            typer.echo(json_line({**msgspec.structs.asdict(each), **place, **flags}))
        return
    if not rows:
        typer.echo("no service is known", err=True)
        return
    shown = table(("SERVICE", *(["PAIR"] if is_fleet else []), "VERSION"), ("WORKERS",))
    shown.add_column("DESCRIPTION")
    for each, title in rows:
        mixed = "yellow" if len(each.versions) > 1 else ""
        version = cell(versions_text(each.versions), style=mixed)
        of_pair = [cell(title)] if is_fleet else []
        shown.add_row(
            cell(each.service), *of_pair, version, cell(each.workers), cell(each.description or "-")
        )
    print_tables(shown)
    for each, _ in rows:
        if text := mixture(each.versions):
            typer.echo(f"{printable(each.service)}: {text}", err=True)


def _show(name: _Name, nodes: Nodes, as_json: _Json = False, timeout: _Timeout = _TIMEOUT_S) -> None:
    """Show what the workers of a service say of it: version, description, and what bodies look like.

    A field with a question mark may be left out; after = stands what it is then.

    Exit codes: 0 shown; 1 no node knows the service; 2 wrong usage, or the nodes do not let this key ask;
    3 no node answers.

    Examples:

        bstar services show price

        bstar services show price --json | jq '.[].version'
    """
    offers = _asked(name, nodes, timeout)
    if as_json:
        typer.echo(json_line(offers))
        return
    versions: dict[str, int] = {}
    for each in offers:
        versions[each.version] = versions.get(each.version, 0) + each.workers
    typer.echo(f"{printable(name)}: {counted(sum(versions.values()), 'worker')}")
    for each in offers:
        title = f"version {each.version}" if each.version else "no version"
        workers = counted(each.workers, "worker")
        if each == Offer(workers=each.workers):
            typer.echo(f"\nnothing is known of {workers}: of plain Majordomo or of an earlier release")
            continue
        about = f": {each.description}" if each.description else ""
        typer.echo(lines(f"\n{title}, {workers}{about}"))
        for what in ("request", "part", "reply"):
            schema: Schema | None = getattr(each, what)
            if schema is not None:
                typer.echo(f"  {what:7}  {outline(schema)}")
    if text := mixture(versions):
        typer.echo(text, err=True)


def _schema(
    name: _Name,
    nodes: Nodes,
    of: Annotated[
        str, typer.Option("--of", metavar="BODY", help="Of which body: request, reply, or part of a stream.")
    ] = "request",
    version: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Of which version.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
    timeout: _Timeout = _TIMEOUT_S,
) -> None:
    """Print the JSON schema of the bodies of a service, for an editor, a validator or a code generator.

    Exit codes: 0 printed; 1 no node knows the service, or none of its workers has such a schema; 2 wrong
    usage, or versions have different schemas and none was named; 3 no node answers.

    Examples:

        bstar services schema price

        bstar services schema price --of reply --version 1.5 > price.json
    """
    refuse(of not in ("request", "reply", "part"), f"--of {of}: write request, reply or part")
    offers = _asked(name, nodes, timeout)
    if version is not None:
        offers = [each for each in offers if each.version == version]
    found: dict[bytes, str] = {}
    for each in offers:
        schema: Schema | None = getattr(each, of)
        if schema is not None:
            found.setdefault(msgspec.json.encode(schema), each.version or "none")
    if not found:
        at = "" if version is None else f" of version {printable(version)}"
        _end(f"no worker of {printable(name)}{at} has a schema of its {of}")
    texts = f"{len(found)} versions with different schemas ({', '.join(found.values())})"
    refuse(len(found) > 1, f"{printable(name)} has {texts}: name one with --version")
    [encoded] = found
    line = json_line(msgspec.json.decode(encoded))
    typer.echo(line if as_json else msgspec.json.format(line, indent=2))


def _asked(name: str, nodes: Nodes, timeout_s: float) -> list[Offer]:
    """What the workers of a service say. typer.Exit if no node knows it."""
    pair = nodes.fleet().pair_of(name)
    wanted = name.encode("utf-8", "surrogateescape")
    answers = ask_nodes(pair.endpoints, Service.DESCRIPTIONS.value, timeout_s, nodes.security(), body=wanted)
    offers = _best(answers, list[Offer])
    if not offers:
        _end(f"no worker offers service {printable(name)}: bstar services ls lists what there is")
    return offers


def _best(answers: Sequence[NodeAnswer], kind: type[list[T]]) -> list[T]:
    """The answer of the node that knows of most workers.

    NoActiveNodeError if no node answers, ConfigurationError if none lets this key ask, RemoteProtocolError if
    none can say it.
    """
    found: list[list[T]] = []
    errors: list[str] = []
    for answer in answers:
        body = answer.body
        if body is None:
            errors.append(f"{answer.endpoint}: {answer.error}")
        elif body[:1] == [NOT_FOUND]:
            found.append([])
        elif body[:1] == [OK] and len(body) == 2:
            try:
                found.append(msgspec.json.decode(body[1], type=kind))
            except msgspec.DecodeError as error:
                errors.append(f"{answer.endpoint}: the answer cannot be read: {error}")
        else:
            errors.append(f"{answer.endpoint}: a broker of an earlier release, which knows no descriptions")
    if found:
        return max(found, key=lambda listed: sum(each.workers for each in listed))
    text = "; ".join(errors)
    if any(answer.is_denied for answer in answers):
        raise ConfigurationError(text)
    if any(answer.body is not None for answer in answers):
        raise RemoteProtocolError("mmi", text)
    raise NoActiveNodeError(f"no node answers: {text}")


def _end(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(exits.FAILED)


for _verb, _command in (("ls", _ls), ("show", _show), ("schema", _schema)):
    services.command(_verb)(grouped(_command))
