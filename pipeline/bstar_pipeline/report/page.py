"""The report as one HTML page: page.html, filled by Jinja2 with the tables and figures that are made here.

Nothing is loaded from anywhere: style and script are in the page, and its content security policy forbids the
rest, any other script too. Jinja2 escapes whatever came from the wire. The script shows times in the reader's
zone beside UTC; without it there is UTC alone.
"""

import base64
import hashlib
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import bstar
from bstar_pipeline.report import plots, words
from bstar_pipeline.report.content import (
    Capacity,
    Cell,
    Client,
    Column,
    Content,
    Finding,
    Incident,
    Interval,
    Objective,
    Quality,
    Run,
    Verdicts,
)
from bstar_pipeline.report.words import count, duration, share
from bstar_pipeline.tables import utc


def render(content: Content, *, made_at_us: int) -> str:
    """The page, as text in UTF-8; ``made_at_us`` stands in its footer."""
    environment = _environment()
    style, script = (environment.loader.get_source(environment, name)[0] for name in _INLINED)  # type: ignore[union-attr]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    promised = [each for each in content.objectives if each.promise is not None]
    return environment.get_template("page.html").render(
        content=content,
        columns=_COLUMNS,
        facts=_facts(content.quality),
        verdict=words.judge(content.verdicts, content.requests),
        lead=words.lead(content.incidents),
        promised=promised,
        missed=words.missed(promised),
        lacks=_lacks(content.quality),
        words=words,
        plots=plots,
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        digest=digest,
        made_at_us=made_at_us,
        version=bstar.__version__,
        iso=lambda at_us: utc(at_us).isoformat(timespec="milliseconds"),
        split=lambda cell: cell if isinstance(cell, tuple) else (cell, ""),
    )


