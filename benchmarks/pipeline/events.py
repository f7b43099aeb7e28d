"""What a Spark application did, by its event log: queries, executors and plans.

The log is Spark's own record (``spark.eventLog.enabled``), so what it says is not what the program believes.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""For one plain file in ``spark.eventLog.dir``."""

_SQL = "org.apache.spark.sql.execution.ui.SparkListener"
# Operators that hand rows to a Python process and take rows back.
PYTHON_OPERATOR = re.compile(r"\b(\w*EvalPython\w*|\w*InPandas\w*|\w*InArrow\w*|Python\w*|\w*UDTF\w*)\b")
_OPERATOR = re.compile(r"^\(\d+\) ", re.MULTILINE)


@dataclass(slots=True)
class Application:
    """``executors``: ids of those that finished tasks. ``python_operators``: of all plans, adaptive ones too.
    ``operators``: of the largest plan. ``result_bytes``: what all tasks together sent to the driver.
    """

    executors: set[str] = field(default_factory=set)
    python_operators: set[str] = field(default_factory=set)
    executions: int = 0
    jobs: int = 0
    tasks: int = 0
    operators: int = 0
    shuffled_bytes: int = 0
    spilled_bytes: int = 0
    result_bytes: int = 0


def read(folder: Path) -> Application:
    """The one application whose log is in the folder."""
    (log,) = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    found = Application()
    with log.open() as lines:
        for event in map(json.loads, lines):
            kind = event["Event"]
            if kind in {f"{_SQL}SQLExecutionStart", f"{_SQL}SQLAdaptiveExecutionUpdate"}:
                plan = event["physicalPlanDescription"]
                found.python_operators.update(PYTHON_OPERATOR.findall(plan))
                if kind.endswith("Start"):
                    found.executions += 1
                    found.operators = max(found.operators, len(_OPERATOR.findall(plan)))
            elif kind == "SparkListenerJobStart":
                found.jobs += 1
            elif kind == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                found.executors.add(event["Task Info"]["Executor ID"])
                found.tasks += 1
                told = event["Task Metrics"]
                found.shuffled_bytes += told["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                found.spilled_bytes += told["Disk Bytes Spilled"]
                found.result_bytes += told["Result Size"]
    return found
