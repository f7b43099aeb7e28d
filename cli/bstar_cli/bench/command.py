"""``bstar bench``: a load generator, for one pair or several, or two sets of them side by side.

It reads the options, checks that the load is what it seems, and prints the figures. What is sent and counted
happens in client processes (``client``); the arithmetic is in ``plan`` and ``results``.
"""

import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from bstar.errors import ConfigurationError
from bstar.fleet import Fleet
from bstar_cli import exits
from bstar_cli.bench import histogram
from bstar_cli.bench.plan import BYTES_IN_FLIGHT_MAX, Case, ClientKind, Means, Side, cases_of
from bstar_cli.bench.report import Asked, Document, as_csv, as_table
from bstar_cli.bench.rounds import Rounds
from bstar_cli.options import Nodes, fleet_of, refuse
from bstar_cli.terminal import json_line, print_tables
from bstar_client.arguments.settings import Dialect

_SIZE_MAX = 16 * 1024 * 1024
_WINDOW_MAX = 100_000
# Each is a thread of the client.
_THREADS_MAX = 1_000
_CASES_MAX = 100
_SERVICES_MAX = 64
_RATE_MAX = 1_000_000.0
# Among this many names per pair, one belongs to it, unless a pin like "*" takes them all.
_NAMES_TRIED_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What the clients do, and for how long."""

    dialect: Annotated[Dialect, typer.Option("--dialect", help="What clients and echo workers speak.")] = (
        "native"
    )
    size: Annotated[
        str, typer.Option("--size", metavar="N,…", help="Bytes of a body; each size is measured.")
    ] = "16"
    window: Annotated[
        str,
        typer.Option(
            "--window", "-w", metavar="N,…", help="Requests in flight per client; each one is measured."
        ),
    ] = "100"
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients",
            min=1,
            max=64,
            help="Client processes of each side. Otherwise one for each service.",
            show_default=False,
        ),
    ] = None
    client: Annotated[ClientKind, typer.Option("--client", help="sync: HAClient; async: AsyncHAClient.")] = (
        "sync"
    )
    means: Annotated[
        Means,
        typer.Option(
            "--call",
            help="map: one call of map with the window; request: as many threads or tasks as the window, "
            "each waiting for its reply.",
        ),
    ] = "map"
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, max=3600, help="Length of one turn. Otherwise 5.")
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, max=100_000_000, help="End a turn after so many requests instead."
        ),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.01,
            max=_RATE_MAX,
            help="Requests per second of all clients, at fixed moments; latency counts from that moment.",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, max=1000, help="Turns of each side. Otherwise 1, with --against 5."),
    ] = None
    warm_up: Annotated[
        float, typer.Option("--warm-up", min=0, max=60, help="Seconds before each case that do not count.")
    ] = 0.5
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.01, max=600, help="Deadline of each request, seconds.")
    ] = 10.0


@dataclass(frozen=True, kw_only=True)
class _Echo:
    """The workers that the command starts itself."""

    echo: Annotated[
        int, typer.Option("--echo", min=0, max=64, help="Echo workers to start for each service and side.")
    ] = 0
    credit: Annotated[
        int | None,
        typer.Option("--credit", min=1, max=10_000, help="What each echo worker takes. Otherwise 1,000."),
    ] = None
    worker: Annotated[
        ClientKind, typer.Option("--worker", help="Echo workers: Worker with one thread, or AsyncWorker.")
    ] = "sync"


@dataclass(frozen=True, kw_only=True)
class _Others:
    """The side that is measured in turns with the first."""

    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="A,B[;C,D]", help="Measure these endpoints in turns with the others."
        ),
    ] = None
    against_config: Annotated[
        Path | None,
        typer.Option("--against-config", metavar="FILE", help="The same for the pairs of a configuration."),
    ] = None
    against_dialect: Annotated[
        Dialect | None, typer.Option("--against-dialect", help="Otherwise that of --dialect.")
    ] = None
    against_client: Annotated[
        ClientKind | None, typer.Option("--against-client", help="Otherwise that of --client.")
    ] = None
    cpu_of_pid: Annotated[
        int | None,
        typer.Option("--cpu-of", metavar="PID", min=1, help="The broker's process, if it cannot tell."),
    ] = None
    against_cpu_of_pid: Annotated[
        int | None, typer.Option("--against-cpu-of", metavar="PID", min=1, help="The same of --against.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """How the figures are printed."""

    as_csv_text: Annotated[bool, typer.Option("--csv", help="Print CSV, a line per case and side.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with every round and the histograms.")
    ] = False


def bench(
    services: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVICE",
            help="What is called; with several the clients are spread over them. Otherwise echo, or with "
            "--echo a name of its own for each pair.",
            show_default=False,
        ),
    ] = None,
    *,
    nodes: Nodes,
    load: _Load,
    echo: _Echo,
    others: _Others,
    figures: _Figures,
) -> None:
    """Measure a pair, or several: requests per second, latency, and the brokers' CPU time per request.

    Each client is a process of its own with a window of requests in flight (closed loop). With --rate
    requests are due at fixed moments whether or not earlier ones were answered (open loop); their latency
    counts from the moment they were due, so a pause of the broker shows in all requests that it held up.

    With --against two sides take turns, round by round, and their ratio is printed: on a machine that others
    use, too, believe the ratios. CPU time is that of the active node, as it tells it.

    Of several pairs (--config, or 'A,B;C,D') those are measured that the services belong to, all at once,
    each with a row of its own; --echo makes a service for each pair.

    Ctrl-C ends the turn that runs and prints what was measured so far.

    Exit codes: 0 every request was answered; 1 some were not, or a process failed; 2 wrong usage; 3 no
    worker answers, or 4 none did in time; 130 interrupted.

    Examples:

        bstar bench --echo 1

        bstar bench price stock --clients 2 --window 1,100,1000 --size 16,4096 --seconds 10

        bstar bench --echo 2 --rate 2000 --seconds 30 --client async

        bstar bench --echo 1 --against tcp://10.0.0.1:5001,tcp://10.0.0.2:5001 --csv > figures.csv

        bstar bench --echo 1 --window 1000 --against tcp://127.0.0.1:5001 --against-dialect mdp02

        bstar bench --echo 1 --config client.yaml --window 1000

        bstar bench price stock --config two-pairs.yaml --against-config one-pair.yaml
    """
    histogram.require()
    refuse(figures.as_csv_text and figures.as_json, "--csv and --json exclude each other")
    refuse(load.count is not None and load.seconds is not None, "--count and --seconds exclude each other")
    refuse(echo.credit is not None and not echo.echo, "--credit is for the echo workers: add --echo N")
    sizes = numbers_of("--size", load.size, 0, _SIZE_MAX)
    cases = cases_of(sizes, numbers_of("--window", load.window, 1, _WINDOW_MAX))
    sides = _sides(services, nodes, load, echo, others)
    clients = load.clients or max(len(side.services) for side in sides)
    _check(cases, clients, sides, load)
    asked = Asked(
        clients,
        load.means,
        load.rate,
        None if load.count is not None else load.seconds or 5.0,
        load.count,
        load.rounds or (1 if len(sides) == 1 else 5),
        echo.echo,
    )
    measurement = Rounds(sides, cases, asked, load.timeout, load.warm_up, echo.worker, echo.credit or 1_000)
    with _ending_early(measurement.stop):
        document = measurement.run()
    if figures.as_json:
        typer.echo(json_line(document))
    elif figures.as_csv_text:
        typer.echo(as_csv(document), nl=False)
    else:
        print_tables(as_table(document))
    raise typer.Exit(_tell(document))


def numbers_of(option: str, text: str, low: int, high: int) -> list[int]:
    """The numbers of a list like ``16,1024``, each once and in order. Raises ConfigurationError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is no list of numbers; write 16 or 16,1024") from None
    wrong = [number for number in numbers if not low <= number <= high]
    if wrong:
        raise ConfigurationError(f"{option}: from {low} to {high}, not {wrong[0]}")
    return list(dict.fromkeys(numbers))


