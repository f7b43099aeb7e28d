"""Writes the tables of the pipeline into the documentation: what each holds, and its columns.

    python -m bstar_pipeline.tables_page                          print it
    python -m bstar_pipeline.tables_page --write docs/pipeline.md put it between the two markers of that file
    python -m bstar_pipeline.tables_page --check docs/pipeline.md fail if that would change the file

Nothing in the documentation about which columns a table has is written by hand. Needs neither Spark nor Java.
"""

import argparse
import re
import sys
from pathlib import Path

from bstar_pipeline.tables import TABLES, Table

__all__ = ["columns_of", "generate", "main", "replace"]

BEGIN = "<!-- begin of the generated part: python -m bstar_pipeline.tables_page -->"
END = "<!-- end of the generated part -->"
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
    return "\n".join(lines).rstrip()


def replace(document: str) -> str:
    """``document`` with the part between the markers written anew; ValueError if it lacks them."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the two markers are missing: {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{generate()}\n\n{END}{tail}"


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m bstar_pipeline.tables_page", description=__doc__.split("\n", maxsplit=1)[0]
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", metavar="FILE", type=Path)
    action.add_argument("--check", metavar="FILE", type=Path)
    options = parser.parse_args(arguments)
    path: Path | None = options.write or options.check
    if path is None:
        sys.stdout.write(generate() + "\n")
        return 0
    before = path.read_text(encoding="utf-8")
    after = replace(before)
    if options.write:
        path.write_text(after, encoding="utf-8")
    elif before != after:
        sys.stderr.write(f"{path} differs from the tables: run make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
