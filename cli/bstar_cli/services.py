"""``bstar services``: what the workers of a pair say of their services, and what limits these have.

Every node knows what workers say, active or not. Of several answers the one counts whose node knows of most
workers. Limits are those of the node that serves.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NoReturn, TypeVar

import msgspec
import typer

from bstar.base.printable import counted, lines, printable
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError, NoActiveNodeError, RemoteProtocolError
from bstar.security import Security
from bstar.wire.description import LimitsInUse, Offer, Schema, ServiceSummary
from bstar.wire.mmi import NOT_FOUND, OK, PREFIX, Service
from bstar_cli import exits
from bstar_cli.options import Nodes, grouped, refuse
from bstar_cli.schemas import UncheckableError, misfits, mixture, outline, versions_text
from bstar_cli.terminal import cell, json_line, print_tables, table
from bstar_client.arguments.codecs import codec_of
from bstar_client.calls.status import NodeAnswer, ask_nodes

T = TypeVar("T", ServiceSummary, Offer)

_TIMEOUT_S: Final = 2.0
# Looking for a schema must not take the time of the call itself.
_CHECK_TIMEOUT_S: Final = 2.0

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

Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Refuse a JSON body that does not fit the service's schema."),
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


def check_body(
    service: str, frames: list[bytes], headers: Mapping[str, str] | None, nodes: Nodes, timeout_s: float
) -> None:
    """ConfigurationError if all workers that have told their schema would decline this body."""
    timeout_s = min(timeout_s, _CHECK_TIMEOUT_S)
    # A management request is answered by the broker, and MessagePack is checked by the worker.
    if service.startswith(PREFIX.decode()) or codec_of(headers or {}) != "json":
        return
    offers = offers_of(nodes.fleet().pair_of(service).endpoints, service, timeout_s, nodes.security())
    try:
        found = misfits(offers, frames)
    except UncheckableError as error:
        typer.echo(f"bstar: the body is not checked: {error}", err=True)
        return
    wrong = [(offer, why) for offer, why in found if why is not None]
    if not wrong:
        return
    offer, why = wrong[0]
    name = printable(f"{service} {offer.version}".strip())
    if len(wrong) < len(found):
        typer.echo(f"bstar: workers of {name} will decline this body: {why}", err=True)
        return
    raise ConfigurationError(
        f"the body does not fit service {name}: {why}; nothing was sent (--no-check sends it)"
    )


def _ls(nodes: Nodes, as_json: _Json = False, timeout: _Timeout = _TIMEOUT_S) -> None:
    """List the services with their versions, workers, limits and descriptions.

    Two versions of one service at once, as during a rolling upgrade, are flagged. A version "none" is that of
    workers that name none: those of plain Majordomo, of earlier releases, and those without version=.
    Limits are those that the node that serves has in services of its configuration, with what is used of
    each; BOUND BY says what holds requests back now.

    Exit codes: 0 listed; 2 wrong usage, or the nodes do not let this key ask; 3 no node of a pair answers: of
    several pairs the services of the others are listed.

    Examples:

        bstar services ls

        bstar services ls --endpoints tcp://10.0.0.1:5001,tcp://10.0.0.2:5001

        bstar services ls --json | jq -r 'select(.is_mixed).service'
    """
    fleet, security = nodes.fleet(), nodes.security()
    rows: list[tuple[ServiceSummary, str]] = []
    dead: list[NoActiveNodeError] = []
    for number, pair in enumerate(fleet.pairs, 1):
        title = pair.name or f"#{number}"
        try:
            rows += [(each, title) for each in _summaries(pair.endpoints, timeout, security)]
        except NoActiveNodeError as error:
            dead.append(error)
    if len(dead) < len(fleet.pairs):
        _list(sorted(rows, key=lambda row: (row[0].service, row[1])), len(fleet.pairs) > 1, as_json)
    if dead:
        raise dead[0]


def _list(rows: Sequence[tuple[ServiceSummary, str]], is_fleet: bool, as_json: bool) -> None:
    """Print services with their pairs."""
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
    limits = [each.limits for each, _ in rows if each.limits is not None]
    is_bound = any(each.bound for each in limits)
    for heading in (*(["LIMITS"] if limits else []), *(["BOUND BY"] if is_bound else []), "DESCRIPTION"):
        shown.add_column(heading)
    for each, title in rows:
        mixed = "yellow" if len(each.versions) > 1 else ""
        version = cell(versions_text(each.versions), style=mixed)
        of_pair = [cell(title)] if is_fleet else []
        used = [cell("-" if each.limits is None else _limits_text(each.limits))] if limits else []
        bound = [cell("-" if each.limits is None else each.limits.bound or "-")] if is_bound else []
        shown.add_row(
            cell(each.service), *of_pair, version, cell(each.workers), *used, *bound,
            cell(each.description or "-"),
        )  # fmt: skip
    print_tables(shown)
    for each, _ in rows:
        if text := mixture(each.versions):
            typer.echo(f"{printable(each.service)}: {text}", err=True)


def _show(name: _Name, nodes: Nodes, as_json: _Json = False, timeout: _Timeout = _TIMEOUT_S) -> None:
    """Show what the workers of a service say of it (version, description, what bodies look like), and its
    limits.

    A field with a question mark may be left out; after = stands what it is then. --json prints what the
    workers say; limits are in bstar services ls --json.

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
    if (limits := _limits_of(name, nodes, timeout)) is not None:
        typer.echo(f"limits: {_limits_text(limits)}")
        if limits.bound:
            typer.echo(f"bound by {printable(limits.bound)}")
    for each in offers:
        title = f"version {each.version}" if each.version else "no version"
        workers = counted(each.workers, "worker")
        if each == Offer(workers=each.workers):
            typer.echo(
                f"\nnothing is known of {workers}: a handler without types, docstring and version, plain "
                "Majordomo, or an earlier release"
            )
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


