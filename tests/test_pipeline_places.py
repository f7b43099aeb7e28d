"""Paths, URIs and patterns for what opens files without Spark: they name what they name for Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar_pipeline.places import Place, matching


@pytest.mark.parametrize("spelled", ["{0}", "file:{0}", "file://{0}", "FILE://localhost{0}", "{0}/"])
def test_a_directory_of_this_machine_is_one_place_however_it_is_spelled(spelled: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    assert Place.of(spelled.format(folder)) == Place("", str(folder.resolve()))


def test_a_place_in_a_store_keeps_its_bucket_and_options() -> None:
    place = Place.of("s3://bucket/a b?region=eu-central-1")
    assert (place.base, place.path) == ("s3://bucket?region=eu-central-1", "/a b")
    assert place.at("bucket/a b/file") == Place(place.base, "/a b/file")
    assert str(place) == "s3://bucket/a b"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", "an empty path"),
        ("s3a://bucket/x", "which calls s3a:// s3://"),
        ("ftp://host/x", "opens no ftp: files. It knows paths of this machine, and file://"),
        ("s3:bucket/x", "is no URI"),
        ("file://elsewhere/x", "is no path of this machine"),
        ("file:x", "is no path of this machine"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_what_can(told: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Place.of(told)


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
        found = [Path(place.path) for place in matching(f"{begin}/{pattern}")]
        files = [file for path in found for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        assert sorted(str(file.relative_to(tmp_path)) for file in files) == names
