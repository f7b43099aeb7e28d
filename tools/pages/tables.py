"""The tables of the pipeline, for docs/pipeline.md: what each holds. Needs no Spark.

``bstar pipeline tables`` prints what each column means.
"""

from bstar_pipeline.tables import TABLES


def generate() -> str:
    """The Markdown between the markers: of each table the first sentence about it."""
    lines = ["| table | what it holds |", "|---|---|"]
    lines += [f"| `{key}` | {table.about.partition('. ')[0].rstrip('.')} |" for key, table in TABLES.items()]
    return "\n".join(lines)
