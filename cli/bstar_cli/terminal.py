"""What people and terminals get to see: foreign text with escapes, colours where they are wanted.

Names of services, errors and replies come from the network, and a terminal obeys control characters in them.
``bstar.base.printable`` writes a text on one line; here are the forms that a command needs beside it.
"""

import json
import sys
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bstar.base.printable import printable
from bstar.errors import BstarError, CallError, DeclinedError

# Not a terminal: nothing is cut and nothing is folded, so that a script finds whole words and lines.
_PIPE_COLUMNS = 200
# To learn how wide a table would be.
_COLUMNS_MAX = 100_000

# A sentence about a large fleet is long; a reply's line is as long as it is.
_SENTENCE_CHARS_MAX = 10_000


def cell(value: object, style: str = "") -> Text:
    """A value for a table of rich, which would take a plain string for markup."""
    return Text(printable(str(value)), style=style)


def sentence(value: object, style: str = "") -> Text:
    """A sentence for a console of rich, with names and texts of others in it."""
    return Text(printable(str(value), _SENTENCE_CHARS_MAX), style=style)


def error_fields(error: CallError) -> dict[str, object]:
    """An error of a call, for JSON."""
    name, may_have = type(error).__name__, error.may_have_executed
    fields: dict[str, object] = {"error": name, "text": str(error), "may_have_executed": may_have}
    if isinstance(error, DeclinedError):
        fields |= {"code": error.code, "data": error.data}
    return fields


def data_of(error: BstarError) -> str:
    """The data of a request that was declined, to follow the error's text; empty if there is none."""
    if isinstance(error, DeclinedError) and error.data is not None:
        return f" {json_line(error.data)}"
    return ""


def json_line(value: object) -> str:
    """A JSON value on one line; what a terminal would obey within its strings is written as escapes."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    # Only strings hold such characters, and there an escape means the same.
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def table(words: Iterable[str], numbers: Iterable[str] = (), *, no_wrap: bool = False) -> Table:
    """A table without lines, with columns of words (which may not be wrapped) and then of numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in words:
        made.add_column(heading, no_wrap=no_wrap)
    for heading in numbers:
        made.add_column(heading, justify="right")
    return made


def print_tables(*tables: Table, titles: int = 1, pipe_columns: int = _PIPE_COLUMNS) -> None:
    """Print tables on standard output, in one piece. Where they are too wide, each row becomes a paragraph.

    The first ``titles`` columns are the title of a row's paragraph, the others follow by name.
    """
    console = Console(width=None if sys.stdout.isatty() else pipe_columns)
    unbounded = console.options.update(max_width=_COLUMNS_MAX)
    with console.capture() as captured:
        for number, table in enumerate(tables):
            if number:
                console.print()
            if console.measure(table, options=unbounded).maximum <= console.width:
                console.print(table)
            else:
                _print_rows(console, table, titles)
    sys.stdout.write(captured.get())
    sys.stdout.flush()


def _print_rows(console: Console, table: Table, titles: int) -> None:
    columns = [(str(column.header).strip(), list(column.cells)) for column in table.columns]
    for row in range(table.row_count):
        cells = [(name, of_column[row]) for name, of_column in columns]
        console.print(Text(" ").join(_text(cell) for _, cell in cells[:titles]), overflow="fold")
        pairs = [
            Text.assemble((f"{name.lower()} ", "dim"), _text(cell))
            for name, cell in cells[titles:]
            if _text(cell)
        ]
        line = Text()
        for pair in pairs:
            if line and line.cell_len + 2 + pair.cell_len > console.width:
                console.print(line, overflow="fold")
                line = Text()
            line = Text("  ").join((line, pair)) if line else Text.assemble("  ", pair)
        if line:
            console.print(line, overflow="fold")


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
