"""Tables in a folder of this machine: answers about them need no Spark and no Java."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bstar_cli import exits
from bstar_cli.main import main
from bstar_pipeline import amounts
from support.planted_tables import save

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_795_262_400_000_000
RUN = {"node": "primary", "boot": "b1", "source": "broker", "started_at_us": NOON, "last_at_us": NOON + 100}


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bstar_pipeline.console", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)


def _plant(root: Path) -> Path:
    save(root, "silver.runs", [RUN])
    save(root, "silver.requests", [{"ended_at_us": NOON + n, "weight": 1.5} for n in range(4)])
    save(root, "gold.incidents", [{"kind": "crash", "node": "primary", "began_at_us": NOON}])
    save(root, "gold.audit", [{"rule": "lost", "verdict": "violated", "client": "c1", "number": 7}])
    return root


def _told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_audit_of_a_folder_needs_no_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "audit", str(_plant(tmp_path)), "--json"]) == exits.FAILED
    finding, verdict = _told(capsys)
    assert (finding["rule"], finding["client"], finding["number"], finding["count"]) == ("lost", "c1", 7, 1)
    assert verdict["requests"] == 6.0
    assert verdict["by_rule"] == [{"rule": "lost", "violated": 1, "excused": 0, "unproven": 0}]


def test_the_incidents_of_a_folder_need_no_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "incidents", str(_plant(tmp_path)), "--json"]) == exits.OK
    (incident,) = _told(capsys)
    assert (incident["kind"], incident["pair"], incident["outage_us"]) == ("crash", "orders", None)


@pytest.mark.parametrize("name", ["it's here", "[old] *", "a?b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "incidents", str(_plant(tmp_path / name)), "--json"]) == exits.OK
    assert len(_told(capsys)) == 1


def test_a_pair_whose_name_is_a_number_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "silver.runs", [RUN | {"pair": "0042"}])
    save(tmp_path, "gold.incidents", [{"kind": "crash", "began_at_us": NOON, "pair": "0042"}])
    assert main(["pipeline", "incidents", str(tmp_path), "--pair", "0042", "--json"]) == exits.OK
    assert [each["pair"] for each in _told(capsys)] == ["0042"]


def test_a_table_that_was_never_written_was_not_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "silver.runs", [RUN])
    assert main(["pipeline", "audit", str(tmp_path), "--json"]) == exits.NOT_PROVEN
    (verdict,) = _told(capsys)
    assert verdict["by_rule"] is None
    assert verdict["requests"] == 0


def test_a_column_that_older_files_lack_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "silver.runs", [RUN])
    old = [{"kind": "crash", "began_at_us": NOON}]
    save(tmp_path, "gold.incidents", old, lacks=frozenset({"cause", "unknown"}))
    assert main(["pipeline", "incidents", str(tmp_path), "--json"]) == exits.OK
    (incident,) = _told(capsys)
    assert (incident["cause"], incident["unknown"]) == ("", 0)


def test_a_folder_without_tables_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "audit", str(tmp_path)]) == exits.USAGE
    assert "bstar pipeline run JOURNAL" in capsys.readouterr().err


def test_a_file_that_is_no_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = _plant(tmp_path).rglob("gold/audit/*.parquet")
    file.write_bytes(b"torn")
    assert main(["pipeline", "audit", str(tmp_path)]) == exits.SPARK_FAILED
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--master", "local[1]"], ["--conf", "spark.ui.enabled=false"]])
def test_an_option_about_spark_chooses_spark(
    tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "audit", str(_plant(tmp_path)), *option]) == exits.USAGE
    assert "pip install '.[spark]'" in capsys.readouterr().err


def test_beyond_a_size_that_is_said_spark_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(amounts, "_TABLES_MAX", 100)
    assert main(["pipeline", "audit", str(_plant(tmp_path))]) == exits.USAGE
    told = capsys.readouterr().err
    assert "engine: Spark, because tables have" in told
    assert "the local one is for 0 MB at most" in told
    assert "pip install '.[spark]'" in told
