"""``bstar call``: one request, its reply on standard output; or one to each worker of a service."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from msgspec import structs

from bstar.base.printable import printable
from bstar.errors import CallError, RefusedError
from bstar_cli.frames import BODY_HELP, frames_of, print_frames
from bstar_cli.options import DialectOption, KeptJournal, Nodes, refuse
from bstar_cli.services import Check, check_body
from bstar_cli.terminal import data_of, error_fields, json_line
from bstar_client import CallFailed, HAClient, Reply
from bstar_client.arguments.json_frames import json_frame


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """How replies are printed."""

    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes as they are, without a newline anywhere.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each reply.")] = False

    def reply(self, reply: Reply, seconds: float, *, is_alone: bool = False) -> None:
        """Print one; ``is_alone``: neither PARTIALs nor other replies come with it."""
        if self.as_json:
            typer.echo(_as_json(reply, seconds))
        else:
            print_frames(reply.frames, is_raw=self.raw, is_alone=is_alone)

    def of_worker(self, worker: str, outcome: Reply | CallFailed) -> None:
        """Print what one worker of several answered, on a line."""
        if isinstance(outcome, Reply):
            fields, text = _fields(outcome), " ".join(map(printable, outcome.frames))
        else:
            error = outcome.error
            assert isinstance(error, CallError), "nobody closes the client meanwhile"
            fields, text = error_fields(error), f"failed: {error}{data_of(error)}"
        if self.as_json:
            text = json_line({"worker": worker, **fields, "seconds": round(outcome.elapsed_s, 6)})
        typer.echo(text if self.as_json else f"{worker} {text}")

    def error(self, error: CallError, seconds: float) -> None:
        """Print it as JSON if all is; otherwise the end of the command tells it."""
        if self.as_json:
            typer.echo(json_line(error_fields(error) | {"seconds": round(seconds, 6)}))


def call(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service to call.")],
    body: Annotated[list[str] | None, typer.Argument(metavar="BODY", help=BODY_HELP)] = None,
    *,
    nodes: Nodes,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds for the call, failover included.")
    ] = 10.0,
    stream: Annotated[bool, typer.Option("--stream", help="Print PARTIALs as they come.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Never send it again when it may have been executed already.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header beside the body; may be repeated."
        ),
    ] = None,
    check: Check = True,
    key: Annotated[
        str | None, typer.Option("--key", help="Name the request: calls with the same key share one request.")
    ] = None,
    to_all: Annotated[
        bool, typer.Option("--all", help="Ask each worker of the service; print a line for each.")
    ] = False,
    shown: _Shown,
    dialect: DialectOption = "native",
    journal: KeptJournal,
) -> None:
    """Send one request and print its reply.

    A pipe or a file gets the bytes of a reply of one frame, without a newline. With several frames, after
    PARTIALs and with --stream each frame is on a line of its own.

    A terminal gets each frame on a line, JSON with indents, and control characters other than line breaks and
    tabs as escapes. --raw writes the bytes everywhere.

    Whichever node is active is found, and the request follows it when it fails over.

    If workers of the service have sent their schema (bstar services show), a body that does not fit is
    refused before anything is sent, with the field and the reason; --no-check sends it. The check needs the
    package jsonschema, and takes 2 s at most before the call if nodes are silent.

    With --all each worker that is registered is asked, and each reply has its worker's name. The exit code
    is that of the first one that failed, and 3 without a worker.

    Exit codes: 0 answered; 1 the service's handler failed or the broker rejected the request; 2 wrong usage;
    3 no worker began it, sending it again is safe; 4 it may have been executed, the reply is lost.

    Examples:

        bstar call echo hello

        bstar call store @picture.png --timeout 60

        date | bstar call echo - --json

        bstar call book '{"order": 4711}' --key order-4711

        bstar call price '{"sku": 7}' --header tenant=shop-3

        bstar call cache.clear --all --timeout 5

        bstar call mmi.service echo
    """
    frames, headers = frames_of(body), _headers(header or ())
    refuse(shown.raw and shown.as_json, "--raw and --json exclude each other")
    refuse(stream and key, "--stream and --key exclude each other: a stream is never repeated")
    refuse(to_all and (stream or key or shown.raw), "--all excludes --stream, --key and --raw")
    kept = journal.settings()
    if check and dialect == "native":
        check_body(service, frames, headers, nodes, timeout)
    started = time.monotonic()
    try:
        with HAClient(
            nodes.fleet(), dialect=dialect, timeout=timeout, security=nodes.security(), journal=kept
        ) as client:
            if to_all:
                _ask_all(client, service, frames, shown, headers, is_once=once)
            elif stream:
                for reply in client.stream(service, frames, idempotent=not once, headers=headers):
                    shown.reply(reply, time.monotonic() - started)
            else:
                reply = client.request(service, frames, idempotent=not once, key=key, headers=headers)
                seconds = time.monotonic() - started
                for index, partial in enumerate(reply.partials):
                    shown.reply(structs.replace(reply, frames=partial, index=index, is_final=False), seconds)
                shown.reply(reply, seconds, is_alone=not reply.partials)
    except CallError as error:
        if not to_all:
            shown.error(error, time.monotonic() - started)
        raise


def _headers(given: Sequence[str]) -> dict[str, str] | None:
    """The headers that the options name; None without any. ConfigurationError if they cannot be read."""
    headers: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        refuse(not separator or not name, f"--header {text}: write --header NAME=VALUE")
        refuse(name in headers, f"--header {name} is given twice")
        headers[name] = value
    return headers or None


def _ask_all(
    client: HAClient,
    service: str,
    frames: Sequence[bytes],
    shown: _Shown,
    headers: Mapping[str, str] | None,
    *,
    is_once: bool,
) -> None:
    """Ask each worker, and raise the first error."""
    outcomes = client.ask_all(service, frames, idempotent=not is_once, headers=headers)
    if not outcomes:
        raise RefusedError(f'no worker offers service "{printable(service.encode())}"')
    for worker, outcome in outcomes.items():
        shown.of_worker(worker, outcome)
    for outcome in outcomes.values():
        if isinstance(outcome, CallFailed):
            raise outcome.error


def _as_json(reply: Reply, seconds: float) -> str:
    return json_line(_fields(reply) | {"seconds": round(seconds, 6)})


def _fields(reply: Reply) -> dict[str, object]:
    return {
        "frames": [json_frame(frame) for frame in reply.frames],
        "final": reply.is_final,
        "endpoint": reply.endpoint,
        "epoch": reply.epoch,
        "attempts": reply.attempts,
    }
