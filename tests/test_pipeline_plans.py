"""How Spark makes each large table: its operators and shuffles, as files in tests/golden/plans.

A plan is read by people. After a change that is meant to alter one, run this module with
BSTAR_WRITE_GOLDEN=1, read the difference line by line, and commit it. A plan has its operators by name,
indented as Spark shows them, and after that the keys of its shuffles without the numbers of columns.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.events import PYTHON_OPERATOR
from support.journals import Run, frame, write
from support.plans import plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bstar_pipeline.partitions import Stored

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parent / "golden" / "plans"
OPERATORS_MAX = 100
# How often the rows of a table's input are moved. A window after an aggregation moves what is left of them.
SHUFFLES = {
    "lines": 0, "ranges": 0, "facts": 1, "requests": 1, "gaps": 1, "audit": 1,
    "sketches": 1, "clients": 1, "objectives": 1,
}  # fmt: skip
# How often their rows go to Python and come back.
IN_PYTHON = dict.fromkeys(SHUFFLES, 2) | {"lines": 1, "ranges": 1, "audit": 3}


@pytest.fixture(scope="module")
def plans(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The plan of each table, as Spark tells it."""
    from bstar_pipeline import bronze, copies, journal_files, silver
    from bstar_pipeline.bronze import SHAPE
    from bstar_pipeline.gold import audit, clients, objectives, outages
    from bstar_pipeline.partitions import stored
    from bstar_pipeline.schema import RECORDS

    folder = tmp_path_factory.mktemp("plans")
    run = Run("primary")
    run.start()
    run.request(1_000_000, "c1", 1)
    write(folder / "journals" / run.name(), run.lines())

    def table(name: str, rows: DataFrame) -> Stored:
        rows.write.parquet(str(folder / name))
        return stored(spark, map(str, (folder / name).glob("*.parquet")), rows.schema, is_here=True)

    files = journal_files.find_files(spark, [str(folder / "journals")])
    contents = journal_files.contents(spark, list(files))
    lines = contents.mapInArrow(partial(bronze.on_executor, {}, None), SHAPE)
    records = table("records", frame(spark, [run]).select(*RECORDS.names))
    runs = silver.runs(silver.facts(records)[0])
    requests = table("requests", silver.requests(records, runs).frame)
    frames = {
        "lines": lines,
        "ranges": copies.summed(table("typed", lines)).frame,
        "facts": silver.fact_rows(records).frame,
        "requests": silver.requests(records, runs).frame,
        "gaps": outages.gaps(requests, {}).frame,
        "audit": audit.audit(requests, runs).frame,
        "sketches": objectives.sketches(records).frame,
        "clients": clients.clients(records).frame,
        "objectives": objectives.objectives(table("sketches", objectives.sketches(records).frame)).frame,
    }
    return {name: plan_of(each) for name, each in frames.items()}


def normalised(plan: str) -> str:
    """Operators by name, then the keys of each shuffle in order."""
    tree, _, details = plan.partition("\n\n\n")
    # A star marks what Spark compiles as one method.
    lines = (line.replace("* ", "") for line in tree.splitlines()[1:] if line.strip())
    operators = [re.sub(r"\s*\(\d+\)$", "", line) for line in lines]
    shuffled = re.findall(r"^\(\d+\) Exchange\n.*\nArguments: (\w+)\(([^)]*)\)", details, re.MULTILINE)
    keys = (f"{how}({re.sub(r'#[0-9]+L?', '', by)})" for how, by in shuffled)
    return "\n".join([*operators, "", *(re.sub(r", \d+$", "", key) for key in keys), ""])


@pytest.mark.parametrize("name", SHUFFLES)
def test_the_plan_of_a_large_table_is_the_one_that_was_read(plans: dict[str, str], name: str) -> None:
    golden, plan = GOLDEN / f"{name}.txt", normalised(plans[name])
    if os.environ.get("BSTAR_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(plan, "utf-8")
    assert plan == golden.read_text("utf-8")
    operators = plan.partition("\n\n")[0].splitlines()
    assert len(operators) <= OPERATORS_MAX
    shuffles = [line for line in operators if re.search(r"\bExchange$", line)]
    assert len(shuffles) == SHUFFLES[name]
    assert len(PYTHON_OPERATOR.findall(plan)) == IN_PYTHON.get(name, 0)
