"""What Spark is going to do, as text, for tests that look for what must not be in it."""

import contextlib
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_of(frame: "DataFrame") -> str:
    """The physical plan, with nothing cut short."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()
