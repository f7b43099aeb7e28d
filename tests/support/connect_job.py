"""Run by test_pipeline_incidents in a process of its own: the batch job under Spark Connect.

connect_job.py ROOT JOURNAL…
"""

import json
import sys

from bstar_pipeline import job
from bstar_pipeline.amounts import SMALL_JVM
from bstar_pipeline.session import open_session

# One process cannot hold a classic session and a remote one, hence this program.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A row's place in a shuffle must not matter.
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


def main(root: str, journals: list[str]) -> None:
    """Run it; print one JSON object about it."""
    spark = open_session("connect", remote="local[2]", settings=SETTINGS, is_small=True)
    try:
        summary = job.run(spark, journals, root)
        print(json.dumps({"session": type(spark).__module__, "requests": summary.requests}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