def _sides(
    services: Sequence[str] | None, nodes: Nodes, load: _Load, echo: _Echo, others: _Others
) -> list[Side]:
    """The side of ``nodes`` and the other one, if there is one. Raises ConfigurationError."""

    def side(name: str, fleet: Fleet, dialect: Dialect, client: ClientKind, pid: int | None) -> Side:
        asked = list(services or (_own_services(fleet) if echo.echo else ["echo"]))
        return Side(name, list(fleet.pairs), dialect, client, asked, pid, fleet.pins)

    is_alone = others.against is None and others.against_config is None
    refuse(
        is_alone and (others.against_dialect or others.against_client or others.against_cpu_of_pid),
        "--against-… says something about the other side: add --against A,B",
    )
    refuse(
        others.against is not None and others.against_config is not None,
        "--against and --against-config both say where the other nodes are",
    )
    nodes.export_security()
    ours = side("A", nodes.fleet(), load.dialect, load.client, others.cpu_of_pid)
    if is_alone:
        return [ours]
    fleet = fleet_of(others.against, others.against_config)
    dialect, client = others.against_dialect or load.dialect, others.against_client or load.client
    return [ours, side("B", fleet, dialect, client, others.against_cpu_of_pid)]


def _check(cases: Sequence[Case], clients: int, sides: Sequence[Side], load: _Load) -> None:
    """Raise ConfigurationError if the load would not be what it seems."""
    refuse(
        len(cases) > _CASES_MAX, f"{len(cases)} sizes and windows are to be measured, at most {_CASES_MAX}"
    )
    most = max(len(side.services) for side in sides)
    refuse(
        most > min(clients, _SERVICES_MAX),
        f"{most} services need as many clients at least (at most {_SERVICES_MAX}): each client "
        f"calls one; say --clients {most}",
    )
    for side in sides:
        refuse(
            side.pid is not None and len(side.pairs_used) > 1,
            f"--cpu-of tells one broker's CPU time, but the services belong to {len(side.pairs_used)} "
            "pairs; brokers of bstar tell it themselves",
        )
    refuse(
        load.count is not None and load.count < clients,
        f"{load.count} requests cannot be shared by {clients} clients",
    )
    is_sync = any(side.client == "sync" for side in sides)
    has_threads = is_sync and (load.means == "request" or load.rate is not None)
    for case in cases:
        refuse(
            has_threads and case.window > _THREADS_MAX,
            f"a window of {case.window} would be as many threads; at most {_THREADS_MAX}: use --client async",
        )
        refuse(
            case.size * case.window * clients > BYTES_IN_FLIGHT_MAX,
            f"{clients} × {case.window} requests of {case.size} bytes are more than 1 GiB in flight: "
            "use a smaller window",
        )


