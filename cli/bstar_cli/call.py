"""``bstar call``: one request, its reply on standard output."""

import base64
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from bstar.errors import CallError, ConfigurationError
from bstar_cli.options import DialectOption, KeptJournal, Nodes, refuse
from bstar_cli.terminal import json_line, lines
from bstar_client import HAClient, Reply


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """How replies are printed."""

    raw: Annotated[
        bool, typer.Option("--raw", help="Print the octets as they are, without a newline anywhere.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each reply.")] = False

    def reply(self, reply: Reply, seconds: float, *, is_alone: bool = False) -> None:
        """Print one; ``is_alone``: neither PARTIALs nor other replies come with it."""
        if self.as_json:
            typer.echo(_as_json(reply, seconds))
        elif self.raw or (is_alone and len(reply.frames) == 1 and not sys.stdout.isatty()):
            _write(b"".join(reply.frames))
        elif sys.stdout.isatty():
            for frame in reply.frames:
                typer.echo(lines(frame))
        else:
            _write(b"".join(frame + b"\n" for frame in reply.frames))

    def error(self, error: CallError, seconds: float) -> None:
        """Print it as JSON if all is; otherwise the end of the command tells it."""
        if self.as_json:
            problem = {
                "error": type(error).__name__,
                "text": str(error),
                "may_have_executed": error.may_have_executed,
                "seconds": round(seconds, 6),
            }
            typer.echo(json_line(problem))


def call(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service to call.")],
    body: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BODY",
            help="One frame each: a text, - for standard input, @FILE for a file, @@text for @text. "
            "None is one empty frame.",
        ),
    ] = None,
    *,
    nodes: Nodes,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds for everything, failover included.")
    ] = 10.0,
    stream: Annotated[bool, typer.Option("--stream", help="Print PARTIALs as they come.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Never send it again when it may have been executed already.")
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Name the request: calls with the same key share one request.")
    ] = None,
    shown: _Shown,
    dialect: DialectOption = "native",
    journal: KeptJournal,
) -> None:
    """Send one request and print its reply.

    A pipe or a file gets a reply of one frame as the octets that it is, without a newline. Of several frames,
    of a reply after PARTIALs and with --stream each is on a line of its own.

    A terminal gets each frame on a line, and control characters other than line breaks and tabs as escapes.
    --raw writes the octets everywhere.

    Whichever node is active is found, and the request follows it when it fails over.

    Exit codes: 0 answered; 1 the service's handler failed or the broker rejected the request; 2 wrong usage;
    3 no worker began it, sending it again is safe; 4 it may have been executed, the reply is lost.

    Examples:

        bstar call echo hello

        bstar call store @picture.png --timeout 60

        date | bstar call echo - --json

        bstar call book '{"order": 4711}' --key order-4711

        bstar call mmi.service echo
    """
    frames = [_frame(text) for text in body or ()] or [b""]
    refuse(shown.raw and shown.as_json, "--raw and --json exclude each other")
    refuse(stream and key, "--stream and --key exclude each other: a stream is never repeated")
    kept = journal.settings()
    started = time.monotonic()
    try:
        with HAClient(
            nodes.fleet(), dialect=dialect, timeout=timeout, security=nodes.security(), journal=kept
        ) as client:
            if stream:
                for reply in client.stream(service, frames, idempotent=not once):
                    shown.reply(reply, time.monotonic() - started)
            else:
                reply = client.request(service, frames, idempotent=not once, key=key)
                seconds = time.monotonic() - started
                for index, partial in enumerate(reply.partials):
                    shown.reply(structs.replace(reply, frames=partial, index=index, is_final=False), seconds)
                shown.reply(reply, seconds, is_alone=not reply.partials)
    except CallError as error:
        shown.error(error, time.monotonic() - started)
        raise


def _frame(text: str) -> bytes:
    if text == "-":
        try:
            return sys.stdin.buffer.read()
        except (OSError, AttributeError) as error:  # None if it was closed from the start
            raise ConfigurationError("-: standard input is closed or cannot be read") from error
    if text.startswith("@@"):
        return text[1:].encode()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{text}: cannot be read: {error.strerror or error}") from error
    return text.encode("utf-8", "surrogateescape")


def _as_json(reply: Reply, seconds: float) -> str:
    return json_line(
        {
            "frames": [_shown(frame) for frame in reply.frames],
            "final": reply.is_final,
            "endpoint": reply.endpoint,
            "epoch": reply.epoch,
            "attempts": reply.attempts,
            "seconds": round(seconds, 6),
        }
    )


def _shown(frame: bytes) -> str | dict[str, str]:
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}


def _write(octets: bytes) -> None:
    sys.stdout.buffer.write(octets)
    sys.stdout.buffer.flush()
