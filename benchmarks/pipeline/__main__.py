"""The pipeline's batch job beside DuckDB, on journals of simulated pairs: ``make bench-pipeline``.

    make bench-pipeline                         5 and 50 million requests; about 35 minutes, 20 GB
    make bench-pipeline MILLIONS=1,2 MEMORY=2   smaller; MEMORY in GB is what either may use for data

For each size: journals of two pairs at the same rate, the job on Spark, then DuckDB, each in a process of its
own. Then both are compared, every number of every table, and the job's event log is asked for Python in its
plans and for data sent to the driver. The seconds of the job's tables overlap, because it writes two at a
time. Status 0: the two agree and the plans are clean; 1: not so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipeline import events
from pipeline.compare import Difference, compare
from pipeline.journals import make_once
from pipeline.measure import Cost, run

PAIRS = 2
# Of each pair; so 50 million requests are a day of two pairs.
RATE = 290.0
# The sum of what tasks send back about themselves; records of a millionth of the input would be more.
_RESULT_BYTES_PER_TASK_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Trial:
    """One size, both engines."""

    requests: int
    records: int
    journal_bytes: int
    spark: Cost
    duck: Cost
    application: events.Application
    rows: dict[str, int]
    differences: list[Difference]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", default="5,50", help="of request records, each size in turn")
    parser.add_argument("--memory", type=int, default=4, help="GB: Spark's heap, DuckDB's memory_limit")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE for Spark")
    parser.add_argument(
        "--folder", type=Path, help="keep everything here, and journals that are here already"
    )
    asked = parser.parse_args(arguments)
    trials = []
    for millions in map(float, asked.millions.split(",")):
        folder = asked.folder or Path(tempfile.mkdtemp(prefix="bstar-pipeline-"))
        try:
            trial = measure(folder / f"{millions:g}", round(millions * 1e6), asked)
        finally:
            if asked.folder is None:
                shutil.rmtree(folder)
        trials.append(trial)
        _print(trial)
    _print_table(trials, asked)
    return 0 if all(not trial.differences and is_clean(trial.application) for trial in trials) else 1


def measure(folder: Path, requests: int, asked: argparse.Namespace) -> Trial:
    """Make the journals if they are not there, run both, compare."""
    say(f"{requests:,} requests: writing journals, if they are not here")
    journal, records = make_once(folder, requests, pairs=PAIRS, rate=RATE)
    spark, duck, log = folder / "spark", folder / "duck", folder / "log"
    shutil.rmtree(spark, ignore_errors=True)
    shutil.rmtree(duck, ignore_errors=True)
    python = sys.executable
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    say("Spark")
    options = [*("--cores", str(asked.cores)), *(part for one in asked.conf for part in ("--conf", one))]
    by_spark = run(
        [python, "-m", "pipeline.job", str(journal), str(spark), "--memory", f"{asked.memory}g", *options],
        path,
        log,
    )
    shutil.rmtree(spark / "spilled", ignore_errors=True)
    say("DuckDB")
    limits = ["--memory", f"{asked.memory}GB", "--threads", str(asked.cores)]
    by_duck = run([python, "-m", "pipeline.duck", str(journal), str(duck), *limits], path, log)
    say("comparing")
    rows, differences = compare(spark / "tables", duck)
    return Trial(
        requests=requests,
        records=records,
        journal_bytes=sum(file.stat().st_size for file in journal.iterdir()),
        spark=by_spark,
        duck=by_duck,
        application=events.read(spark / "events"),
        rows=rows,
        differences=differences,
    )


def is_clean(application: events.Application) -> bool:
    """No Python among the operators, and what came to the driver was about tasks, not data."""
    is_small = application.result_bytes <= _RESULT_BYTES_PER_TASK_MAX * application.tasks
    return not application.python_operators and is_small


def _print(trial: Trial) -> None:
    application = trial.application
    size = trial.journal_bytes / 1e9
    say(f"{trial.requests:,} requests, {trial.records:,} records, {size:.2f} GB packed")
    told = {**trial.spark.told, **{f"DuckDB {name}": value for name, value in trial.duck.told.items()}}
    for name, seconds in told.items():
        say(f"    {name:24} {seconds:12,.1f}")
    for step in application.steps.values():
        say(
            f"    {step.table or '(look-ups)':24} {step.seconds:8.1f} s  {step.queries:3} queries  "
            f"shuffled {step.shuffled_bytes / 1e6:9,.1f} MB  spilled {step.spilled_bytes / 1e6:9,.1f} MB"
        )
    say(f"    operators in Python: {', '.join(sorted(application.python_operators)) or 'none'}")
    say(
        f"    results sent to the driver: {application.result_bytes / 1e6:.1f} MB of {application.tasks} "
        f"tasks, {application.result_bytes_max / 1e6:.1f} MB at most by one query"
    )
    for table, rows in trial.rows.items():
        wrong = [
            f"{one.column or 'rows of one engine only'}: {one.rows}"
            for one in trial.differences
            if one.table == table
        ]
        say(f"    {table:24} {rows:12,} rows  {'the same' if not wrong else '; '.join(wrong)}")


def _print_table(trials: list[Trial], asked: argparse.Namespace) -> None:
    print(f"\n{asked.cores} cores, {asked.memory} GB for each engine\n")
    print("| requests | engine | seconds | records/s | CPU s | peak memory | same numbers |")
    print("|---|---|---|---|---|---|---|")
    for trial in trials:
        for name, cost in (("Spark, all tables", trial.spark), ("DuckDB, gold tables", trial.duck)):
            print(
                f"| {trial.requests / 1e6:g} million | {name} | {cost.wall_s:.0f} | "
                f"{trial.records / cost.wall_s:,.0f} | {cost.cpu_s:.0f} | {cost.peak_bytes / 1e9:.1f} GB | "
                f"{'yes' if not trial.differences else 'NO'} |"
            )
    first = trials[0]
    for trial in trials[1:]:
        print(
            f"\n{first.requests / 1e6:g} to {trial.requests / 1e6:g} million: "
            f"{trial.records / first.records:.1f} times the records, "
            f"Spark {trial.spark.wall_s / first.spark.wall_s:.1f} times the time, "
            f"DuckDB {trial.duck.wall_s / first.duck.wall_s:.1f} times"
        )


def say(text: str) -> None:
    """At once, so that a pipe shows it too."""
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
