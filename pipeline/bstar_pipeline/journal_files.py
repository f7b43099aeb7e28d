"""The files of journals: which there are, on this machine and where Spark reads, and what their names say.

Paths and patterns are as Spark spells them, for every engine: ``file:/a b`` and ``/a b`` name the same
directory, and ``%20`` stands for itself. Files are named by their URIs.
"""

import datetime as dt
import glob
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from bstar.errors import ConfigurationError
from bstar_pipeline.commits import OPEN, folder_named
from bstar_pipeline.partitions import literal

_NOWHERE = (
    "no journals to read: {} does not exist. Brokers write journals if journal.directory is set in their "
    "configuration"
)
_EMPTY = (
    "no journals to read: {} holds no file named *.ndjson, *.ndjson.gz or *.ndjson.open. Name the directory "
    "that journal.directory names in the brokers' configuration"
)
_NAMED = re.compile(r".*\.ndjson(\.gz|\.open)?")
_OPTIONS = {
    # The journals of several machines may lie in folders below the one that is named.
    "recursiveFileLookup": "true",
    # A file that is sealed while the job runs is gone under its old name: it counts as one without lines.
    "ignoreMissingFiles": "true",
    "pathGlobFilter": "*.{ndjson,ndjson.gz,ndjson.open}",
}
# <pair>.<node>.<opened>.<boot>.<segment>.ndjson…: what the name of a file says about the lines in it.
_FILE_NAME = r"([^/]+?)\.[^/.]+\.(\d{8})T\d{6}Z\.[0-9a-f]{8}\.\d+\.ndjson[^/]*$"
# No writer keeps a file open for longer than a day; another one for clocks that are set wrong.
_OPEN_DAYS_MAX = 2
_FIRST_DAY = dt.date(1970, 1, 1)
# What a URI takes as it is; Spark leaves letters of other alphabets as they are, too.
_PLAIN = "/:@&=+$,;!'()*~-_."
_SPECIAL = frozenset("*?[{\\")
# Innermost, so that choices may stand within choices.
_CHOICE = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}")


class Journal(NamedTuple):
    """A file of this machine."""

    path: str
    length: int = 0


def find_files(
    spark: SparkSession | None, paths: Sequence[str], since: dt.date | None = None
) -> dict[str, int]:
    """The length of each journal file at ``paths`` and below. Raises ConfigurationError if a path has none.

    With ``since``, those are left out that were opened so long before that day that nothing of it is in them.
    """
    if not paths:
        raise ConfigurationError("no journals to read: name at least one directory, file or pattern")
    found: dict[str, int] = {}
    for path in paths:
        if spark is None or _is_here(spark, path):
            found |= {_uri(file.path): file.length for file in files_at([path])}
        else:
            found |= _files_of_spark(spark, path)
    if since is None:
        return found
    begin = f"{since - dt.timedelta(days=_OPEN_DAYS_MAX):%Y%m%d}"
    wanted = {}
    for file, length in found.items():
        opened = re.search(_FILE_NAME, file)
        if opened is None or opened[2] >= begin:
            wanted[file] = length
    if not wanted:
        raise ConfigurationError(
            f"no journals to read: all files at {', '.join(paths)} are older than {since}"
        )
    return wanted


def _is_here(spark: SparkSession, path: str) -> bool:
    """Whether this process sees what Spark's driver does at a path."""
    if folder_named(path) is None or not hasattr(spark, "_jvm"):
        return False
    conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark has no other way to it
    return re.match("file:", path, re.IGNORECASE) is not None or conf.get("fs.defaultFS").startswith("file:")


def _files_of_spark(spark: SparkSession, path: str) -> dict[str, int]:
    try:
        files = spark.read.format("binaryFile").options(**_OPTIONS).load(path)
        # Spark spells local files in two ways; this is how rows of them have it.
        found = dict.fromkeys((re.sub("^file:/+", "file:/", file) for file in files.inputFiles()), 0)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise ConfigurationError(_NOWHERE.format(path)) from error
    if not found:
        raise ConfigurationError(_EMPTY.format(path))
    # Empty files have no row.
    rows = files.select("_metadata.file_path", "_metadata.file_size").collect()
    return found | {row.file_path: row.file_size for row in rows}


def files_at(paths: Sequence[str]) -> list[Journal]:
    """The journals of this machine at these paths (directories, files, patterns) and below, each once.

    Raises ConfigurationError if a path has none.
    """
    return list(dict.fromkeys(file for path in paths for file in _files_at(path)))


