"""Bronze: the lines of journals as typed records, each once, with what could not be read beside them.

``typed`` parses the lines that ``journal_files`` reads: a line that is no record keeps its text and gets a
``rejection``; none is dropped. A batch parses nearly all lines by ``common`` before, which does less for each
and leaves the others to ``typed``. ``copies`` leaves out what came twice.
"""

from collections.abc import Collection, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.types import StringType, StructField, StructType

from bstar.records import VERSION
from bstar_pipeline.journal_files import day_of_file, pair_of_file
from bstar_pipeline.lines import LINE_LENGTH_MAX
from bstar_pipeline.schema import (
    BASE,
    COMMON,
    DEFAULTS,
    LINE,
    REJECTED,
    REQUIRED,
    TIME_US_MAX,
    TOPICS,
    table_schema,
)

_DAY_US = 86_400_000_000
_CORRUPT = "corrupt"

REST = "rest"
"""The topic of lines that ``common`` leaves to ``typed``."""

TEXT = StructType([StructField("file", StringType()), StructField("line", StringType())])
"""What ``typed`` needs of them."""


def common(lines: DataFrame) -> DataFrame:
    """Parse those of ``lines`` that are records of single requests, nearly all; keep the text of the others.

    A row for each, as ``typed`` has it, with the fields of these records alone: a third of all, and each
    field costs for each line. The others have the topic "rest", and ``line`` is their text.
    """
    is_common = reduce(Column.__or__, (F.col("value").startswith(f'{{"kind":"{kind}"') for kind in TOPICS))
    # Marked as not deterministic, so Spark parses a line once, and not again for each filter above.
    is_here = F.spark_partition_id() >= 0
    parsed = _parsed(lines, F.when(is_here & is_common, F.col("value")), COMMON)
    is_record = F.coalesce(_field("kind").isin(*TOPICS) & _rejection(TOPICS).isNull(), F.lit(False))
    at_us = _field("at")
    columns = {field.name: _filled(field.name, TOPICS) for field in COMMON.fields}
    columns |= {
        "pair": F.when(is_record, _field("pair")).otherwise(F.lit(REST)),
        "time": F.when(is_record, F.timestamp_micros(at_us)),
        "file": F.col("file"),
        "topic": F.when(is_record, _topic()).otherwise(F.lit(REST)),
        "day": F.when(is_record, _day_of(at_us)).otherwise(F.date_from_unix_date(F.lit(0))),
        "line": F.when(~is_record, F.col("value")),
    }
    return parsed.select(*(column.alias(name) for name, column in columns.items()))


def typed(lines: DataFrame) -> DataFrame:
    """Parse ``lines`` (``value``, ``file``).

    A row for each: the fields of ``bstar.records`` (those of its kind with their defaults, the others null),
    ``time`` (of ``at``), ``file``, ``topic``, ``day`` (of ``at``, UTC), ``rejection`` and ``line``. For a
    record the last two are null. Else ``topic`` is "rejected", ``rejection`` says why, ``line`` is the text,
    and ``day`` and ``pair`` are those of the file's name.
    """
    # Marked as above.
    parsed = _parsed(lines, F.when(F.spark_partition_id() >= 0, F.col("value")), LINE)
    judged = parsed.select("parsed", "value", "file", _rejection().alias("rejection"))
    is_record = F.col("rejection").isNull()
    columns = {field.name: _filled(field.name) for field in LINE.fields}
    columns["pair"] = F.when(is_record, _field("pair")).otherwise(pair_of_file())
    at_us = _field("at")
    columns |= {
        "time": F.when(is_record, F.timestamp_micros(at_us)),
        "file": F.col("file"),
        "topic": F.when(is_record, _topic()).otherwise(F.lit(REJECTED)),
        "day": F.when(is_record, _day_of(at_us)).otherwise(day_of_file()),
        "rejection": F.col("rejection"),
        # Parquet takes any bytes for text, and other readers of the table then refuse the file.
        "line": F.when(~is_record, F.make_valid_utf8(F.substring("value", 1, LINE_LENGTH_MAX))),
    }
    return judged.select(*(column.alias(name) for name, column in columns.items()))


