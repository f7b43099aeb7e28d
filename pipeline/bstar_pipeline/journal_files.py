"""The files of journals as Spark reads them: which there are, their lines, and what their names say.

A packed file without its end makes Spark stop reading that file (``ignoreCorruptFiles``) and go on with the
next; that its last record, which says how many lines there are, is missing is how ``copies.files`` knows.

Nothing here starts a Spark job, except what a path's listing takes.
"""

import datetime as dt
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar.errors import ConfigurationError
from bstar_pipeline.places import literal

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

OPEN = ".open"
"""How the name of a file ends that a process writes."""

_ALL = "*.{ndjson,ndjson.gz,ndjson.open}"
_OPTIONS = {
    # The journals of several machines may lie in folders below the one that is named.
    "recursiveFileLookup": "true",
    # A packed file without its end is read as far as it goes.
    "ignoreCorruptFiles": "true",
    # A file that is sealed while the job runs is gone under its old name: it counts as one without lines.
    "ignoreMissingFiles": "true",
}
# <pair>.<node>.<opened>.<boot>.<segment>.ndjson…: what the name of a file says about the lines in it.
_FILE_NAME = r"([^/]+?)\.[^/.]+\.(\d{8})T\d{6}Z\.[0-9a-f]{8}\.\d+\.ndjson[^/]*$"
# No writer keeps a file open for longer than a day; another one for clocks that are set wrong.
_OPEN_DAYS_MAX = 2
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
            here = _reader(spark, _ALL).text(path).inputFiles()
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
            found[file] = copy.resolve().as_uri()
    return found


def is_gone(error: Exception) -> bool:
    """Whether a file that was listed is not there any more."""
    is_sparks = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
    return is_sparks or isinstance(error, FileNotFoundError)


def is_before(file: str, since: dt.date) -> bool:
    """Was the file's last record written before that day? By its name; a file of another name never was."""
    opened = re.search(_FILE_NAME, file)
    return opened is not None and opened[2] < f"{since - dt.timedelta(days=_OPEN_DAYS_MAX):%Y%m%d}"


def _reader(spark: SparkSession, names: str) -> DataFrameReader:
    return spark.read.options(**_OPTIONS).option("pathGlobFilter", names).option("lineSep", "\n")


def lines_of(spark: SparkSession, files: Sequence[str], copies: Mapping[str, str] | None = None) -> DataFrame:
    """Every line of these files, as ``find_files`` names them: ``value``, ``file``.

    Of a file that is ``copied`` its copy is read.
    """
    copies = copies or {}
    text = _reader(spark, _ALL).text([_literal(copies.get(file, file)) for file in files])
    path = F.col("_metadata.file_path")
    if copies:
        # All copies are in one folder, whose name no other has; each is named by its place in the list.
        folder = next(iter(copies.values())).split("/")[-2]
        place = F.regexp_extract(path, r"/(\d+)\.[^/]*$", 1).cast("int")
        names = F.array(*(F.lit(file) for file in copies))
        path = F.when(path.contains(f"/{folder}/"), F.get(names, place)).otherwise(path)
    return text.select("value", path.alias("file"))


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


def pair_of_file() -> Column:
    """The pair that the name of the file in column ``file`` says, or "unknown"."""
    found = F.regexp_extract("file", _FILE_NAME, 1)
    return F.when(found == "", "unknown").otherwise(found)


def day_of_file() -> Column:
    """The day (UTC) on which that file was opened, or the first one of all."""
    digits = F.regexp_extract("file", _FILE_NAME, 2)
    parts = (F.substring(digits, 1, 4), F.substring(digits, 5, 2), F.substring(digits, 7, 2))
    day = F.concat_ws("-", *parts).try_cast("date")
    return F.coalesce(day, F.lit("1970-01-01").cast("date"))


def unpacked(spark: SparkSession, packed: Sequence[str]) -> DataFrame:
    """Those of some packed files (few) that can be unpacked to their end: ``file``.

    Their writer was killed, and its successor packed what it had left. The last four bytes of a packed file
    are its length unpacked (RFC 1952, 2.3.1); a file that was cut has anything there.
    """
    paths = [_literal(file) for file in packed]
    lengths = lines_of(spark, packed).groupBy("file").agg(F.sum(F.octet_length("value") + 1).alias("length"))
    tail = F.hex(F.expr("substring(content, -4, 4)"))
    parts = [F.substring(tail, 7 - 2 * place, 2) for place in range(4)]
    stated = F.conv(F.concat(*parts), 16, 10).cast("bigint")
    raw = spark.read.format("binaryFile").options(**_OPTIONS).load(paths)
    tails = raw.select(F.col("_metadata.file_path").alias("file"), stated.alias("stated"))
    length = F.col("length") % 2**32
    # The last line may be torn, and then has no end.
    is_whole = (F.col("stated") == length) | (F.col("stated") == length - 1)
    return tails.join(lengths, "file").where(is_whole).select("file")
