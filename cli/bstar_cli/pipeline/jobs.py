"""``bstar pipeline run``, ``watch``, ``compact``, ``retain`` and ``tables``: journals become tables."""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from bstar.base.printable import printable
from bstar.errors import ConfigurationError
from bstar_cli.pipeline.spark import JsonOption, RootArgument, SparkOptions, print_json, print_table, say
from bstar_pipeline.amounts import of_journals, of_tables
from bstar_pipeline.tables import TABLES, columns_of

# A line of watch names services, workers and texts of others.
_LINE_CHARS_MAX = 2_000

InputsArgument = Annotated[
    list[str], typer.Argument(metavar="INPUT…", help="Directories of journals, or files: any paths of Spark.")
]
OutOption = Annotated[
    str, typer.Option("--out", "-o", metavar="ROOT", help="Where the tables are: any path of Spark.")
]
ObjectivesOption = Annotated[
    Path | None,
    typer.Option(
        "--objectives",
        metavar="FILE",
        help="What the services promise, as YAML or JSON. Otherwise 99.9 % answered, 99 % within 0.1 s.",
        show_default=False,
    ),
]
_VERDICTS = {
    "passed": "passed",
    "violated": "violated",
    "unproven": "no violation, but not all is proven",
    "empty": "nothing to judge: no request",
}


def run(
    inputs: InputsArgument,
    out: OutOption,
    objectives: ObjectivesOption = None,
    clock_error_ms: Annotated[
        float,
        typer.Option(
            "--clock-error-ms",
            min=0,
            help="How far the clocks of machines may be apart: two nodes that serve for less are no finding.",
        ),
    ] = 10.0,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DATE", help="Make tables of this day (UTC) and later ones only."),
    ] = None,
    as_json: JsonOption = False,
    *,
    spark: SparkOptions,
) -> None:
    """Make tables of journals: incidents, audit, objectives, capacity, clients.

    Reads what no earlier run read, and makes the tables of the days and pairs that it touches anew; all
    others stay. Killed at any moment, it leaves the tables as they were. What could not be read is counted.

    Exit codes: 0 written, whatever is in them (bstar pipeline audit judges); 2 wrong usage, no journal, or
    another run is writing there; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline run /var/lib/bstar/journal --out tables

        bstar pipeline run 's3a://ops/journal/*/' --out s3a://ops/tables --master spark://host:7077

        bstar pipeline run journal --out tables --objectives slo.yaml --since 2026-11-21
    """
    first_day = None if since is None else _day_of(since)
    with spark.session("run", lambda: of_journals(inputs, out)) as (session, tell):
        from bstar_pipeline import job, slo

        promises = None if objectives is None else slo.load(objectives)
        summary = job.run(
            session,
            inputs,
            out,
            slo=promises,
            clock_error_us=round(clock_error_ms * 1000),
            since=first_day,
            progress=tell,
        )
    if as_json:
        print_json({**dataclasses.asdict(summary), "verdict": summary.verdict})
        return
    rows = [
        ("tables", summary.root),
        ("new files read", f"{summary.read:,}"),
        ("made anew", ", ".join(f"{day} {pair}" for day, pair in summary.made) or "nothing"),
        ("days and pairs", ", ".join(f"{day} {pair}" for day, pair in summary.parts)),
        ("records", f"{summary.records:,}"),
        ("requests", f"{summary.requests:,}"),
        ("files", _counts(summary.files)),
        ("lines set aside", _counts(summary.rejected)),
        ("records that came twice", f"{summary.duplicates:,}"),
        ("incidents", _counts(summary.incidents)),
        ("audit", _VERDICTS[summary.verdict]),
        ("findings of the audit", _counts(summary.findings)),
        ("engine", f"{summary.engine}: {summary.version}"),
        ("took", f"{summary.took_s:.1f} s"),
    ]
    print_table(["", ""], rows)
    print_table(["step", "seconds"], [(text, f"{took_s:.1f}") for text, took_s in summary.steps], right=(1,))
    say(f"next: bstar pipeline report {summary.root} --out report.html")