def _own_services(fleet: Fleet) -> list[str]:
    """One for each pair. Our own workers get only our requests."""
    own = f"bench-{secrets.token_hex(4)}"
    if len(fleet.pairs) == 1:
        return [own]
    found: dict[str, str] = {}
    for number in range(1, _NAMES_TRIED_MAX * len(fleet.pairs)):
        service = f"{own}-{number}"
        found.setdefault(fleet.pair_of(service).identity, service)
        if len(found) == len(fleet.pairs):
            return [found[pair.identity] for pair in fleet.pairs]
    lacking = ", ".join(pair.identity for pair in fleet.pairs if pair.identity not in found)
    raise ConfigurationError(
        f"no service named {own}-… belongs to {lacking}: pins take them all; name services to be called"
    )


@contextmanager
def _ending_early(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the turn, the second the command."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(document: Document) -> int:
    """What the table does not say, on the standard error; the exit code."""
    load, sides = document.load, document.sides
    means = load.means if load.rate is None else "request"
    for side in sides:
        kind = f"{side.dialect}, {'HAClient' if side.client == 'sync' else 'AsyncHAClient'}.{means}"
        for identity, pair in side.pairs_used.items():
            what = ", ".join(each for each in side.services if side.fleet.pair_of(each).identity == identity)
            where = ", ".join(pair.endpoints)
            title = side.name if pair.name is None or len(side.pairs) == 1 else f"{side.name} {pair.name}"
            typer.echo(f"{title}: {where} ({kind}), {what}", err=True)
        idle = [pair.identity for pair in side.pairs if pair.identity not in side.pairs_used]
        if idle:
            typer.echo(f"{side.name}: no service that was called belongs to {', '.join(idle)}", err=True)
    length = f"{load.count:,} requests" if load.count is not None else f"{load.seconds:g} s"
    loop = (
        "latency from the call to its reply"
        if load.rate is None
        else (f"{load.rate:g} requests/s at fixed moments, latency from the moment a request was due")
    )
    typer.echo(
        f"client processes per side: {load.clients}, cores here: {os.cpu_count()}, rounds: {load.rounds} of "
        f"{length}; {loop}",
        err=True,
    )
    for name, why in document.cpu_unknown.items():
        typer.echo(f"{name}: no CPU time of the broker: {why}", err=True)
    failed = 0
    for row in document.rows:
        if row.pair is not None:
            continue  # it is part of the row of its side
        failed += sum(row.failed.values()) + row.unsent
        kinds = [f"{count:,} {kind}" for kind, count in row.failed.items()]
        if row.unsent:
            kinds.append(f"{row.unsent:,} due and not sent in time: the rate is more than this side can do")
        if kinds:
            typer.echo(f"{row.side}, size {row.size}, window {row.window}: {', '.join(kinds)}", err=True)
    if not document.is_complete:
        typer.echo("ended early: this is what was measured so far", err=True)
        return exits.INTERRUPTED
    return exits.FAILED if failed else exits.OK
