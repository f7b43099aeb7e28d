"""Paths and patterns for what opens files without Spark: they name what they name for Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar_pipeline.journal_files import matching


@pytest.mark.parametrize("spelled", ["{0}", "file:{0}", "file://{0}", "FILE://localhost{0}", "{0}/"])
def test_a_directory_of_this_machine_is_one_place_however_it_is_spelled(spelled: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    assert matching(spelled.format(folder)) == [str(folder)]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", "an empty path"),
        ("s3a://bucket/x", "s3a://bucket/x is elsewhere"),
        ("file://elsewhere/x", "is elsewhere"),
        ("file:x", "is elsewhere"),
    ],
)
def test_what_is_not_of_this_machine_is_refused(told: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        matching(told)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", ["a1/x.gz", "a2/x.gz", "b 1/y", "b 1/z*"]),
        ("a?", ["a1/x.gz", "a2/x.gz"]),
        ("a[12]/x.gz", ["a1/x.gz", "a2/x.gz"]),
        ("a[^1]", ["a2/x.gz"]),
        ("{a1,b 1/y}", ["a1/x.gz", "b 1/y"]),
        ("{a{1,2},nothing}/*.gz", ["a1/x.gz", "a2/x.gz"]),
        (r"b 1/z\*", ["b 1/z*"]),
        ("c*", []),
        ("*/x.gz/below", []),
    ],
)
def test_a_pattern_names_what_it_names_for_hadoop(pattern: str, names: list[str], tmp_path: Path) -> None:
    for name in ("a1/x.gz", "a2/x.gz", "b 1/y", "b 1/z*"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for begin in (str(tmp_path), tmp_path.as_uri()):
        found = [Path(place) for place in matching(f"{begin}/{pattern}")]
        files = [file for path in found for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        assert sorted(str(file.relative_to(tmp_path)) for file in files) == names
