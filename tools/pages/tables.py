"""The tables of the pipeline, for docs/pipeline.md: what each holds. Needs no Spark.

``bstar pipeline tables`` prints what each column means.
"""

import re

from bstar_pipeline.tables import TABLES


def generate() -> str:
    """The Markdown between the markers: of each table what its first sentence says."""
    lines = ["| table | what it holds |", "|---|---|"]
    lines += [
        f"| `{key}` | {re.split(r'[.:] ', table.about)[0].rstrip('.')} |" for key, table in TABLES.items()
    ]
    return "\n".join(lines)
