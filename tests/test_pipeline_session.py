"""The Spark session: Java is found or asked for in words, and days are UTC."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bstar.errors import ConfigurationError
from bstar_pipeline import amounts, console, session
from bstar_pipeline.session import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that_says(folder: Path, text: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.loopback
def test_the_java_of_java_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(tmp_path / "bin" / "java")


@pytest.mark.loopback
@pytest.mark.parametrize(
    "told", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_292"', "nonsense"]
)
def test_an_old_java_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    java_that_says(tmp_path, told)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="openjdk-17-jre-headless"):
        find_java()


def test_no_java_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Java 17 or newer"):
        find_java()


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        ("1500000000", 1 << 30),
        (str(6 << 30), 3 << 30),
        (str(64 << 30), 4 << 30),
        ("max", 4 << 30),
        (None, 4 << 30),
    ],
)
def test_a_driver_gets_half_of_what_the_container_has_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, share: int
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit + "\n")
    monkeypatch.setattr(amounts, "_LIMITS", (file,))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": (32 << 30) // 4096}.__getitem__)
    assert session._driver_memory() == share


@pytest.mark.parametrize(
    ("remote", "is_here"),
    [
        (None, True),
        ("local", True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("sc://localhost:15002", False),
        ("sc://local", False),
    ],
)
def test_a_connect_server_that_is_started_here_is_as_quiet_as_a_driver_and_another_one_is_let_be(
    remote: str | None, is_here: bool
) -> None:
    assert session.starts_driver(remote) is is_here
    static = "spark.python.sql.dataFrameDebugging.enabled"
    assert (static in session._defaults(None, remote, False)) is is_here
    assert ("spark.log.level" in console._settings(None, remote)) is is_here


@pytest.mark.parametrize(
    ("master", "remote", "is_shared"),
    [
        (None, None, False),
        ("local[2]", None, False),
        (None, "local[2]", False),
        ("spark://h:1", None, True),
        ("yarn", None, True),
        (None, "sc://h:1", True),
    ],
)
def test_for_little_a_driver_here_has_one_partition_and_a_cluster_its_own(
    master: str | None, remote: str | None, is_shared: bool
) -> None:
    of_little = session._defaults(master, remote, True)
    assert (of_little.get("spark.sql.shuffle.partitions") != "1") is is_shared
    assert session._defaults(master, remote, False).get("spark.sql.shuffle.partitions") != "1"


@pytest.mark.spark
def test_a_session_counts_days_in_utc(spark: "SparkSession") -> None:
    row = spark.sql("SELECT CAST(timestamp_micros(86399999999) AS STRING) AS t").collect()[0]
    assert row["t"] == "1970-01-01 23:59:59.999999"
