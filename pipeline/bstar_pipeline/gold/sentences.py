"""Sentences of findings, as columns of SQL expressions."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

FOREVER = 1 << 62
"""Later than anything."""


def text(template: str) -> Column:
    """The template with the values of the SQL expressions in its braces; null if one of them is null.

    ``{expression:s}`` shows microseconds as seconds.
    """
    pieces = []
    for number, piece in enumerate(re.split(r"\{(.+?)\}", template)):
        if number % 2 == 0:
            pieces.append(F.lit(piece))
        elif piece.endswith(":s"):
            us = F.expr(piece[:-2])
            pieces.append(F.when(us.isNotNull(), F.format_string("%.3f s", us / 1e6)))
        else:
            pieces.append(F.expr(piece))
    return F.concat(*pieces)
