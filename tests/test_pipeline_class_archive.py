"""The archive of Spark's classes: made once, used while it fits, and never seen in part."""

import os
import shlex
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from bstar_pipeline.class_archive import OPTIONS, archived


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a Spark whose driver nobody has started."""
    home = tmp_path / "a folder"
    (home / "jars").mkdir(parents=True)
    (home / "java").touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.delenv(OPTIONS, raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    return home


def java_starts(options: str, at_its_end: str) -> None:
    """A process that does this to the file of the archive when its stdin ends, as Java does."""
    made = shlex.split(options)[0].partition("=")[2]
    java = Popen(["sh", "-c", f"cat; {at_its_end}", "sh", made], stdin=PIPE)
    os.environ[OPTIONS] = options
    SparkContext._gateway = SimpleNamespace(proc=java, shutdown=lambda: None)


def archives(home: Path) -> list[str]:
    """What is in each archive."""
    return [path.read_text() for path in home.glob("*.jsa")]


def options_in(home: Path, **settings: str) -> str:
    with archived(str(home / "java"), settings) as options:
        return options


@pytest.mark.loopback
def test_the_first_session_leaves_the_archive_and_the_next_one_starts_with_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with archived(str(home / "java"), {}) as options:
        java_starts(options, 'echo classes > "$1"')
    assert archives(home) == ["classes\n"]
    assert capsys.readouterr().err.startswith("once, for quicker starts: ")
    assert OPTIONS not in os.environ
    assert options_in(home).startswith(f'"-XX:SharedArchiveFile={next(home.glob("bstar-*.jsa"))}" ')
    assert archives(home) == ["classes\n"]
    assert capsys.readouterr().err == ""


@pytest.mark.loopback
def test_of_two_first_sessions_one_makes_the_archive(home: Path) -> None:
    with archived(str(home / "java"), {}) as options:
        assert options_in(home) == ""
        java_starts(options, 'echo classes > "$1"')
    assert archives(home) == ["classes\n"]


@pytest.mark.loopback
def test_what_a_killed_session_left_goes(home: Path) -> None:
    (home / ".bstar-killed").mkdir()
    (home / ".bstar-killed" / "made.jsa").write_text("half")
    with archived(str(home / "java"), {}) as options:
        java_starts(options, "true")
    assert [path.name for path in home.iterdir() if path.is_dir()] == ["jars"]


@pytest.mark.loopback
@pytest.mark.parametrize("at_its_end", ['echo half > "$1"; exit 1', "true"])
def test_an_archive_that_java_could_not_finish_is_left_out(home: Path, at_its_end: str) -> None:
    with archived(str(home / "java"), {}) as options:
        java_starts(options, at_its_end)
    assert archives(home) == []


@pytest.mark.loopback
def test_a_session_that_fails_ends_its_java_and_leaves_nothing(home: Path) -> None:
    with pytest.raises(KeyboardInterrupt), archived(str(home / "java"), {}) as options:  # noqa: PT012
        java_starts(options, "exec sleep 60")
        raise KeyboardInterrupt
    assert archives(home) == []
    assert SparkContext._gateway is None


@pytest.mark.loopback
def test_another_java_of_that_name_makes_the_archive_anew(home: Path) -> None:
    with archived(str(home / "java"), {}) as options:
        java_starts(options, 'echo old > "$1"')
    os.utime(next(home.glob("bstar-*.jsa")), (0, 0))
    with archived(str(home / "java"), {}) as options:
        java_starts(options, 'echo new > "$1"')
    assert archives(home) == ["new\n"]


def test_in_a_folder_that_cannot_be_written_java_starts_as_it_is(home: Path) -> None:
    (home / ".bstar.lock").mkdir()
    assert options_in(home) == ""


def test_who_chooses_java_or_its_class_path_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_in(home, **{"spark.driver.extraJavaOptions": "-Xint"}) == ""
    with archived(str(home / "none"), {}) as options:
        assert options == ""
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert options_in(home) == ""
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.setenv(OPTIONS, "-Xint")
    assert options_in(home) == ""
    assert os.environ[OPTIONS] == "-Xint"