def watch(
    inputs: InputsArgument,
    out: OutOption,
    objectives: ObjectivesOption = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0, metavar="SECONDS", help="From one look to the next.")
    ] = 10.0,
    *,
    spark: SparkOptions,
) -> None:
    """Keep the tables up to date while journals are written, and tell what is new.

    Each look is a bstar pipeline run: the tables are the same, and another run, compact or retain may come in
    between. Killed at any moment, it goes on when it is started again. Ctrl-C or SIGTERM ends it after the
    look under way, a second one at once.

    Exit codes: 0 ended by a signal; 2 wrong usage, or no journal; 5 Spark failed; 130 interrupted at once.

    Examples:

        bstar pipeline watch /var/lib/bstar/journal --out tables --objectives slo.yml

        bstar pipeline watch '/journals/*' --out tables --interval 60
    """
    with spark.session("watch", lambda: of_journals(inputs, out)) as (session, tell):
        from bstar_pipeline import slo
        from bstar_pipeline.watch import stopped_by_signals
        from bstar_pipeline.watch import watch as keep_watch

        promises = None if objectives is None else slo.load(objectives)
        tell("watching")
        with stopped_by_signals() as is_stopping:
            keep_watch(
                session,
                inputs,
                out,
                slo=promises,
                interval_s=interval,
                is_stopping=is_stopping,
                tell=lambda line: typer.echo(printable(line, _LINE_CHARS_MAX)),
            )


def compact(root: RootArgument, *, spark: SparkOptions) -> None:
    """Put the small files that many runs left together: one for each day and pair of a table.

    What the tables say stays the same. Readers may go on meanwhile, a run may not.

    Exit codes: 0 done; 2 wrong usage, or a run is writing there; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline compact tables
    """
    with spark.session("compact", lambda: of_tables(root)) as (session, tell):
        from bstar_pipeline import store

        tell("putting files together")
        merged = store.compact(session, root)
    typer.echo(f"{merged:,} files were put together")


def retain(
    root: RootArgument,
    since: Annotated[
        str,
        typer.Option("--since", metavar="DATE", help="The first day (UTC) that stays.", show_default=False),
    ],
    *,
    spark: SparkOptions,
) -> None:
    """Take the days before a date out of all tables.

    No later run brings them back: it leaves out records of days before the date. Readers may go on
    meanwhile, a run may not. The files go when no reader needs them any more, an hour later at the soonest.

    Exit codes: 0 done; 2 wrong usage, or a run is writing there; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline retain tables --since 2026-10-01
    """
    first_day = _day_of(since)
    with spark.session("retain", lambda: of_tables(root)) as (session, tell):
        from bstar_pipeline import store

        tell("leaving out old days")
        gone = store.retain(session, root, first_day)
    typer.echo(f"{gone:,} days and pairs were taken out")


def tables(
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only this one, with each of its columns.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what tables the pipeline writes, and their columns.

    Needs no Spark. Each file of a table is of one day (UTC) and pair.

    Exit codes: 0 printed; 2 there is no such table.

    Examples:

        bstar pipeline tables

        bstar pipeline tables gold.incidents
    """
    if name is not None and name not in TABLES:
        raise ConfigurationError(f"there is no table {name}; there are {', '.join(TABLES)}")
    chosen = TABLES if name is None else {name: TABLES[name]}
    if as_json:
        for key, table in chosen.items():
            print_json(
                {
                    "table": key,
                    "about": table.about,
                    "path": key.replace(".", "/"),
                    "columns": [{"name": column, "type": kind} for column, kind in columns_of(table)],
                }
            )
    elif name is None:
        print_table(["table", "about"], [[key, table.about] for key, table in chosen.items()])
    else:
        typer.echo(f"{TABLES[name].about}\n")
        print_table(["column", "type"], columns_of(TABLES[name]))


def _day_of(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"--since {text}: write a day like 2026-11-21") from error


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in sorted(counts.items())) or "none"
