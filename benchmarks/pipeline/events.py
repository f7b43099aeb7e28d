"""What a Spark application did, by its event log: tables, seconds, executors and plans.

The log is Spark's own record (``spark.eventLog.enabled``), so what it says is not what the program believes.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""For one plain file in ``spark.eventLog.dir``."""

_SQL = "org.apache.spark.sql.execution.ui.SparkListener"
# Operators that hand rows to a Python process and take rows back.
PYTHON_OPERATOR = re.compile(r"\b(\w*EvalPython\w*|\w*InPandas\w*|\w*InArrow\w*|Python\w*|\w*UDTF\w*)\b")
WRITTEN_TABLE = re.compile(
    r"Execute InsertIntoHadoopFsRelationCommand\n(?:[^\n]*\n)??Arguments: [^,\s]+?/(bronze|silver|gold)/(\w+)"
)


@dataclass(slots=True)
class Step:
    """The queries that wrote one table, or, as table "", looked something up."""

    table: str
    seconds: float = 0.0
    queries: int = 0
    shuffled_bytes: int = 0
    spilled_bytes: int = 0


@dataclass(slots=True)
class Application:
    """``executors``: ids of those that finished tasks. ``python_operators``: of all plans, adaptive ones too.
    ``result_bytes``: what all tasks together sent to the driver as results, the largest of any query in
    ``result_bytes_max``.
    """

    executors: set[str] = field(default_factory=set)
    python_operators: set[str] = field(default_factory=set)
    result_bytes: int = 0
    result_bytes_max: int = 0
    tasks: int = 0
    steps: dict[str, Step] = field(default_factory=dict)


def read(folder: Path) -> Application:
    """The one application whose log is in the folder."""
    (log,) = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    found = Application()
    table_of: dict[int, str] = {}
    begun_ms: dict[int, int] = {}
    query_of: dict[int, int] = {}
    results: dict[int, int] = {}
    for event in _events(log):
        kind = event["Event"]
        if kind in {f"{_SQL}SQLExecutionStart", f"{_SQL}SQLAdaptiveExecutionUpdate"}:
            query, plan = event["executionId"], event["physicalPlanDescription"]
            found.python_operators.update(PYTHON_OPERATOR.findall(plan))
            if kind.endswith("Start"):
                begun_ms[query] = event["time"]
                named = WRITTEN_TABLE.search(plan)
                table_of[query] = f"{named[1]}.{named[2]}" if named else ""
        elif kind == f"{_SQL}SQLExecutionEnd":
            step = _step(found, table_of[event["executionId"]])
            step.seconds += (event["time"] - begun_ms[event["executionId"]]) / 1000
            step.queries += 1
        elif kind == "SparkListenerJobStart":
            query = int(event.get("Properties", {}).get("spark.sql.execution.id") or -1)
            query_of.update((stage, query) for stage in event["Stage IDs"])
        elif kind == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
            query = query_of.get(event["Stage ID"], -1)
            step = _step(found, table_of.get(query, ""))
            found.executors.add(event["Task Info"]["Executor ID"])
            found.tasks += 1
            told = event["Task Metrics"]
            step.shuffled_bytes += told["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            step.spilled_bytes += told["Disk Bytes Spilled"]
            results[query] = results.get(query, 0) + told["Result Size"]
    found.result_bytes = sum(results.values())
    found.result_bytes_max = max(results.values(), default=0)
    return found


def _step(found: Application, table: str) -> Step:
    return found.steps.setdefault(table, Step(table))


def _events(log: Path) -> Iterator[dict[str, Any]]:
    with log.open() as lines:
        for line in lines:
            yield json.loads(line)
