"""What ``bstar pipeline run`` takes, on each engine, beside DuckDB by hand: ``make bench-pipeline``.

    make bench-pipeline                     40,000 records, 1 and 5 million requests; half an hour, 4 GB
    make bench-pipeline REQUESTS=13e3,1e6   other sizes; a request has a record of its node, client, worker

For each size: synthetic journals of two pairs, the command on each engine as a user starts it, then
``by_hand.sql`` on DuckDB. CPU seconds and memory are those of all processes together, the start of Python and
of a JVM among them. Queries, jobs, tasks and shuffled bytes are what Spark's event log says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bstar_pipeline.amounts import of_journals
from pipeline import events
from pipeline.journals import make_once
from pipeline.measure import Cost, run
from sim.journals import JOURNAL

PAIRS = 2
# Of each pair, a second.
RATE, _FEW = 290.0, 100_000
_DUCK = """
import duckdb, sys
duckdb.execute("SET VARIABLE journals = '" + sys.argv[1] + "'")
duckdb.execute(open(sys.argv[2]).read())
print("{}")
"""
_HEADINGS = (
    "records", "engine", "wall s", "CPU s", "CPU µs a record", "peak memory", "queries", "jobs", "tasks",
    "shuffled", "largest plan",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", default="13e3,1e6,5e6", help="each size in turn")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keep all here, and take journals that are here already")
    asked = parser.parse_args(arguments)
    rows = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for requests in map(float, asked.requests.split(",")):
        folder = asked.folder or Path(tempfile.mkdtemp(prefix="bstar-pipeline-"))
        try:
            rows += measure((folder / f"{requests:g}").resolve(), round(requests), asked.cores)
        finally:
            if asked.folder is None:
                shutil.rmtree(folder)
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0


def measure(folder: Path, requests: int, cores: int) -> list[tuple[str, ...]]:
    """Make the journals if they are not there, run all; a row for each."""
    journal, out = folder / JOURNAL, folder / "out"
    say(f"{requests:,} requests: journals, if they are not here")
    _, records = make_once(folder, requests, pairs=PAIRS, rate=RATE if requests > _FEW else RATE / 10)
    shutil.rmtree(out, ignore_errors=True)
    (out / "events").mkdir(parents=True)
    amount = of_journals([str(journal)], str(out))
    engines = ["spark", "local"] if amount is not None and amount.is_small else ["spark"]
    rows = []
    for engine in engines:
        say(f"{requests:,} requests: {engine}")
        command = [sys.executable, "-m", "bstar_cli", "pipeline", "run", str(journal), "--json"]
        command += ["--out", str(out / engine), "--engine", engine]
        if engine == "spark":
            logged = events.SETTINGS | {"spark.eventLog.dir": f"file:{out}/events"}
            command += ["--master", f"local[{cores}]"]
            command += [part for one in logged.items() for part in ("--conf", "=".join(one))]
        cost = run(command, {}, folder / "log")
        assert int(cost.told["records"]) == records, "records were lost"
        application = events.read(out / "events") if engine == "spark" else None
        rows.append(_row(records, engine, cost, application))
    say(f"{requests:,} requests: DuckDB by hand")
    script = str(Path(__file__).with_name("by_hand.sql").resolve())
    command = [sys.executable, "-c", _DUCK, f"{journal}/*.gz", script]
    cost = run(["env", "-C", str(out), *command], {}, folder / "log")
    return [*rows, _row(records, "DuckDB by hand", cost, None)]


def _row(records: int, engine: str, cost: Cost, told: events.Application | None) -> tuple[str, ...]:
    plans: tuple[str, ...] = ("",) * 5
    if told is not None:
        shuffled = f"{told.shuffled_bytes / 1e6:,.0f} MB"
        plans = (*map(str, (told.executions, told.jobs, told.tasks)), shuffled, str(told.operators))
    return (
        f"{records:,}",
        engine,
        f"{cost.wall_s:.0f}",
        f"{cost.cpu_s:.0f}",
        f"{cost.cpu_s / records * 1e6:.0f}",
        f"{cost.peak_bytes / 1e9:.1f} GB",
        *plans,
    )


def say(text: str) -> None:
    """At once, so that a pipe shows it too."""
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
