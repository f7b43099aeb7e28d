"""The files of journals: which there are, on this machine and where Spark reads, and what their names say."""

import datetime as dt
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from bstar.errors import ConfigurationError
from bstar_pipeline.commits import OPEN
from bstar_pipeline.pair_rows import frame_of
from bstar_pipeline.places import is_pattern, literal, matching

NOWHERE = (
    "no journals to read: {} does not exist. Brokers write journals if journal.directory is set in their "
    "configuration"
)
"""What is wrong with a path that leads nowhere, a pattern that nothing matches among them."""

EMPTY = (
    "no journals to read: {} holds no file named *.ndjson, *.ndjson.gz or *.ndjson.open. Name the directory "
    "that journal.directory names in the brokers' configuration"
)
"""What is wrong with a path that leads to no journal."""

_ALL = "*.{ndjson,ndjson.gz,ndjson.open}"
_NAMED = re.compile(r".*\.ndjson(\.gz|\.open)?")
_OPTIONS = {
    # The journals of several machines may lie in folders below the one that is named.
    "recursiveFileLookup": "true",
    # A file that is sealed while the job runs is gone under its old name: it counts as one without lines.
    "ignoreMissingFiles": "true",
}
# <pair>.<node>.<opened>.<boot>.<segment>.ndjson…: what the name of a file says about the lines in it.
_FILE_NAME = r"([^/]+?)\.[^/.]+\.(\d{8})T\d{6}Z\.[0-9a-f]{8}\.\d+\.ndjson[^/]*$"
# No writer keeps a file open for longer than a day; another one for clocks that are set wrong.
_OPEN_DAYS_MAX = 2
_CONTENT = StructType([StructField("file_path", StringType()), StructField("content", BinaryType())])
_FIRST_DAY = dt.date(1970, 1, 1)


def find_files(spark: SparkSession, paths: Sequence[str], since: dt.date | None = None) -> list[str]:
    """The journal files at ``paths``, as Spark spells them. Raises ConfigurationError if a path has none.

    With ``since``, those are left out that were opened so long before that day that nothing of it is in them.
    """
    if not paths:
        raise ConfigurationError("no journals to read: name at least one directory, file or pattern")
    found: dict[str, None] = {}
    for path in paths:
        try:
            here = spark.read.options(**_OPTIONS, pathGlobFilter=_ALL).text(path).inputFiles()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise ConfigurationError(NOWHERE.format(path)) from error
        if not here:
            raise ConfigurationError(EMPTY.format(path))
        # Spark spells local files in two ways; this is how rows of them have it.
        found.update((re.sub("^file:/+", "file:/", file), None) for file in here)
    wanted = [file for file in found if since is None or not is_before(file, since)]
    if not wanted:
        raise ConfigurationError(
            f"no journals to read: all files at {', '.join(paths)} are older than {since}"
        )
    return wanted


class Journal(NamedTuple):
    """A file of this machine."""

    path: str
    length: int = 0


def files_at(paths: Sequence[str]) -> list[Journal]:
    """The journals at these paths (directories, files, patterns) and below, each once.

    Raises ConfigurationError if a path has none.
    """
    return list(dict.fromkeys(file for path in paths for file in _files_at(path)))


def _files_at(path: str) -> Iterator[Journal]:
    """The journal files that one path leads to. Raises ConfigurationError without any."""
    places = [Path(place).resolve() for place in matching(path)]
    if not any(place.exists() for place in places):
        raise ConfigurationError(NOWHERE.format(path))
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            for where, _, names in os.walk(place, followlinks=True):
                found += [Path(where, name) for name in sorted(names) if _NAMED.fullmatch(name)]
        # A pattern may take other files in; whoever names one wants it read.
        elif not is_pattern(path) or _NAMED.fullmatch(place.name):
            found.append(place)
    if not found:
        raise ConfigurationError(EMPTY.format(path))
    return (Journal(str(file), length_of(file)) for file in found)


def lengths(spark: SparkSession, files: Sequence[str]) -> dict[str, int]:
    """How many bytes each of these files has; 0 if it is gone."""
    if are_here(spark, files):
        return {file: length_of(place_of(file)) for file in files}
    about = spark.read.format("binaryFile").options(**_OPTIONS).load([_literal(file) for file in files])
    rows = about.select("_metadata.file_path", "_metadata.file_size").collect()
    return {**dict.fromkeys(files, 0), **{row.file_path: row.file_size for row in rows}}


def are_here(spark: SparkSession, files: Sequence[str]) -> bool:
    """Whether this process sees these files that Spark listed: they are local, and the driver is here."""
    return hasattr(spark, "_jvm") and all(file.startswith("file:") for file in files)


def place_of(file: str) -> Path:
    """Where such a file is."""
    return Path(unquote(urlsplit(file).path))


def length_of(place: Path) -> int:
    """How many bytes a file of this machine has; 0 if it is gone."""
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return 0


def copied(files: Sequence[str], folder: Path) -> dict[str, str]:
    """Copies, below ``folder``, of those of these files that are open and on this machine: by file.

    A copy has what the file had, whatever its writer does meanwhile. Raises FileNotFoundError if a file was
    sealed since it was listed.
    """
    found: dict[str, str] = {}
    for file in files:
        if file.startswith("file:") and file.endswith(OPEN):
            copy = folder / f"{len(found)}.ndjson{OPEN}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place_of(file), copy)
            # As rows of it will have it.
            found[file] = copy.resolve().as_uri().replace("file://", "file:", 1)
    return found


def is_gone(error: Exception) -> bool:
    """Whether a file that was listed is not there any more."""
    is_sparks = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
    return is_sparks or isinstance(error, FileNotFoundError)


def is_before(file: str, since: dt.date) -> bool:
    """Was the file's last record written before that day? By its name; a file of another name never was."""
    opened = re.search(_FILE_NAME, file)
    return opened is not None and opened[2] < f"{since - dt.timedelta(days=_OPEN_DAYS_MAX):%Y%m%d}"


def contents(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """These files, as ``find_files`` names them, as rows: the path of each, and all that is in it.

    It is null if executors reach the file by its path. Files of one run are not side by side then: each
    partition has some of all. Raises an error of which ``is_gone`` says so if one was removed meanwhile.
    """
    if all(file.startswith("file:") for file in files):
        paths = sorted(files, key=lambda file: file[::-1])
        if are_here(spark, files):
            for path in paths:
                place_of(path).stat()
        return frame_of(spark, ({"file_path": path} for path in paths), _CONTENT)
    raw = spark.read.format("binaryFile").options(**_OPTIONS).load([_literal(file) for file in files])
    return raw.select("_metadata.file_path", "content")


def _literal(file: str) -> str:
    """A path that names this file, as ``inputFiles`` gives it (percent-encoded), and no pattern."""
    path = unquote(file) if urlsplit(file).scheme else file
    return literal(path)


def about_name(file: str) -> tuple[str, dt.date]:
    """The same of one file in plain Python: its pair, and the day on which it was opened."""
    found = re.search(_FILE_NAME, file)
    if found is None:
        return "unknown", _FIRST_DAY
    try:
        return found[1], dt.date.fromisoformat(found[2])
    except ValueError:
        return found[1], _FIRST_DAY
