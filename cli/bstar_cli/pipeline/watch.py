"""``bstar pipeline watch``: runs in a loop."""

from typing import Annotated

import typer

from bstar.base.printable import printable
from bstar_cli.pipeline.jobs import InputsArgument, ObjectivesOption, OutOption
from bstar_cli.pipeline.spark import SparkOptions
from bstar_pipeline.amounts import of_journals

# A line names services, workers and texts of others.
_LINE_CHARS_MAX = 2_000


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
