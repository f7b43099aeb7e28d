"""The few HTML elements that a report is made of. All text that they are given is escaped here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from bstar_pipeline.report.content import Cut
from bstar_pipeline.report.words import count

Cell = str | tuple[str, str]
"""A text, or a text and a note beneath it."""


@dataclass(frozen=True, slots=True)
class Column:
    """``kind``: "" text, "n" number, "head" what a row is about, "when" a time."""

    label: str
    kind: Literal["", "n", "head", "when"] = ""


def plot(figure: str, description: str, *, place: str | None = None) -> str:
    """Where the script draws a figure; ``description`` is for those who do not see it."""
    return (
        f'<div class=plot id="{place or f"{figure}-plot"}" data-figure="{figure}" role=img '
        f'aria-label="{escape(description)}"></div>'
    )


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> str:
    """A table that a narrow screen shows as one card for each row."""
    head = "".join(f'<th scope=col class="{column.kind}">{escape(column.label)}</th>' for column in columns)
    lines = [f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        cells = "".join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def _cell(column: Column, cell: Cell) -> str:
    text, note = cell if isinstance(cell, tuple) else (cell, "")
    style = column.kind if text else f"{column.kind} none"
    beneath = f"<small>{escape(note)}</small>" if note else ""
    return (
        f'<td class="{style}" data-label="{escape(column.label)}"><span>{escape(text)}{beneath}</span></td>'
    )


def cut(shown: Cut, what: str, which: str) -> str:
    """A sentence about what is not shown, if anything."""
    if not shown.is_cut:
        return ""
    return f"<p class=note>{count(shown.shown)} of {count(shown.total)} {what} are shown: {which}.</p>"
