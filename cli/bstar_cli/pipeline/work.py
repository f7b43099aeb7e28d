"""``bstar pipeline generate`` and ``tables``: what needs no Spark."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bstar.errors import ConfigurationError
from bstar_cli.pipeline.spark import JsonOption, print_json, print_table


@dataclass(frozen=True, kw_only=True)
class _Invented:
    """What is invented, and how much of it."""

    pairs: Annotated[int, typer.Option("--pairs", min=1, help="How many pairs.")] = 1
    days: Annotated[float, typer.Option("--days", help="How long; fractions of a day are fine.")] = 1.0
    requests: Annotated[
        int, typer.Option("--requests", min=0, help="In all; 0: as --rate gives.", show_default=False)
    ] = 0
    requests_per_s: Annotated[
        float, typer.Option("--rate", help="Requests per second of each pair, in the mean.")
    ] = 10.0
    services: Annotated[int, typer.Option("--services", min=1)] = 3
    clients: Annotated[int, typer.Option("--clients", min=1)] = 20
    workers: Annotated[int, typer.Option("--workers", min=1, help="Over all services.")] = 6
    incidents: Annotated[int, typer.Option("--incidents", min=0, help="Of each pair, drawn by the seed.")] = 0
    violations: Annotated[
        int, typer.Option("--violations", min=0, help="Broken promises to plant in each pair.")
    ] = 0
    everybody: Annotated[
        bool,
        typer.Option("--everybody", help="Journals of clients and workers, too: the audit can prove more."),
    ] = False
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same bytes.")] = 1
    start: Annotated[str, typer.Option("--start", metavar="TIME")] = "2026-01-05T00:00:00Z"


def generate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="FOLDER/journal and FOLDER/truth.json are written.")
    ],
    *,
    invented: _Invented,
    as_json: JsonOption = False,
) -> None:
    """Write the journals of pairs that never were, with the truth beside them.

    For trying the pipeline, for tests and for benchmarks. Needs no Spark.
    python -m bstar_pipeline.synth has every knob.

    Exit codes: 0 written; 2 wrong usage, or there is a journal in FOLDER already.

    Examples:

        bstar pipeline generate synthetic --incidents 5 --everybody

        bstar pipeline generate big --requests 50000000 --days 30 --pairs 4

        bstar pipeline run synthetic/journal --out tables
    """
    from bstar_pipeline.synth import SynthSettings
    from bstar_pipeline.synth import generate as write

    given = asdict(invented)
    everybody = given.pop("everybody")
    settings = SynthSettings(**given, has_client_journals=everybody, has_worker_journals=everybody)
    console = Console(stderr=True)
    columns = (TextColumn("records"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("records")
        truth = write(settings, folder, lambda done, total: bar.update(task, completed=done, total=total))
    told = {
        "journal": str(folder / "journal"),
        "truth": str(folder / "truth.json"),
        "records": truth.records,
        "files": truth.files,
        "incidents": len(truth.incidents),
        "violations": len(truth.violations),
    }
    if as_json:
        print_json(told)
    else:
        print_table(
            list(told), [[f"{value:,}" if isinstance(value, int) else str(value) for value in told.values()]]
        )


def tables(
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only this one, with each of its columns.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what tables the pipeline writes, and their columns.

    Needs no Spark. Every table also has the columns day (UTC) and pair, which are its partitions.

    Exit codes: 0 told; 2 there is no such table.

    Examples:

        bstar pipeline tables

        bstar pipeline tables gold.incidents
    """
    from bstar_pipeline.tables import TABLES, columns_of

    if name is not None and name not in TABLES:
        raise ConfigurationError(f"there is no table {name}; there are {', '.join(TABLES)}")
    chosen = TABLES if name is None else {name: TABLES[name]}
    if as_json:
        for key, table in chosen.items():
            print_json(
                {
                    "table": key,
                    "about": table.about,
                    "path": table.path,
                    "partitions": table.partitions,
                    "columns": [{"name": column, "type": kind} for column, kind in columns_of(table)],
                }
            )
    elif name is None:
        print_table(["table", "about"], [[key, table.about] for key, table in chosen.items()])
    else:
        typer.echo(f"{TABLES[name].about}\n")
        partitions = [(key, "DATE" if key == "day" else "STRING") for key in TABLES[name].partitions]
        print_table(["column", "type"], [*columns_of(TABLES[name]), *partitions])
