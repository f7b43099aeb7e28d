"""``bstar pipeline``: what the journals of pairs tell, on Spark."""

import typer

from bstar_cli.options import grouped
from bstar_cli.pipeline.answers import audit, incidents, objectives, report
from bstar_cli.pipeline.jobs import compact, retain, run, tables, watch

__all__ = ["pipeline"]

pipeline = typer.Typer(
    name="pipeline",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Read the journals of pairs: what happened, was anything lost, what will be needed.\n\n"
    "Needs the extra: pip install '.\\[spark]' in a clone of bstar. Only Spark, for what is large or far, "
    "needs Java 17 or newer. First run, then the rest:\n\n"
    "bstar pipeline run JOURNAL --out tables",
)

for _command in (run, watch, report, audit, incidents, objectives, compact, retain, tables):
    pipeline.command()(grouped(_command))
