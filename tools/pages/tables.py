"""The tables of the pipeline, for docs/pipeline.md: what each holds, and its columns. Needs no Spark."""

from bstar_pipeline.tables import TABLES, columns_of
from pages.markdown import wrapped

LAYERS = {
    "bronze": "Bronze: the journals as they came",
    "silver": "Silver: requests, processes, intervals",
    "gold": "Gold: the answers",
    "stream": "Stream: what a watch adds up",
}


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
    return wrapped("\n".join(lines).rstrip())
