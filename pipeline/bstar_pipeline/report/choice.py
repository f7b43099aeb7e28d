"""Which rows of the tables a question is about, and rows as values: what all ways to read tables share.

This module imports nothing of Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from bstar.errors import ConfigurationError
from bstar_pipeline.tables import utc

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Choice:
    """One pair (None: all pairs) in [``from_us``, ``until_us``)."""

    pair: str | None
    from_us: int
    until_us: int

    @property
    def days(self) -> tuple[dt.date, dt.date]:
        """The first and the last day (UTC)."""
        return utc(self.from_us).date(), utc(self.until_us - 1).date()


def choose(
    root: str,
    lived: Mapping[str, tuple[int, int]],
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    is_of_one_pair: bool = False,
) -> Choice:
    """Of the pairs below ``root``, with the first and last sign of ``lived``: ``pair``, or all; in the time
    in which its processes lived, or in what of that is in [``from_us``, ``until_us``).

    Raises ConfigurationError if there are no tables, no such pair, several pairs where there must be one
    (``is_of_one_pair``), or nothing in that period.
    """
    if not lived:
        raise ConfigurationError(
            f"{root} holds no tables of a pair: write them first with bstar pipeline run JOURNAL --out {root}"
        )
    names = ", ".join(sorted(lived))
    if pair is None and is_of_one_pair:
        if len(lived) > 1:
            raise ConfigurationError(f"{root} is about several pairs: choose one of {names} with --pair")
        pair = next(iter(lived))
    elif pair is not None and pair not in lived:
        raise ConfigurationError(f"{root} knows no pair {pair}: it has {names}")
    chosen = list(lived.values()) if pair is None else [lived[pair]]
    lived_from, lived_until = min(first for first, _ in chosen), max(last for _, last in chosen)
    first = lived_from if from_us is None else max(lived_from, from_us)
    # The last sign of life belongs to the period.
    last = lived_until + 1 if until_us is None else min(lived_until + 1, until_us)
    if first >= last:
        who = names if pair is None else pair
        raise ConfigurationError(
            f"nothing of pair {who} in that period: its journals are from {utc(lived_from):%FT%TZ} "
            f"to {utc(lived_until):%FT%TZ}"
        )
    return Choice(pair, first, last)


def filled(kind: type[_Value], row: Any, **given: Any) -> _Value:
    """``kind`` with the columns of ``row`` as its fields, apart from those ``given``.

    A null becomes "", zero or False unless the field may be None.
    """
    for field in fields(kind):
        if field.name not in given:
            value = row[field.name]
            is_plain = isinstance(field.type, type)
            given[field.name] = field.type() if value is None and is_plain else value  # type: ignore[operator]
    return kind(**given)
