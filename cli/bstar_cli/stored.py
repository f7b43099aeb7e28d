"""Stored requests on the command line: which of them, how they are printed, and what is done to many."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from bstar.base.printable import printable
from bstar.errors import BstarError
from bstar_cli import exits
from bstar_cli.options import Nodes, refuse, seconds_of
from bstar_cli.terminal import cell, json_line, print_tables, table
from bstar_client import HAClient, RequestStatus
from bstar_client.arguments.json_frames import json_frame

# Operations under way at once: they travel together, and are written to the disks together.
_AT_ONCE = 64
_CHUNK = 1_024
_SHOWN_MAX = 10

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="The requests, as submit printed.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The request, as submit printed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each request.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]
OfService = Annotated[
    str | None,
    typer.Option(
        "--service", "-s", metavar="SERVICE", help="The service of the request, with several pairs."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How to reach the store."""

    timeout: Annotated[
        float,
        typer.Option("--timeout", "-t", min=0.001, help="Seconds for each question, failover included."),
    ] = 10.0

    def client(self, nodes: Nodes) -> HAClient:
        """A client of the pairs. ConfigurationError if they are wrong."""
        return HAClient(nodes.fleet(), timeout=self.timeout, security=nodes.security())


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which of the stored requests."""

    service: Annotated[
        str | None, typer.Option("--service", "-s", metavar="SERVICE", help="Only those to this service.")
    ] = None
    older: Annotated[
        str | None,
        typer.Option(
            "--older", metavar="TIME", help="Only those submitted that long ago: seconds, or 10m, 2h, 7d."
        ),
    ] = None

    @property
    def is_any(self) -> bool:
        """True if it chooses."""
        return self.service is not None or self.older is not None

    def of(self, client: HAClient, state: str | None, *, bodies: bool = False) -> Iterator[RequestStatus]:
        """The requests. ConfigurationError if the options are wrong."""
        older = None if self.older is None else seconds_of(self.older, "--older")
        return client.requests(service=self.service, state=state, older=older, bodies=bodies)


# --- to people and scripts ----------------------------------------------------------------------------------


def print_requests(found: Iterator[RequestStatus], limit: int, *, as_json: bool) -> None:
    """Print the first of them; say if there are more."""
    first = islice(found, limit)
    if as_json:
        for status in first:
            typer.echo(as_json_line(status))
    else:
        shown = table(("ID", "SERVICE", "GROUP", "STATE"), ("ATTEMPTS",))
        for heading in ("SUBMITTED", "NEXT OR END", "NOTE"):
            shown.add_column(heading)
        for status in first:
            when = status.due_at if status.state in ("pending", "scheduled") else status.ended_at
            values = (status.attempts, to_text(status.submitted_at), to_text(when), _note(status))
            shown.add_row(*map(cell, (status.id, status.service, status.group, status.state, *values)))
        if shown.row_count:
            print_tables(shown)
    if next(found, None) is not None:
        typer.echo(f"the first {limit:,} of them; --limit shows more", err=True)


def _note(status: RequestStatus) -> str:
    """How far a request is, why it is dead, or when a schedule made its last request."""
    if status.progress is not None:
        return str(status.progress)
    if status.last_at is not None:
        return f"last run {to_text(status.last_at)}"
    return f"{status.cause}: {status.text}" if status.text and status.cause else status.cause


def print_request(status: RequestStatus, *, as_json: bool) -> None:
    """Print one, or say that it is not there and end with 1."""
    if as_json:
        typer.echo(as_json_line(status))
    elif status.state != "unknown":
        width = max(map(len, status.__struct_fields__))
        for name, value in _shown(status).items():
            if value not in (None, ""):
                text = to_text(value) if name.endswith("_at") else str(value)
                typer.echo(f"{name:{width}}  {printable(text, 5_000)}")
    if status.state == "unknown":
        typer.echo(f"{status.id}: the store does not have it", err=True)
        raise typer.Exit(exits.FAILED)


def as_json_line(status: RequestStatus) -> str:
    """A request as JSON; times are Unix seconds, or null."""
    return json_line(_shown(status))


def _shown(status: RequestStatus) -> dict[str, Any]:
    shown = msgspec.structs.asdict(status)
    frames = shown.pop("frames")
    return shown | ({"frames": [json_frame(frame) for frame in frames]} if frames else {})


def to_text(unix_s: float | None) -> str:
    """A time for people, in this machine's time zone as in ``bstar history``."""
    return "" if unix_s is None else f"{datetime.fromtimestamp(unix_s, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def progress(what: str) -> Progress:
    """A count on standard error that goes on while the work does, on terminals alone."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.completed:,.0f} " + what), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


# --- what is done to many -----------------------------------------------------------------------------------


class Deed(msgspec.Struct, frozen=True):
    """An operation on one request: how to do it, what was done then, the state of those that it is for, and
    whether a request's state shows that it was done.
    """

    act: Callable[[HAClient, str, str | None], RequestStatus]
    past: str
    state: str | None
    is_done: Callable[[RequestStatus], bool]


CANCEL = Deed(
    lambda client, request_id, service: client.cancel(request_id, service=service),
    "cancelled",
    "pending",
    lambda status: status.state == "cancelled",
)
RETRY = Deed(
    lambda client, request_id, service: client.retry(request_id, service=service),
    "pending again",
    "dead",
    lambda status: status.state == "pending",
)
CLOSE = Deed(
    lambda client, request_id, service: client.close_result(request_id, service=service),
    "forgotten",
    None,
    lambda status: status.state != "unknown",
)


@dataclass(frozen=True, kw_only=True)
class Many:
    """Which requests an operation is for, and how it tells of them."""

    choice: Choice
    is_all: bool
    as_json: bool
    state: str | None = None

    def check(self, ids: Sequence[str] | None) -> None:
        """ConfigurationError if nothing is chosen, or in two ways."""
        chosen = self.choice.older is not None or self.state is not None or self.is_all
        nothing = "which requests? Name them by id, or choose them by --service, --older or --all"
        refuse(not ids and not chosen and self.choice.service is None, nothing)
        refuse(ids and chosen, "ids, and --older, --state or --all, exclude each other")


def do(deed: Deed, nodes: Nodes, ways: Ways, ids: Sequence[str] | None, many: Many) -> None:
    """Do it to these ids, or to all that are chosen; end with 1 if it could not be done to one of them."""
    many.check(ids)
    counts: Counter[str] = Counter()
    with ways.client(nodes) as client, ThreadPoolExecutor(_AT_ONCE) as pool, progress(deed.past) as bar:
        task = bar.add_task(deed.past)

        def act(request: tuple[str, str | None]) -> RequestStatus:
            return deed.act(client, *request)

        requests: Iterator[tuple[str, str | None]]
        if ids:
            requests = ((request_id, many.choice.service) for request_id in ids)
        else:
            chosen = many.choice.of(client, many.state or deed.state)
            requests = ((status.id, status.service) for status in chosen)
        try:
            while chunk := list(islice(requests, _CHUNK)):
                for status in pool.map(act, chunk):
                    is_done = deed.is_done(status)
                    counts["done" if is_done else "not"] += 1
                    bar.update(task, completed=counts["done"])
                    if many.as_json:
                        typer.echo(json_line({"id": status.id, "state": status.state, "done": is_done}))
                    elif not is_done and counts["not"] <= _SHOWN_MAX:
                        typer.echo(f"{status.id}: not {deed.past}: its state is {status.state}", err=True)
        except BstarError:
            # To these it is done all the same.
            if counts:
                typer.echo(_summary(deed, counts), err=True)
            raise
    if not many.as_json:
        typer.echo(_summary(deed, counts))
    if counts["not"]:
        raise typer.Exit(exits.FAILED)


def _summary(deed: Deed, counts: Counter[str]) -> str:
    return f"{counts['done']:,} {deed.past}" + f", {counts['not']:,} not" * bool(counts["not"])
