"""Writes the tables of the pipeline into the documentation: what each holds, and its columns.

    python -m bstar_pipeline.tables_page                          print it
    python -m bstar_pipeline.tables_page --write docs/pipeline.md put it between the two markers of that file
    python -m bstar_pipeline.tables_page --check docs/pipeline.md fail if that would change the file

Nothing in the documentation about which columns a table has is written by hand. Needs neither Spark nor Java.
"""

import re
import sys

from bstar import generated
from bstar_pipeline.tables import TABLES, Table

_MODULE = "bstar_pipeline.tables_page"
BEGIN, END = generated.begin_of(_MODULE), generated.END
LAYERS = {
    "bronze": "Bronze: the journals as they came",
    "silver": "Silver: requests, processes, intervals",
    "gold": "Gold: the answers",
    "stream": "Stream: what a watch adds up",
}


def columns_of(table: Table) -> list[tuple[str, str]]:
    """Name and Spark type of each column, in order; words in angle brackets stand for several columns."""
    columns = []
    for part in re.split(r",\s+", table.columns):
        if part.startswith("<"):
            columns.append((part, ""))
        else:
            name, _, kind = part.partition(" ")
            columns.append((name, kind))
    return columns


def generate() -> str:
    """The Markdown between the markers."""
    lines = []
    for layer, heading in LAYERS.items():
        lines += [f"### {heading}", ""]
        for key, table in TABLES.items():
            if table.layer != layer:
                continue
            columns = ", ".join(
                f"`{name}` {kind.lower()}".strip() if kind else f"*{name.strip('<>')}*"
                for name, kind in columns_of(table)
            )
            partitions = ", ".join(f"`{name}`" for name in table.partitions)
            lines += [f"**`{key}`** – {table.about}", ""]
            lines += [f"Partitions: {partitions}. Columns: {columns}.", ""]
    return generated.wrapped("\n".join(lines).rstrip())


def replace(document: str) -> str:
    """``document`` with the part between the markers written anew; ValueError if it lacks them."""
    return generated.replace(document, _MODULE, generate())


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 if ``--check`` finds a difference."""
    return generated.run(arguments, _MODULE, __doc__ or "", generate)


if __name__ == "__main__":
    sys.exit(main())