_INLINED = ("style.css", "zone.js")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("bstar_pipeline.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _lacks(quality: Quality) -> list[str]:
    """What makes the rest less certain."""
    counts = (
        (sum(number for _, number in quality.rejected), "line", "of the journals could not be read"),
        (quality.missing, "record", "of a process not here"),
        (quality.dropped, "record", "dropped because a journal could not keep up"),
        (dict(quality.files).get("truncated", 0), "file", "cut off"),
    )
    lacks = [f"{words.plural(number, word)} {lack}." for number, word, lack in counts if number]
    return [*lacks, "Requests were sampled: their numbers are estimates."] if quality.is_sampled else lacks


def _facts(quality: Quality) -> list[tuple[str, str]]:
    """The quality of the data, fact by fact."""
    files = ", ".join(f"{count(number)} {state}" for state, number in quality.files)
    rejected = ", ".join(f"{count(number)} {reason}" for reason, number in quality.rejected)
    return [
        ("files", files or "none"),
        ("lines", count(quality.lines)),
        ("lines that could not be read", rejected or "0"),
        ("records that came twice and count once", count(quality.duplicates)),
        ("records that are missing", count(quality.missing)),
        ("records dropped by a journal that could not keep up", count(quality.dropped)),
        ("requests sampled", "yes" if quality.is_sampled else "no"),
        *(
            (
                f"clock of {node}",
                (f"was {off_us / 1e6:+.3f} s off and is put right" if off_us else "is not put right")
                + f"; unsure by {unsure_us / 1e6:.3f} s",
            )
            for node, off_us, unsure_us in quality.clocks
        ),
    ]


# --- tables ---------------------------------------------------------------------------------------------


def _whole_after(each: Incident) -> Cell:
    return duration(None if each.recovered_at_us is None else each.recovered_at_us - each.began_at_us)


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ×" if value >= 100 else f"{value:.2g} ×"


def _worst_minute(each: Objective) -> Cell:
    burned = each.worst_burn_rate
    return (each.worst_at_us, _times(burned)) if burned else ""


def _trend(each: Capacity) -> str:
    return "–" if each.trend_per_day is None else f"{each.trend_per_day * 100:+.2f} points"


def _remark(each: Client) -> str:
    remarks = (("floods", each.is_flooding), ("retries", each.is_retrying))
    return ", ".join(word for word, is_so in remarks if is_so)


_INTERVALS: list[Column[Interval]] = [
    Column("state", "head", lambda each: (f"{each.node} {plots.state_of(each)}", each.text or each.event)),
    Column("since", "when", lambda each: each.since_at_us),
    Column("for", "n", lambda each: duration(each.until_at_us - each.since_at_us)),
    Column("epoch", "n", lambda each: str(each.epoch)),
]
_INCIDENTS: list[Column[Incident]] = [
    Column("what", "head", lambda each: (words.happened(each), each.cause)),
    Column(
        "when",
        "when",
        lambda each: (each.began_at_us, f"± {duration(each.began_error_us)}" if each.began_error_us else ""),
    ),
    Column("outage", "n", lambda each: duration(each.outage_us)),
    Column("detected after", "n", lambda each: duration(each.detection_us)),
    Column("taken over after", "n", lambda each: duration(each.takeover_us)),
    Column("pair whole after", "n", _whole_after),
    Column("sent again", "n", lambda each: count(each.retried)),
    Column("refused", "n", lambda each: count(each.refused)),
    Column("unknown", "n", lambda each: count(each.unknown)),
]
_OBJECTIVES: list[Column[Objective]] = [
    Column("service", "head", lambda each: (each.service, words.promised(each.promise))),
    Column("alerts", "", words.alerts),
    Column("requests", "n", lambda each: (count(each.requests), f"by {each.counted}")),
    Column("peak per s", "n", lambda each: f"{each.peak_per_s:,.0f}"),
    Column("errors", "n", lambda each: share(each.error_share)),
    Column(
        "p50, p95, p99", "n", lambda each: ", ".join(map(duration, (each.p50_us, each.p95_us, each.p99_us)))
    ),
    Column(
        "budget used", "n", lambda each: (words.budget_used(each.promise), words.budget_note(each.promise))
    ),
    Column("burn rate", "n", lambda each: _times(each.burn_rate)),
    Column("worst minute", "when", _worst_minute),
]
_CAPACITY: list[Column[Capacity]] = [
    Column("service", "head", lambda each: each.service),
    Column("workers", "n", lambda each: f"{each.workers:.3g}"),
    Column("utilisation", "n", lambda each: share(each.utilisation)),
    Column("peak", "n", lambda each: share(each.peak_utilisation)),
    Column("arrivals per s", "n", lambda each: f"{each.arrivals_per_s:,.3g}"),
    Column("longest queue", "n", lambda each: count(each.queued_max)),
    Column("trend per day", "n", _trend),
    Column("full from", "when", lambda each: each.saturates_at_us or "not foreseen"),
]
_CLIENTS: list[Column[Client]] = [
    Column("client", "head", lambda each: f"{each.node} ({each.client[:12]})" if each.node else each.client),
    Column("requests", "n", lambda each: count(each.requests)),
    Column("share", "n", lambda each: share(each.share)),
    Column("peak per s", "n", lambda each: f"{each.peak_per_s:,.3g}"),
    Column("not answered", "n", lambda each: count(each.not_answered)),
    Column("sent again", "n", lambda each: count(each.retries)),
    Column("refused", "n", lambda each: count(each.busy)),
    Column("p99", "n", lambda each: duration(each.p99_us)),
    Column("remark", "", _remark),
]
_VERDICTS: list[Column[Verdicts]] = [
    Column("rule", "head", lambda each: each.rule),
    Column("violated", "n", lambda each: count(each.violated)),
    Column("excused", "n", lambda each: count(each.excused)),
    Column("unproven", "n", lambda each: count(each.unproven)),
]
_FINDINGS: list[Column[Finding]] = [
    Column("finding", "head", lambda each: (f"{each.rule}: {each.verdict}", each.text)),
    Column("when", "when", lambda each: each.at_us),
    Column("request", "", lambda each: each.request),
    Column("service", "", lambda each: each.service),
    Column("node", "", lambda each: each.node),
    Column("for", "n", lambda each: "" if each.duration_us is None else duration(each.duration_us)),
    Column("count", "n", lambda each: count(each.count)),
]
_FACTS: list[Column[tuple[str, str]]] = [
    Column("of the journals", "head", lambda each: each[0]),
    Column("", "", lambda each: each[1]),
]
_SAMPLES: list[Column[tuple[str, str, str]]] = [
    Column("file", "head", lambda each: each[0].rsplit("/", 1)[-1]),
    Column("reason", "", lambda each: each[1]),
    Column("line", "", lambda each: each[2]),
]
_RUNS: list[Column[Run]] = [
    Column(
        "process",
        "head",
        lambda each: f"{each.source} {each.node}" + (f" ({each.service})" if each.service else ""),
    ),
    Column("started", "when", lambda each: each.started_at_us),
    Column("lived", "n", lambda each: duration(each.last_at_us - each.started_at_us)),
    Column("end", "", lambda each: "stopped in good order" if each.is_clean else "no word"),
    Column("host", "", lambda each: each.host),
    Column("version", "", lambda each: each.version),
    Column("configuration", "", lambda each: each.config),
    Column("records", "n", lambda each: count(each.records)),
    Column("missing", "n", lambda each: count(each.missing)),
    Column("dropped", "n", lambda each: count(each.dropped)),
]
_COLUMNS = {
    "intervals": _INTERVALS,
    "incidents": _INCIDENTS,
    "objectives": _OBJECTIVES,
    "capacity": _CAPACITY,
    "clients": _CLIENTS,
    "verdicts": _VERDICTS,
    "findings": _FINDINGS,
    "facts": _FACTS,
    "samples": _SAMPLES,
    "runs": _RUNS,
}
