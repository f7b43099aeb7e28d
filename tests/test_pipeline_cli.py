"""``bstar pipeline``: what its commands say, their exit codes, and that the help needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bstar.errors import ConfigurationError, PipelineError
from bstar_cli import exits
from bstar_cli.main import main
from bstar_cli.pipeline.spark import NOTHING, SparkOptions, missing_spark, print_table, time_of
from bstar_pipeline.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

VERBS = ["run", "watch", "report", "audit", "incidents", "objectives", "compact", "retain", "tables"]
ON_SPARK = ["report", "audit", "incidents", "objectives"]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_the_help_lists_every_verb_and_how_to_get_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert "pip install '.[spark]'" in shown


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_and_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"bstar pipeline {verb}" in shown
    assert "Exit codes" in shown
    # What watch tells is for people; programs read its tables.
    assert ("--json" in shown) == (verb not in ("watch", "compact", "retain"))


@pytest.mark.loopback
def test_the_command_starts_without_loading_spark() -> None:
    program = (
        "import sys; from bstar_cli.main import main; main(['pipeline', 'tables']); "
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'numpy', 'duckdb'}; "
        "sys.stderr.write(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "gold.incidents" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("verb", ON_SPARK)
def test_without_the_extra_one_sentence_says_what_to_install(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "bstar_pipeline.console", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)
    assert main(["pipeline", verb, "nowhere", "--engine", "spark"]) == exits.USAGE
    told = capsys.readouterr().err
    assert "pip install '.[spark]'" in told
    assert told.count("\n") == 1


def test_a_module_of_ours_that_is_missing_is_a_defect_and_not_an_extra() -> None:
    assert missing_spark(ModuleNotFoundError("…", name="bstar_pipeline.typo")) is None
    assert missing_spark(ModuleNotFoundError("…", name="pyspark.sql")) is not None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["audit", "x", "--from", "yesterday"], "--from yesterday: write a time like"),
        (["report", "x", "--to", "25:00"], "--to 25:00: write a time like"),
        (["incidents", "x", "--conf", "spark.ui.enabled"], "write --conf KEY=VALUE"),
        (["run", "x", "--out", "y"], "no journals to read: x does not exist"),
        (["run", "x", "--out", "s3a://y", "--engine", "local"], "folders of this machine"),
        (["watch", "x", "--out", "y"], "no journals to read: x does not exist"),
        (
            ["report", "x", "--engine", "local", "--master", "local"],
            "--engine local: --master is about Spark",
        ),
        (["report", "x", "--out", "/no/such/folder/page.html"], "there is no folder /no/such/folder"),
        (["run", "x", "--out", "y", "--since", "monday"], "--since monday: write a day like"),
        (["tables", "gold.unheard"], "there is no table gold.unheard"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *arguments]) == exits.USAGE
    assert told in capsys.readouterr().err


@pytest.mark.loopback
def test_without_java_the_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "bstar_cli", "pipeline", "audit", "x", "--engine=spark"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == exits.USAGE
    assert b"openjdk-17-jre-headless" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_failed_job_is_not_taken_for_a_violated_promise() -> None:
    assert exits.code_of(PipelineError("the cluster is gone")) == exits.SPARK_FAILED != exits.FAILED


@pytest.mark.parametrize(
    ("text", "at_us"),
    [
        (None, None),
        ("2026-11-21", 1_795_219_200_000_000),
        ("2026-11-21T08:00", 1_795_248_000_000_000),
        ("2026-11-21T09:00+01:00", 1_795_248_000_000_000),
        ("2026-11-21T08:00:00.25Z", 1_795_248_000_250_000),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str | None, at_us: int | None) -> None:
    assert time_of("--from", text) == at_us


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--to soon"):
        time_of("--to", "soon")


def test_tables_are_told_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "tables", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["table"] for each in told] == list(TABLES)
    assert main(["pipeline", "tables", "gold.incidents"]) == 0
    shown = capsys.readouterr().out
    assert "outage_us" in shown
    assert "day" in shown


def test_a_dense_table_has_no_column_that_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a", "", NOTHING, ""], ["b", "", NOTHING, "[x]"]]
    print_table(["one", "two", "three", "four"], rows, is_dense=True)
    assert capsys.readouterr().out.split() == ["ONE", "FOUR", "a", "b", "[x]"]
    print_table(["one", "two", "three", "four"], rows)
    assert "TWO" in capsys.readouterr().out


def test_a_command_that_needs_spark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert SparkOptions().is_for_spark(lambda: None)
    assert "because not all is in folders of this machine" in capsys.readouterr().err
