"""``bstar pipeline tables``, which needs no Spark."""

from typing import Annotated

import typer

from bstar.errors import ConfigurationError
from bstar_cli.pipeline.spark import JsonOption, print_json, print_table


def tables(
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only this one, with each of its columns.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what tables the pipeline writes, and their columns.

    Needs no Spark. Each file of a table is of one day (UTC) and pair.

    Exit codes: 0 printed; 2 there is no such table.

    Examples:

        bstar pipeline tables

        bstar pipeline tables gold.incidents
    """
    from bstar_pipeline.tables import TABLES, columns_of

    if name is not None and name not in TABLES:
        raise ConfigurationError(f"there is no table {name}; there are {', '.join(TABLES)}")
    chosen = TABLES if name is None else {name: TABLES[name]}
    if as_json:
        for key, table in chosen.items():
            print_json(
                {
                    "table": key,
                    "about": table.about,
                    "path": key.replace(".", "/"),
                    "columns": [{"name": column, "type": kind} for column, kind in columns_of(table)],
                }
            )
    elif name is None:
        print_table(["table", "about"], [[key, table.about] for key, table in chosen.items()])
    else:
        typer.echo(f"{TABLES[name].about}\n")
        print_table(["column", "type"], columns_of(TABLES[name]))
