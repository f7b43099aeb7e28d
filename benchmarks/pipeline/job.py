"""The batch job on Spark, in a process of its own, for the benchmark.

python -m pipeline.job JOURNAL OUT --memory 4g --cores 2
"""

import argparse
import json
import time
from pathlib import Path

from bstar_pipeline import job
from bstar_pipeline.session import open_session
from pipeline.events import SETTINGS

# Far less than a thousandth of the data: a driver that collected records would fail.
_RESULT_MAX = "64m"


def main() -> None:
    """Run it; print as one JSON object how long it took without the start of Spark, and what it found."""
    parser = argparse.ArgumentParser(prog="pipeline.job", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE")
    asked = parser.parse_args()
    logs = asked.out / "events"
    logs.mkdir(parents=True)
    settings = {
        **SETTINGS,
        "spark.eventLog.dir": f"file:{logs}",
        "spark.driver.memory": asked.memory,
        "spark.driver.maxResultSize": _RESULT_MAX,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(asked.out / "spilled"),
        "spark.log.level": "ERROR",
        **dict(pair.split("=", 1) for pair in asked.conf),
    }
    spark = open_session("bstar benchmark", master=f"local[{asked.cores}]", settings=settings)
    begun = time.perf_counter()
    summary = job.run(spark, [str(asked.journal)], str(asked.out / "tables"))
    seconds = time.perf_counter() - begun
    spark.stop()
    print(json.dumps({"job": seconds, "records": summary.records, "requests": summary.requests}))


if __name__ == "__main__":
    main()
