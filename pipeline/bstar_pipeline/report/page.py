"""The report as one HTML page: words, tables and drawings, without a script.

Nothing is loaded from anywhere: the style is in the page, and its content security policy forbids the rest.
Whatever came from the wire is escaped on the way in.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

import bstar
from bstar_pipeline.report import sections
from bstar_pipeline.report.content import Content, Incident
from bstar_pipeline.report.words import (
    KINDS,
    Verdict,
    count,
    date_and_time,
    duration,
    judge,
    missed,
    moment,
    plural,
    share,
    worst_outage,
)


def render(content: Content, *, made_at_us: int) -> str:
    """The page, as text in UTF-8; ``made_at_us`` is told in its footer."""
    parts = [(key, heading, section(content)) for key, heading, section in sections.SECTIONS]
    links = "".join(f'<a href="#{key}">{escape(heading)}</a>' for key, heading, _ in parts)
    title = f"{content.pair}: {date_and_time(content.from_us, to='minutes')} UTC"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # A page of a mail or a share has no business on any network.
            (
                '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
                "style-src 'unsafe-inline'\">"
            ),
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{_resource('style.css')}</style>",
            "</head>",
            "<body>",
            _header(content),
            "<main>",
            _banner(judge(content.verdicts, content.requests)),
            _tiles(content),
            _warnings(content),
            f"<nav>{links}</nav>",
            *(
                f'<section id="{key}"><h2>{escape(heading)}</h2>\n{body}</section>'
                for key, heading, body in parts
            ),
            "</main>",
            (
                f"<footer>Written by bstar {escape(bstar.__version__)} on "
                f"{date_and_time(made_at_us, to='minutes')} UTC from the journals of pair "
                f"{escape(content.pair)}. All times are UTC.</footer>"
            ),
            "</body>",
            "</html>",
            "",
        ]
    )


# --- the top ------------------------------------------------------------------------------------------------


def _header(content: Content) -> str:
    return (
        f"<header><h1>Pair {escape(content.pair)}</h1>"
        f"<p class=muted>{date_and_time(content.from_us)} to {date_and_time(content.until_us)} UTC "
        f"({duration(content.until_us - content.from_us)})</p></header>"
    )


def _banner(verdict: Verdict) -> str:
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict.sentences)
    return (
        f'<div class="verdict {verdict.level}" role="status"><strong>{escape(verdict.headline)}</strong>'
        f"{sentences}</div>"
    )


def _tiles(content: Content) -> str:
    worst = worst_outage(content.incidents)
    unanswered = content.errors / content.requests if content.requests else 0.0
    tiles = [
        ("Requests", count(content.requests), f"{_rate(content.requests, content)} per second", ""),
        (
            "Not answered",
            share(unanswered),
            plural(content.errors, "request"),
            "bad" if content.errors else "",
        ),
        (
            "Longest outage",
            duration(worst.outage_us) if worst else "none",
            f"{worst.node} {KINDS.get(worst.kind, worst.kind)}, {moment(content, worst.began_at_us)}"
            if worst
            else "that clients saw",
            "",
        ),
        ("Incidents", count(content.incidents.total), _kinds(content.incidents), ""),
        _promises(content),
        ("p99 of requests", duration(content.p99_us), "from acceptance to the end", ""),
        ("Sent again", count(content.retried), "requests with more than one attempt", ""),
    ]
    return (
        "<dl class=tiles>"
        + "".join(
            f'<div class=tile><dt>{escape(name)}</dt><dd class="{style}">{escape(value)}'
            f"<small>{escape(note)}</small></dd></div>"
            for name, value, note, style in tiles
        )
        + "</dl>"
    )


def _promises(content: Content) -> tuple[str, str, str, str]:
    """The tile about the objectives of the services."""
    promised = [each for each in content.objectives if each.promise is not None]
    names = missed(promised)
    if not promised:
        return "Objectives missed", "–", "none is known for this period", ""
    told = ", ".join(names) or "each service kept its own"
    return "Objectives missed", f"{count(len(names))} of {count(len(promised))}", told, "bad" if names else ""


def _rate(requests: float, content: Content) -> str:
    per_s = requests / ((content.until_us - content.from_us) / 1e6)
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _kinds(incidents: Sequence[Incident]) -> str:
    kinds = Counter(each.kind for each in incidents)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "the role never moved"


def _warnings(content: Content) -> str:
    """What makes the rest less certain, said where nobody overlooks it."""
    quality = content.quality
    rejected = sum(number for _, number in quality.rejected)
    truncated = dict(quality.files).get("truncated", 0)
    lacks = (
        (rejected, "line", "of the journals could not be read"),
        (quality.missing, "record", f"that a process wrote {_is(quality.missing)} not here"),
        (quality.dropped, "record", f"{_was(quality.dropped)} dropped because a journal could not keep up"),
        (truncated, "file", f"{_is(truncated)} cut off"),
    )
    told = [f"{plural(number, word)} {lack}." for number, word, lack in lacks if number]
    if quality.is_sampled:
        told.append("Requests were sampled: their numbers are estimates.")
    if not told:
        return ""
    return (
        '<div class="verdict warned"><strong>The journals are not complete</strong>'
        f'<p>{escape(" ".join(told))} See <a href="#quality">quality of the data</a>.</p></div>'
    )


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


@cache
def _resource(name: str) -> str:
    return files("bstar_pipeline.report").joinpath(name).read_text(encoding="utf-8")