def _summaries(endpoints: Sequence[str], timeout_s: float, security: Security | None) -> list[ServiceSummary]:
    """The services of a pair, as the node knows them that knows of most workers, with the limits of the node
    that serves.
    """
    answers = ask_nodes(endpoints, Service.DESCRIPTIONS.value, timeout_s, security)
    listings = _listings(answers, list[ServiceSummary])
    limits = {each.service: each.limits for listed in listings for each in listed if each.limits is not None}
    return [msgspec.structs.replace(each, limits=limits.get(each.service)) for each in _fullest(listings)]


def _limits_of(name: str, nodes: Nodes, timeout_s: float) -> LimitsInUse | None:
    label = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    listed = _summaries(nodes.fleet().pair_of(name).endpoints, timeout_s, nodes.security())
    return next((each.limits for each in listed if each.service == label), None)


def _limits_text(limits: LimitsInUse) -> str:
    """Each limit, with what is used of it: ``running 10 of 10, queue 37 of 100, 5 a second``."""
    words = (
        (limits.running_max, f"running {limits.running} of {limits.running_max}"),
        (limits.queue_length_max, f"queue {limits.queued} of {limits.queue_length_max}"),
        (limits.requests_per_s, f"{limits.requests_per_s or 0:g} a second"),
        (limits.expires_s, f"{limits.expires_s or 0:g} s in the queue"),
    )
    return ", ".join(text for limit, text in words if limit is not None)


def _best(answers: Sequence[NodeAnswer], kind: type[list[T]]) -> list[T]:
    """The answer of the node that knows of most workers; errors as of ``_listings``."""
    return _fullest(_listings(answers, kind))


def _fullest(listings: Sequence[list[T]]) -> list[T]:
    """The one with most workers."""
    return max(listings, key=lambda listed: sum(each.workers for each in listed))


def _listings(answers: Sequence[NodeAnswer], kind: type[list[T]]) -> list[list[T]]:
    """What the nodes say that can say it.

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
            except UNDECODABLE as error:
                errors.append(f"{answer.endpoint}: the answer cannot be read: {error}")
        else:
            errors.append(f"{answer.endpoint}: a broker of an earlier release, which knows no descriptions")
    if found:
        return found
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
