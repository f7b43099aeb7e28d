"""The few HTML elements that a report is made of. All text that they are given is escaped here."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, Literal, TypeVar

from bstar_pipeline.report.content import Shown
from bstar_pipeline.report.words import count

Cell = str | tuple[str, str]
"""A text, or a text and a note beneath it."""


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Column(Generic[_Item]):
    """``kind``: "" text, "n" number, "head" what a row is about, "when" a time. ``cell``: of an item."""

    label: str
    kind: Literal["", "n", "head", "when"]
    cell: Callable[[_Item], Cell]


def table(columns: Sequence[Column[_Item]], items: Iterable[_Item]) -> str:
    """A table with a row for each item. A narrow screen shows each row as a card."""
    head = "".join(f'<th scope=col class="{column.kind}">{escape(column.label)}</th>' for column in columns)
    lines = [f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>"]
    lines += [f"<tr>{''.join(_cell(column, item) for column in columns)}</tr>" for item in items]
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def _cell(column: Column[_Item], item: _Item) -> str:
    cell = column.cell(item)
    text, note = cell if isinstance(cell, tuple) else (cell, "")
    style = column.kind if text else f"{column.kind} none"
    beneath = f"<small>{escape(note)}</small>" if note else ""
    return (
        f'<td class="{style}" data-label="{escape(column.label)}"><span>{escape(text)}{beneath}</span></td>'
    )


def cut(shown: Shown[Any], what: str, which: str) -> str:
    """A sentence about the items that the page does not show, if any."""
    if not shown.is_cut:
        return ""
    return f"<p class=note>{count(len(shown))} of {count(shown.total)} {what} are shown: {which}.</p>"
