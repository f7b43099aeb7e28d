"""Journals as rows for the data source: which files a filter leaves, and what is in them.

A file's name has its pair, its node, its boot and the time when it was opened. The next segment's name shows
when it was closed. So filters on ``pair``, ``node``, ``boot``, ``day``, ``time`` and ``at`` select the files
to open. In an opened file the filters on words (``pair``, ``node``, ``boot``, ``kind``, ``topic``) are
applied before a line is typed. Spark applies the filters on times itself: here they only save work.

Every line becomes a row. One that is no record has the topic "rejected" and says why, as in ``bronze.typed``.
A segment that is there twice is read twice; the pipeline's bronze layer knows better.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.fs
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from bstar.errors import ConfigurationError
from bstar_pipeline.journal_files import EMPTY, NOWHERE
from bstar_pipeline.lines import Record, Rejected, Rows, field_of, read_line
from bstar_pipeline.places import Place, matching
from bstar_pipeline.schema import RECORDS, REJECTED

ROWS = types.StructType(
    [
        *RECORDS.fields,
        types.StructField("rejection", types.StringType()),
        types.StructField("line", types.StringType()),
    ]
)
"""One row a line: ``bronze.records``, and what is known of a line that is no record."""

TRUNCATED = "truncated"
"""The rejection of a row that stands for the missing end of a packed file."""

_JOURNAL = re.compile(r".*\.ndjson(\.gz|\.open)?")
_NAME = re.compile(r"(.+)\.([^.]+)\.(\d{8}T\d{6}Z)\.([0-9a-f]{8})\.(\d{4,})\.ndjson(\.gz|\.open)?$")
_WORDS = ("pair", "node", "boot", "kind", "topic")
_TIMES = ("at", "time", "day")
_ROWS_MAX = 4_096
_PIECE_BYTES = 1 << 20
# What zlib calls a gzip file.
_GZIP = 31
_ARROW: dict[type[types.DataType], pa.DataType] = {
    types.StringType: pa.string(),
    types.LongType: pa.int64(),
    types.DoubleType: pa.float64(),
    types.BooleanType: pa.bool_(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
}
_EPOCH_DAY = date(1970, 1, 1)


class _Name(msgspec.Struct, frozen=True):
    """What a file's name tells. ``closed_at``: when the next segment was opened; None if there is none."""

    place: Place
    pair: str
    node: str
    opened_at: datetime
    boot: str
    segment: int
    closed_at: datetime | None = None


class File(InputPartition):
    """One file, read by one task."""

    def __init__(self, place: Place, pair: str, day: date) -> None:
        super().__init__(str(place))
        self.place = place
        self.path = str(place)
        self.pair = pair
        self.day = day


class JournalReader(DataSourceReader):
    """Reads every journal at ``paths`` (directories, files, patterns) and below, a file a partition."""

    def __init__(self, paths: Sequence[str], schema: types.StructType, *, slack_s: float) -> None:
        self._paths = paths
        self._names = schema.names
        self.arrow = pa.schema([pa.field(field.name, _ARROW[type(field.dataType)]) for field in schema])
        self._slack = timedelta(seconds=slack_s)
        # What filters leave: the words that a column may have, and the first and last moment.
        self._words: dict[str, frozenset[str]] = {}
        self._from: datetime | None = None
        self._until: datetime | None = None

    # --- which files --------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file that the filters leave; one that is empty if they leave none."""
        return self.files() or [InputPartition(None)]

    def files(self) -> list[File]:
        """Those that the filters leave. Raises ConfigurationError if a path has none."""
        files = []
        for name in _find(self._paths):
            if isinstance(name, Place):
                files.append(File(name, "unknown", _EPOCH_DAY))
            elif self._may_have_rows(name):
                files.append(File(name.place, name.pair, name.opened_at.date()))
        return files

    def _may_have_rows(self, name: _Name) -> bool:
        words = self._words
        for column, told in (("pair", name.pair), ("node", name.node)):
            if column in words and told not in words[column]:
                return False
        if "boot" in words and not any(boot.startswith(name.boot) for boot in words["boot"]):
            return False
        if self._until is not None and name.opened_at - self._slack > self._until:
            return False
        return self._from is None or name.closed_at is None or name.closed_at + self._slack >= self._from

    # --- what is in them ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one file; those of one kind stand together."""
        if not isinstance(partition, File):
            return
        rows = Rows(self.arrow, str(partition.place))
        for line in _lines(partition.place):
            told = Rejected(TRUNCATED, "", None) if line is None else read_line(line)
            if isinstance(told, Rejected):
                self._reject(rows, told, partition)
            elif self._is_wanted(told):
                rows.add(told)
            if rows.count >= _ROWS_MAX:
                yield from rows.taken()
        yield from rows.taken()

    def _is_wanted(self, told: Record) -> bool:
        return all(field_of(told, column) in words for column, words in self._words.items())

    def _reject(self, rows: Rows, told: Rejected, file: File) -> None:
        known = {"topic": REJECTED, "pair": file.pair}
        if all(known.get(column) in words for column, words in self._words.items()):
            rows.reject(told, file.pair, file.day)


