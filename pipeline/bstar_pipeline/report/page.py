"""The report as one HTML page: page.html, filled by Jinja2.

Nothing is loaded from anywhere: style and script are in the page, and its content security policy forbids the
rest, any other script too. Jinja2 escapes whatever came from the wire. The script shows times in the reader's
zone beside UTC; without it there is UTC alone.
"""

import base64
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import bstar
from bstar_pipeline.report import plots, words
from bstar_pipeline.report.content import Content
from bstar_pipeline.tables import utc

_LOADER = PackageLoader("bstar_pipeline.report", ".")
_PAGES = Environment(
    loader=_LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render(content: Content, *, made_at_us: int) -> str:
    """The page, as text in UTF-8; ``made_at_us`` stands in its footer."""
    style, script = (_LOADER.get_source(_PAGES, name)[0] for name in ("style.css", "zone.js"))
    return _PAGES.get_template("page.html").render(
        content=content,
        verdict=words.judge(content.verdicts, content.requests),
        lead=words.lead(content.incidents),
        words=words,
        plots=plots,
        utc=utc,
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        made_at_us=made_at_us,
        version=bstar.__version__,
    )