def _parsed(lines: DataFrame, value: Column, shape: StructType) -> DataFrame:
    """Lines with ``value`` as a struct ``parsed``, null for null; ``_CORRUPT`` says what is wrong with it."""
    whole = StructType([*shape.fields, StructField(_CORRUPT, StringType())])
    struct = F.from_json(value, whole, {"columnNameOfCorruptRecord": _CORRUPT})
    return lines.select(struct.alias("parsed"), "value", "file")


def _field(name: str) -> Column:
    """A field as the line tells it."""
    return F.col(f"parsed.{name}")


def _rejection(kinds: Collection[str] = tuple(REQUIRED)) -> Column:
    """Why the line in ``value``, one of ``kinds``, is no record; null if it is one."""
    is_whole = reduce(Column.__and__, (_field(name).isNotNull() for name in ("kind", *BASE)))
    has_all = {
        kind: reduce(Column.__and__, (_field(name).isNotNull() for name in needs))
        for kind, needs in _needs()
        if kind in kinds
    }
    kind_has = _by_kind(has_all, F.lit(True))
    is_in_range = (
        _field("at").between(0, TIME_US_MAX)
        & _field("mono").between(0, TIME_US_MAX)
        & _field("seq").between(1, 2**53)
        & F.coalesce(_field("total_us").between(0, TIME_US_MAX), F.lit(True))
        & F.coalesce(_field("busy_us").between(0, TIME_US_MAX), F.lit(True))
    )
    is_nothing, is_corrupt = F.col("parsed").isNull(), _field(_CORRUPT).isNotNull()
    return (
        F.when(_field("v") > VERSION, "newer-version")
        .when(is_nothing | (is_corrupt & _field("v").isNull()) | ~F.is_valid_utf8("value"), "unreadable")
        .when(is_corrupt | ~is_whole | ~kind_has, "incomplete")
        .when((_field("v") < VERSION) | ~is_in_range, "unreadable")
    )


def _needs() -> list[tuple[str, list[str]]]:
    """By kind, those that come by the million first: what its line must have beyond what every line must."""
    kinds = [*TOPICS, *(kind for kind in REQUIRED if kind not in TOPICS)]
    needs = ((kind, [name for name in REQUIRED[kind] if name not in BASE]) for kind in kinds)
    return [(kind, names) for kind, names in needs if names]


def _filled(name: str, kinds: Collection[str] = tuple(REQUIRED)) -> Column:
    """A field, or the default that its kind, one of ``kinds``, has for it."""
    column = _field(name)
    kinds_of: dict[int | float | bool | str, list[str]] = {}
    for kind, value in DEFAULTS.get(name, {}).items():
        if kind in kinds:
            kinds_of.setdefault(value, []).append(kind)
    for value, of_value in kinds_of.items():
        column = F.coalesce(column, F.when(_field("kind").isin(of_value), F.lit(value)))
    return column


def _topic() -> Column:
    return _by_kind({kind: F.lit(topic) for kind, topic in TOPICS.items()}, F.lit("events"))


def _by_kind(values: Mapping[str, Column], otherwise: Column) -> Column:
    kind = _field("kind")
    (first, value), *others = values.items()
    chosen = F.when(kind == first, value)
    for name, value in others:
        chosen = chosen.when(kind == name, value)
    return chosen.otherwise(otherwise)


def _day_of(at_us: Column) -> Column:
    """In UTC; ``DIV`` is written in SQL, and the functions have no other name for it."""
    return F.date_from_unix_date(F.call_function("div", at_us, F.lit(_DAY_US)).cast("int"))


def records(typed: DataFrame) -> DataFrame:
    """The lines that are records, with the columns of the table of records."""
    is_record = F.col("topic").isin(*TOPICS.values(), "events")
    return typed.where(is_record).select(*table_schema("bronze.records").names)


def rejected(typed: DataFrame) -> DataFrame:
    """The invalid lines, with the columns of the table of rejected lines."""
    of_others = typed.where(F.col("topic") == REJECTED)
    version = F.col("v").try_cast("int").alias("version")
    return of_others.select("file", F.col("rejection").alias("reason"), version, "line", "day", "pair")
