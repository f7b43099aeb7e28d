"""``bstar durable``: submit requests that survive both nodes, fetch their answers, and look after them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from bstar.errors import CallError, ConfigurationError
from bstar_cli import exits
from bstar_cli.frames import BODY_HELP, frames_of, print_frames
from bstar_cli.options import Nodes, grouped, refuse, seconds_of
from bstar_cli.services import Check, check_body
from bstar_cli.stored import (
    CANCEL,
    CLOSE,
    RETRY,
    All,
    AsJson,
    Choice,
    Id,
    Ids,
    Limit,
    Many,
    OfService,
    Ways,
    as_json_line,
    do,
    print_request,
    print_requests,
    progress,
)
from bstar_cli.terminal import error_fields, json_line
from bstar_client import RetryPolicy
from bstar_client.arguments.json_frames import json_frame

durable = typer.Typer(
    name="durable",
    no_args_is_help=True,
    add_completion=False,
    help="Requests that survive both nodes (docs/durable.md).",
)

OfState = Annotated[
    Literal["pending", "answered", "dead", "cancelled", "scheduled"] | None,
    typer.Option("--state", help="Only those in this state."),
]


@dataclass(frozen=True, kw_only=True)
class When:
    """When it begins, and for how long and how often it is tried."""

    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Begin it later: seconds, or 10m, 2h, 7d.")
    ] = None
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="Begin it then, as 2027-01-31T18:00:00+01:00.")
    ] = None
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="A dead letter that long after its submit: seconds, or 10m, …"
        ),
    ] = None
    attempts: Annotated[
        int | None, typer.Option("--attempts", min=1, max=1_000_000, help="Try it so often at most.")
    ] = None
    backoff: Annotated[
        str | None,
        typer.Option(
            "--backoff", metavar="TIME", help="After the first failure; twice as long after each further one."
        ),
    ] = None
    backoff_max: Annotated[
        str | None, typer.Option("--backoff-max", metavar="TIME", help="The longest pause.")
    ] = None
    priority: Annotated[
        int, typer.Option("--priority", min=0, max=9, help="Of one service the highest begins first.")
    ] = 0
    group: Annotated[
        str | None, typer.Option("--group", help="One at a time of the service's group, in order.")
    ] = None

    @property
    def time(self) -> datetime | None:
        """Raises ConfigurationError."""
        if self.at is None:
            return None
        try:
            time = datetime.fromisoformat(self.at)
        except ValueError as error:
            raise ConfigurationError(f"--at {self.at}: {error}") from error
        refuse(time.tzinfo is None, f"--at {self.at}: add the time zone, as +01:00, or Z for UTC")
        return time

    def options(self) -> dict[str, Any]:
        """As ``HAClient.submit`` takes them. Raises ConfigurationError."""
        backoff, backoff_max = (
            _seconds(self.backoff, "--backoff"),
            _seconds(self.backoff_max, "--backoff-max"),
        )
        return {
            "delay": _seconds(self.delay, "--delay"),
            "at": self.time,
            "expires": _seconds(self.expires, "--expires"),
            "retries": RetryPolicy(self.attempts, backoff, backoff_max),
            "priority": self.priority,
            "group": self.group,
        }


@contextmanager
def _errors_as(*, as_json: bool) -> Iterator[None]:
    """Print an error of the call as JSON, too, if the answer would be."""
    try:
        yield
    except CallError as error:
        if as_json:
            typer.echo(json_line(error_fields(error)))
        raise


def _seconds(text: str | None, option: str) -> float | None:
    return None if text is None else seconds_of(text, option)


@durable.command()
@grouped
def submit(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service that is to do it.")],
    body: Annotated[list[str] | None, typer.Argument(metavar="BODY", help=BODY_HELP)] = None,
    *,
    nodes: Nodes,
    key: Annotated[
        str | None, typer.Option("--key", help="Name the request: the same key is the same request.")
    ] = None,
    when: When,
    ways: Ways,
    check: Check = True,
    as_json: AsJson = False,
) -> None:
    """Store a request, and print its id when it is durable.

    A JSON body that does not fit the schema of the service's workers is refused, as by bstar call.

    Exit codes: 0 stored; 1 the broker rejected it; 2 wrong usage; 3 not stored; 4 it may be stored, the
    answer is lost: submit it again with the same --key.

    Examples:

        bstar durable submit price '{"order": 4711}'

        bstar durable submit mail @letter.txt --key letter-17 --delay 10m --attempts 20

        bstar durable submit report - --at 2027-01-31T18:00:00+01:00 < month.json
    """
    options, frames = when.options(), frames_of(body)
    if check:
        check_body(service, frames, None, nodes, ways.timeout)
    with _errors_as(as_json=as_json), ways.client(nodes) as client:
        request_id = client.submit(service, frames, key=key, **options)
    typer.echo(json_line({"id": request_id}) if as_json else request_id)


@durable.command()
@grouped
def schedule(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service that is to do it.")],
    body: Annotated[list[str] | None, typer.Argument(metavar="BODY", help=BODY_HELP)] = None,
    *,
    nodes: Nodes,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="The interval: seconds, or 10m, 2h, 7d.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="EXPRESSION", help="Five fields, as '0 3 * * mon-fri'.")
    ] = None,
    zone: Annotated[
        str, typer.Option("--zone", help="The time zone of --cron, as Europe/Berlin; summer time counts.")
    ] = "UTC",
    missed: Annotated[
        Literal["skip", "once", "each"],
        typer.Option("--missed", help="What becomes of times missed by more than a minute."),
    ] = "skip",
    key: Annotated[
        str | None, typer.Option("--key", help="Name the schedule: the same key is the same schedule.")
    ] = None,
    when: When,
    ways: Ways,
    as_json: AsJson = False,
) -> None:
    """Submit a request again and again, and print the schedule's id.

    Each time has its request once, whichever node serves then. bstar durable cancel ends a schedule, bstar
    durable ls --state scheduled lists them. --expires counts from each time on.

    Exit codes: those of submit.

    Examples:

        bstar durable schedule cleanup --every 10m --key cleanup

        bstar durable schedule report x --cron '0 6 * * *' --zone Europe/Berlin --missed once
    """
    options = when.options()
    with _errors_as(as_json=as_json), ways.client(nodes) as client:
        schedule_id = client.schedule(
            service,
            frames_of(body),
            every=_seconds(every, "--every"),
            cron=cron,
            zone=zone,
            missed=missed,
            key=key,
            **options,
        )
    typer.echo(json_line({"id": schedule_id}) if as_json else schedule_id)


@durable.command()
@grouped
def result(
    request_id: Id,
    *,
    nodes: Nodes,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Wait that long for it: seconds, or 10m, 2h.")
    ] = "0",
    close: Annotated[
        bool, typer.Option("--close", help="Let the store forget it when the answer is printed.")
    ] = False,
    service: OfService = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes as they are.")] = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """Print the answer to a stored request, as bstar call prints replies.

    Exit codes: 0 answered; 1 it is dead, cancelled or not in the store; 2 wrong usage; 3 and 4 no node
    answered in time; 5 it has not ended yet.

    Examples:

        bstar durable result 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52 --wait 1h

        bstar durable result 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52 --close > answer.pdf
    """
    refuse(raw and as_json, "--raw and --json exclude each other")
    with ways.client(nodes) as client:
        found = client.result(request_id, wait=seconds_of(wait, "--wait"), service=service)
        if found is None:
            typer.echo(f"{request_id}: it has not ended yet", err=True)
            raise typer.Exit(exits.PENDING)
        if as_json:
            frames = [json_frame(frame) for frame in found.frames]
            typer.echo(
                json_line(
                    {
                        "id": found.id,
                        "frames": frames,
                        "attempts": found.attempts,
                        "submitted_at": found.submitted_at,
                        "ended_at": found.ended_at,
                    }
                )
            )
        else:
            print_frames(found.frames, is_raw=raw, is_alone=True)
        if close:
            client.close_result(request_id, service=service)


@durable.command()
@grouped
def ls(
    *,
    nodes: Nodes,
    choice: Choice,
    state: OfState = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """List stored requests, in order of submission.

    Exit codes: 0 listed; 2 wrong usage; 3 and 4 no node answered in time.

    Examples:

        bstar durable ls --state pending --older 10m

        bstar durable ls --service price --json | jq .id
    """
    with ways.client(nodes) as client:
        print_requests(choice.of(client, state), limit, as_json=as_json)


@durable.command()
@grouped
def show(
    request_id: Id, *, nodes: Nodes, service: OfService = None, as_json: AsJson = False, ways: Ways
) -> None:
    """Show what the store knows of a request.

    Exit codes: 0 shown; 1 the store does not have it; 2 wrong usage; 3 and 4 no node answered in time.

    Examples:

        bstar durable show 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52
    """
    with ways.client(nodes) as client:
        print_request(client.status_of(request_id, service=service), as_json=as_json)


@durable.command()
@grouped
def cancel(
    ids: Ids = None,
    *,
    nodes: Nodes,
    choice: Choice,
    everything: All = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """End pending requests and schedules: they are not begun any more.

    --service, --older and --all choose pending requests; name a schedule by its id.

    Exit codes: 0 done; 1 not to all of them, because some have ended; 2 wrong usage; 3 and 4 no node answered
    in time.

    Examples:

        bstar durable cancel 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52

        bstar durable cancel --service mail --older 7d
    """
    do(CANCEL, nodes, ways, ids, Many(choice=choice, is_all=everything, as_json=as_json))


@durable.command()
@grouped
def retry(
    ids: Ids = None,
    *,
    nodes: Nodes,
    choice: Choice,
    everything: All = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """Make dead or cancelled requests pending again, with all their attempts.

    --service, --older and --all choose dead letters; name a cancelled request by its id. A schedule that was
    cancelled stays so: close it, and schedule it again.

    Exit codes: 0 done; 1 not to all of them, because of their state; 2 wrong usage; 3 and 4 no node answered
    in time.

    Examples:

        bstar durable retry 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52

        bstar durable retry --service price
    """
    do(RETRY, nodes, ways, ids, Many(choice=choice, is_all=everything, as_json=as_json))


@durable.command()
@grouped
def close(
    ids: Ids = None,
    *,
    nodes: Nodes,
    choice: Choice,
    state: OfState = None,
    everything: All = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """Let the store forget requests and their answers. Pending ones are not begun any more.

    Exit codes: 0 done; 1 the store does not have all of them; 2 wrong usage; 3 and 4 no node answered in
    time.

    Examples:

        bstar durable close 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52

        bstar durable close --state answered --older 1d
    """
    do(CLOSE, nodes, ways, ids, Many(choice=choice, is_all=everything, as_json=as_json, state=state))


@durable.command()
@grouped
def export(*, nodes: Nodes, choice: Choice, state: OfState = None, ways: Ways) -> None:
    """Print stored requests with their bodies, one JSON object on each line.

    A frame is its text, or {"base64": …}. What changes while it runs may be missing.

    Exit codes: 0 all printed; 2 wrong usage; 3 and 4 no node answered in time; 74 the output cannot be
    written.

    Examples:

        bstar durable export --state dead > dead.jsonl
    """
    with ways.client(nodes) as client, progress("exported") as bar:
        task = bar.add_task("exported")
        for status in choice.of(client, state, bodies=True):
            typer.echo(as_json_line(status))
            bar.advance(task)