class PushingReader(JournalReader):
    """A JournalReader that gets the filters. Spark calls it only where push-down is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be used; what comes back is left to Spark."""
        left: list[tuple[str, Filter]] = []
        for given in filters:
            path: tuple[str, ...] = getattr(given, "attribute", ())
            column = path[0] if len(path) == 1 else ""
            if (
                column in _WORDS
                and isinstance(given, EqualTo | EqualNullSafe)
                and isinstance(given.value, str)
            ):
                self._keep_words(column, frozenset([given.value]))
            elif (
                column in _WORDS
                and isinstance(given, In)
                and all(isinstance(one, str) for one in given.value)
            ):
                self._keep_words(column, frozenset(given.value))
            else:
                if column in _TIMES:
                    self._keep_times(given)
                left.append((column, given))
        # What must be one of some words is not null.
        return [
            given for column, given in left if not (isinstance(given, IsNotNull) and column in self._words)
        ]

    def _keep_words(self, column: str, words: frozenset[str]) -> None:
        self._words[column] = self._words.get(column, words) & words

    def _keep_times(self, given: Filter) -> None:
        if not isinstance(
            given, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            return
        first, last = _moments(given.value)
        if first is None or last is None:
            return
        if not isinstance(given, LessThan | LessThanOrEqual):
            self._from = first if self._from is None else max(self._from, first)
        if not isinstance(given, GreaterThan | GreaterThanOrEqual):
            end = first if isinstance(given, LessThan) else last
            self._until = end if self._until is None else min(self._until, end)


def _moments(value: object) -> tuple[datetime | None, datetime | None]:
    """The first and the last moment that a literal of a time column means."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return moment, moment
    if isinstance(value, date):
        first = datetime(value.year, value.month, value.day, tzinfo=UTC)
        return first, first + timedelta(days=1)
    if isinstance(value, int):
        try:
            moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value)
        except OverflowError:
            return None, None
        return moment, moment
    return None, None


def _find(paths: Sequence[str]) -> list[_Name | Place]:
    """The journal files at these paths, oldest first within a run; by its place one of a name of its own."""
    found: dict[Place, None] = {}  # a file that two paths lead to is read once
    for path in paths:
        found.update((place, None) for place in _files_at(path))
    names: list[_Name] = []
    others: list[_Name | Place] = []
    for place in found:
        match = _NAME.match(place.path.rpartition("/")[2])
        if match is None:
            others.append(place)
            continue
        opened_at = datetime.strptime(match[3], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        names.append(_Name(place, match[1], match[2], opened_at, match[4], int(match[5])))
    names.sort(key=lambda name: (name.pair, name.node, name.boot, name.segment, name.place.path))
    following: dict[tuple[str, str, str, int], datetime] = {
        (name.pair, name.node, name.boot, name.segment): name.opened_at for name in names
    }
    closed = [
        msgspec.structs.replace(
            name, closed_at=following.get((name.pair, name.node, name.boot, name.segment + 1))
        )
        for name in names
    ]
    return [*closed, *others]


def find(paths: Sequence[str]) -> list[str]:
    """The paths of the journal files at some paths. Raises ConfigurationError if one has none."""
    return list(dict.fromkeys(place.path for path in paths for place in _files_at(path)))


def _files_at(path: str) -> list[Place]:
    """The journal files that one path leads to. Raises ConfigurationError if there is none."""
    places = list(matching(path))
    is_pattern = places != [Place.of(path)]
    found: list[Place] = []
    for place in places:
        system, inner = place.opened()
        told = system.get_file_info(inner)
        if told.type == pyarrow.fs.FileType.NotFound:
            raise ConfigurationError(NOWHERE.format(path))
        if told.is_file:
            # A pattern may take other files in; whoever names one wants it read.
            infos = [told] if not is_pattern or _JOURNAL.fullmatch(told.base_name) else []
        else:
            infos = system.get_file_info(pyarrow.fs.FileSelector(inner, recursive=True))
            infos = [info for info in infos if info.is_file and _JOURNAL.fullmatch(info.base_name)]
        found += [place.at(info.path) for info in infos]
    if not places:
        raise ConfigurationError(NOWHERE.format(path))
    if not found:
        raise ConfigurationError(EMPTY.format(path))
    return found


def _lines(place: Place) -> Iterator[bytes | None]:
    """The whole lines of a file; None for what a packed file lacks: the rest of a line, and the end."""
    system, inner = place.opened()
    try:
        source = system.open_input_stream(inner, compression=None)
    except FileNotFoundError:
        if not inner.endswith(".open"):
            raise
        # It has been sealed since it was found.
        sealed = inner.removesuffix(".open")
        for inner in (f"{sealed}.gz", sealed):
            if system.get_file_info(inner).is_file:
                source = system.open_input_stream(inner, compression=None)
                break
        else:
            raise
    rest = b""
    with source:
        for piece in _unpacked(source.read) if inner.endswith(".gz") else _pieces(source.read):
            if piece is None:
                yield None
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    if rest:
        yield rest


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes | None]:
    while piece := read(_PIECE_BYTES):
        yield piece


def _unpacked(read: Callable[[int], bytes]) -> Iterator[bytes | None]:
    """What can be unpacked, and None at the end if that is not the end of what was packed."""
    unpacker = zlib.decompressobj(_GZIP)
    is_begun = True  # a file of nothing is no packed file
    while piece := read(_PIECE_BYTES):
        while piece:
            try:
                yield unpacker.decompress(piece)
            except zlib.error:
                yield None
                return
            piece = unpacker.unused_data
            if unpacker.eof:
                unpacker = zlib.decompressobj(_GZIP)
                is_begun = bool(piece)
            else:
                is_begun = True
    if is_begun:
        yield None