def _files_at(path: str) -> Iterator[Journal]:
    places = [Path(place).resolve() for place in matching(path)]
    if not any(place.exists() for place in places):
        raise ConfigurationError(_NOWHERE.format(path))
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            for where, _, names in os.walk(place, followlinks=True):
                found += [Path(where, name) for name in sorted(names) if _NAMED.fullmatch(name)]
        # A pattern may take other files in; whoever names one wants it read.
        elif _SPECIAL.isdisjoint(path) or _NAMED.fullmatch(place.name):
            found.append(place)
    if not found:
        raise ConfigurationError(_EMPTY.format(path))
    for file in found:
        try:
            yield Journal(str(file), file.stat().st_size)
        except FileNotFoundError:
            yield Journal(str(file))


def matching(path: str) -> list[str]:
    """The files and directories that a path or pattern names, as Hadoop's patterns do.

    ``*`` and ``?`` stay within a name, ``[a-c]`` and ``[^a]`` are letters, ``{a,b}`` either of these, and a
    backslash takes the next letter as it is. Raises ConfigurationError if it is about another machine.
    """
    place = folder_named(path) if path else None
    if place is None:
        why = f"{path} is elsewhere: the local engine reads folders of this machine"
        raise ConfigurationError(why if path else "an empty path names no file")
    if _SPECIAL.isdisjoint(path):
        return [str(place)]
    found = (sorted(glob.glob(one, include_hidden=True)) for one in _alternatives(str(place)))  # noqa: PTH207
    return [path for paths in found for path in paths]


def _alternatives(pattern: str) -> Iterator[str]:
    """The pattern once for each choice in its braces, which may hold slashes, as Python spells patterns."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        # Here "not" is another letter, and a letter is taken as it is in brackets.
        yield re.sub(r"\\(.)", lambda match: glob.escape(match[1]), pattern.replace("[^", "[!"))
        return
    for one in choice[1].split(","):
        yield from _alternatives(pattern[: choice.start()] + one + pattern[choice.end() :])


def _uri(path: str) -> str:
    return "file:" + "".join(letter if ord(letter) > 127 else quote(letter, safe=_PLAIN) for letter in path)


def place_of(file: str) -> Path:
    """Where a file of this machine is."""
    return Path(unquote(urlsplit(file).path))


def copied(files: Sequence[str], folder: Path | None) -> dict[str, str]:
    """Copies, below ``folder``, of those of these files that are open and on this machine: by file.

    A copy has what the file had, whatever its writer does meanwhile. Raises FileNotFoundError if a file of
    this machine is gone since it was listed.
    """
    found: dict[str, str] = {}
    for file in files:
        if not file.startswith("file:"):
            continue
        if folder is None or not file.endswith(OPEN):
            place_of(file).stat()
            continue
        copy = folder.resolve() / f"{len(found)}.ndjson{OPEN}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place_of(file), copy)
        found[file] = _uri(str(copy))
    return found


def is_gone(error: Exception) -> bool:
    """Whether a file that was listed is not there any more."""
    is_sparks = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
    return is_sparks or isinstance(error, FileNotFoundError)


def unopened(files: Sequence[str]) -> pa.RecordBatch:
    """These files as ``contents`` has them, without any content: their reader opens them."""
    return pa.record_batch({"file_path": list(files), "content": pa.nulls(len(files), pa.binary())})


def contents(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """These files as rows: the path of each, and all that is in it; null if executors reach it by its path.

    Files of one run are not side by side then: each partition has some of all. Raises an error of which
    ``is_gone`` says so if one was removed meanwhile.
    """
    if all(file.startswith("file:") for file in files):
        paths = sorted(files, key=lambda file: file[::-1])
        return spark.createDataFrame(pa.Table.from_batches([unopened(paths)]))
    # Spark takes them as patterns.
    paths = [literal(unquote(file) if urlsplit(file).scheme else file) for file in files]
    raw = spark.read.format("binaryFile").options(**_OPTIONS).load(paths)
    return raw.select("_metadata.file_path", "content")


def about_name(file: str) -> tuple[str, dt.date]:
    """What a file's name says: its pair, and the day on which it was opened."""
    found = re.search(_FILE_NAME, file)
    if found is None:
        return "unknown", _FIRST_DAY
    try:
        return found[1], dt.date.fromisoformat(found[2])
    except ValueError:
        return found[1], _FIRST_DAY
