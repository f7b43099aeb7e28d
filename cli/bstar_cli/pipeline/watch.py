"""``bstar pipeline watch``: the journals as a stream."""

from typing import Annotated

import typer

from bstar.base.printable import printable
from bstar_cli.pipeline.jobs import ObjectivesOption, OutOption
from bstar_cli.pipeline.spark import SparkOptions

# A line names services, workers and texts of others.
_LINE_CHARS_MAX = 2_000


def watch(
    journals: Annotated[
        str, typer.Argument(metavar="JOURNAL", help="The directory of journals, or a pattern of them.")
    ],
    out: OutOption,
    objectives: ObjectivesOption = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0, metavar="SECONDS", help="Between two looks.")
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Read what is there, then end.")] = False,
    copies_within: Annotated[
        str,
        typer.Option("--copies-within", metavar="TIME", help="How long a copy of a record is recognised."),
    ] = "6 hours",
    files: Annotated[int, typer.Option("--files", min=1, help="How many files at a time, at most.")] = 64,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="PATH", help="Otherwise below ROOT.", show_default=False)
    ] = "",
    *,
    spark: SparkOptions,
) -> None:
    """Read journals as they are written, keep the objectives up to date, and tell what is new.

    Stopped or killed, it goes on where it was: start it again with the same ROOT. Ctrl-C or SIGTERM ends it
    when it has written what it is at, a second one at once.

    Exit codes: 0 ended as told; 2 wrong usage; 5 Spark failed; 130 interrupted at once.

    Examples:

        bstar pipeline watch /var/lib/bstar/journal --out live --objectives slo.yml

        bstar pipeline watch '/journals/*' --out live --once
    """
    with spark.session("watch") as (session, tell):
        from bstar_pipeline.slo import Objectives, load
        from bstar_pipeline.watch import Watch, WatchSettings, stopped_by_signals

        settings = WatchSettings(
            journals=journals,
            root=out,
            checkpoint=checkpoint,
            slo=Objectives() if objectives is None else load(objectives),
            interval_s=interval,
            files_max=files,
            copies_within=copies_within,
        )
        tell("watching")
        stream = Watch(session, settings, available_now=once, tell=_tell)
        with stream, stopped_by_signals(stream):
            stream.run()


def _tell(line: str) -> None:
    typer.echo(printable(line, _LINE_CHARS_MAX))
