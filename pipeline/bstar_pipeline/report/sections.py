"""The sections of a report, as HTML."""

from html import escape
from itertools import count as numbers

from bstar_pipeline.report import plots
from bstar_pipeline.report.content import (
    Capacity,
    Client,
    Content,
    Finding,
    Incident,
    Interval,
    Objective,
    Run,
    Verdicts,
)
from bstar_pipeline.report.elements import Cell, Column, cut, table
from bstar_pipeline.report.words import (
    KINDS,
    alerts,
    budget_note,
    budget_used,
    count,
    date_and_time,
    duration,
    judge,
    moment,
    plural,
    promised,
    share,
)


def timeline(content: Content) -> str:
    """What each node was, and the requests beneath."""
    columns: list[Column[Interval]] = [
        Column("state", "head", lambda each: (f"{each.node} {_state(each)}", each.text or each.event)),
        Column("since", "when", lambda each: moment(content, each.since_at_us)),
        Column("for", "n", lambda each: duration(each.until_at_us - each.since_at_us)),
        Column("epoch", "n", lambda each: str(each.epoch)),
    ]
    return (
        "<p class=note>Above what each node was, below requests per second in steps of "
        f"{duration(content.step_us)}. Marks and dotted lines are incidents, red areas outages.</p>"
        + plots.timeline(content)
        + _legend(content)
        + f"<details><summary>The states as a table ({len(content.intervals)})</summary>"
        + table(columns, content.intervals)
        + cut(content.intervals, "intervals", "the longest")
        + "</details>"
    )


def _state(interval: Interval) -> str:
    is_away = interval.state == "ACTIVE" and not interval.is_serving
    return "ACTIVE, but away" if is_away else interval.state


def _legend(content: Content) -> str:
    keys = [(state, colour) for state, colour in plots.STATES.items() if state != "ERROR"]
    if any(each.state == "ERROR" for each in content.intervals):
        keys.append(("ERROR", plots.STATES["ERROR"]))
    keys.append(("answered", "--answered"))
    if content.errors:
        keys.append(("not answered", "--bad"))
    items = [f'<li><i style="background: var({colour})"></i>{word}</li>' for word, colour in keys]
    kinds = {each.kind for each in content.incidents}
    items += [f"<li><b>{sign}</b>{escape(kind)}</li>" for kind, sign in plots.MARKS.items() if kind in kinds]
    return f"<ul class=legend>{''.join(items)}</ul>"


def incidents(content: Content) -> str:
    """What moved the role or ended a node."""
    if not content.incidents:
        return "<p>None: neither a node ended nor did the role move.</p>"
    number = numbers(1)

    def what(each: Incident) -> Cell:
        successor = f", {each.successor} took over" if each.successor and each.taken_over_at_us else ""
        return f"{next(number)}. {each.node} {KINDS.get(each.kind, each.kind)}{successor}", each.cause

    def when(each: Incident) -> Cell:
        error = f"± {duration(each.began_error_us)}" if each.began_error_us else ""
        return moment(content, each.began_at_us), error

    def whole_after(each: Incident) -> Cell:
        return duration(None if each.recovered_at_us is None else each.recovered_at_us - each.began_at_us)

    columns: list[Column[Incident]] = [
        Column("what", "head", what),
        Column("when", "when", when),
        Column("outage", "n", lambda each: duration(each.outage_us)),
        Column("detected after", "n", lambda each: duration(each.detection_us)),
        Column("taken over after", "n", lambda each: duration(each.takeover_us)),
        Column("pair whole after", "n", whole_after),
        Column("sent again", "n", lambda each: count(each.retried)),
        Column("refused", "n", lambda each: count(each.refused)),
        Column("unknown", "n", lambda each: count(each.unknown)),
    ]
    return (
        "<p class=note>Outage: the longest time around it in which a request waited and none was answered. "
        "Durations count from when it happened. Unknown: requests whose outcome their client never "
        "learned.</p>"
        + table(columns, content.incidents)
        + cut(content.incidents, "incidents", "those with the longest outages")
    )


def latency(content: Content) -> str:
    """How long requests took, over time."""
    if not content.heats:
        return "<p>No request was timed in this period.</p>"
    every, *services = content.heats
    body = (
        "<p class=note>From acceptance to the end of each request. The more a field stands out, "
        f"the more requests took so long in these {duration(content.step_us)}.</p>"
        f'<div id="latency-plot">{plots.heat(content, every)}</div>'
    )
    # Of one service alone it would be the same once more.
    for each in services if len(services) > 1 else ():
        body += f"<details><summary>{escape(each.service)}</summary>{plots.heat(content, each)}</details>"
    return body


def objectives(content: Content) -> str:
    """Each service against its objectives."""
    if not content.objectives:
        return "<p>No request was recorded by a node in this period.</p>"

    def worst_minute(each: Objective) -> Cell:
        return (
            (_times(each.worst_burn_rate), moment(content, each.worst_at_us)) if each.worst_burn_rate else ""
        )

    columns: list[Column[Objective]] = [
        Column("service", "head", lambda each: (each.service, promised(each.promise))),
        Column("alerts", "", alerts),
        Column("requests", "n", lambda each: count(each.requests)),
        Column("counted by", "", lambda each: each.counted),
        Column("peak per s", "n", lambda each: f"{each.peak_per_s:,.0f}"),
        Column("errors", "n", lambda each: share(each.error_share)),
        Column(
            "p50, p95, p99",
            "n",
            lambda each: ", ".join(map(duration, (each.p50_us, each.p95_us, each.p99_us))),
        ),
        Column("budget used", "n", lambda each: (budget_used(each.promise), budget_note(each.promise))),
        Column("burn rate", "n", lambda each: _times(each.burn_rate)),
        Column("worst minute", "n", worst_minute),
    ]
    figure = plots.burn(content, content.objectives)
    drawn = ""
    if figure is not None and any(rate for each in content.objectives for _, rate in each.burn):
        drawn = f"<h3>Burn rate</h3>{figure}"
    return (
        "<p class=note>Burn rate: the share of requests that missed the objective over the share that "
        "may. At 1 × the error budget lasts exactly for its period. Counted by calls: what clients "
        "recorded; by requests: what nodes recorded, where clients keep no journals.</p>"
        + table(columns, content.objectives)
        + cut(content.objectives, "services", "the busiest")
        + drawn
    )


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ×" if value >= 100 else f"{value:.2g} ×"


def capacity(content: Content) -> str:
    """How much the workers have to do."""
    if not content.capacity:
        return "<p>The nodes told nothing about their load in this period.</p>"

    def trend(each: Capacity) -> str:
        return "–" if each.trend_per_day is None else f"{each.trend_per_day * 100:+.2f} points"

    def full_from(each: Capacity) -> str:
        at_us = each.saturates_at_us
        return "not foreseen" if at_us is None else date_and_time(at_us, to="minutes")

    columns: list[Column[Capacity]] = [
        Column("service", "head", lambda each: each.service),
        Column("workers", "n", lambda each: f"{each.workers:.3g}"),
        Column("utilisation", "n", lambda each: share(each.utilisation)),
        Column("peak", "n", lambda each: share(each.peak_utilisation)),
        Column("arrivals per s", "n", lambda each: f"{each.arrivals_per_s:,.3g}"),
        Column("longest queue", "n", lambda each: count(each.queued_max)),
        Column("trend per day", "n", trend),
        Column("full from", "when", full_from),
    ]
    # A single hour is a point, not a course.
    figure = plots.capacity(content, [each for each in content.capacity if len(each.hours) > 1])
    drawn = ""
    if figure is not None:
        drawn = f"<h3>Utilisation of the workers</h3>{figure}"
    return (
        "<p class=note>The last hour of each service. Utilisation: the share of what all workers "
        "can take at once that they held. The forecast is a straight line through all hours.</p>"
        + table(columns, content.capacity)
        + cut(content.capacity, "services", "the most utilised")
        + drawn
    )


def clients(content: Content) -> str:
    """Who asked."""
    if not content.clients:
        return "<p>No client asked anything in this period.</p>"

    def remark(each: Client) -> str:
        remarks = (("floods", each.is_flooding), ("retries", each.is_retrying))
        return ", ".join(word for word, is_so in remarks if is_so)

    columns: list[Column[Client]] = [
        Column(
            "client", "head", lambda each: f"{each.node} ({each.client[:12]})" if each.node else each.client
        ),
        Column("requests", "n", lambda each: count(each.requests)),
        Column("share", "n", lambda each: share(each.share)),
        Column("peak per s", "n", lambda each: f"{each.peak_per_s:,.3g}"),
        Column("not answered", "n", lambda each: count(each.not_answered)),
        Column("sent again", "n", lambda each: count(each.retries)),
        Column("told BUSY", "n", lambda each: count(each.busy)),
        Column("p99", "n", lambda each: duration(each.p99_us)),
        Column("remark", "", remark),
    ]
    return (
        "<p class=note>Over whole days; those that flood or retry first.</p>"
        + table(columns, content.clients)
        + cut(content.clients, "clients", "the conspicuous and the busiest")
    )


def audit(content: Content) -> str:
    """What the audit found, rule by rule and one by one."""
    body = f"<p>{escape(judge(content.verdicts, content.requests).headline)}</p>"
    if content.verdicts:
        by_rule: list[Column[Verdicts]] = [
            Column("rule", "head", lambda each: each.rule),
            Column("violated", "n", lambda each: count(each.violated)),
            Column("excused", "n", lambda each: count(each.excused)),
            Column("unproven", "n", lambda each: count(each.unproven)),
        ]
        body += table(by_rule, content.verdicts)
    if content.findings:
        columns: list[Column[Finding]] = [
            Column("finding", "head", lambda each: (f"{each.rule}: {each.verdict}", each.text)),
            Column("when", "when", lambda each: moment(content, each.at_us)),
            Column("request", "", lambda each: each.request),
            Column("service", "", lambda each: each.service),
            Column("node", "", lambda each: each.node),
            Column("for", "n", lambda each: "" if each.duration_us is None else duration(each.duration_us)),
            Column("count", "n", lambda each: count(each.count)),
        ]
        body += "<h3>Findings</h3>" + table(columns, content.findings)
        body += cut(content.findings, "findings", "violations first")
    return body


def quality(content: Content) -> str:
    """What of the journals could not be read or is missing."""
    quality = content.quality
    files = ", ".join(f"{count(number)} {state}" for state, number in quality.files)
    rejected = ", ".join(f"{count(number)} {reason}" for reason, number in quality.rejected)
    facts = {
        "files": files or "none",
        "lines": count(quality.lines),
        "lines that could not be read": rejected or "0",
        "records that came twice and count once": count(quality.duplicates),
        "records that are missing": count(quality.missing),
        "records dropped by a journal that could not keep up": count(quality.dropped),
        "requests sampled": "yes" if quality.is_sampled else "no",
    }
    for node, off_us, unsure_us in quality.clocks:
        put_right = f"was {off_us / 1e6:+.3f} s off and is put right" if off_us else "is not put right"
        facts[f"clock of {node}"] = f"{put_right}; unsure by {unsure_us / 1e6:.3f} s"
    fact_columns: list[Column[tuple[str, str]]] = [
        Column("of the journals", "head", lambda each: each[0]),
        Column("", "", lambda each: each[1]),
    ]
    body = table(fact_columns, facts.items())
    if quality.samples:
        columns: list[Column[tuple[str, str, str]]] = [
            Column("file", "head", lambda each: each[0].rsplit("/", 1)[-1]),
            Column("reason", "", lambda each: each[1]),
            Column("line", "", lambda each: each[2]),
        ]
        body += f"<details><summary>Some lines that could not be read ({len(quality.samples)})</summary>"
        body += table(columns, quality.samples) + "</details>"
    return body


def processes(content: Content) -> str:
    """The runs of processes that kept a journal."""
    columns: list[Column[Run]] = [
        Column(
            "process",
            "head",
            lambda each: f"{each.source} {each.node}" + (f" ({each.service})" if each.service else ""),
        ),
        Column("started", "when", lambda each: date_and_time(each.started_at_us)),
        Column("lived", "n", lambda each: duration(each.last_at_us - each.started_at_us)),
        Column("end", "", lambda each: "said that it stopped" if each.is_clean else "no word"),
        Column("host", "", lambda each: each.host),
        Column("version", "", lambda each: each.version),
        Column("configuration", "", lambda each: each.config),
        Column("records", "n", lambda each: count(each.records)),
        Column("missing", "n", lambda each: count(each.missing)),
        Column("dropped", "n", lambda each: count(each.dropped)),
    ]
    return (
        f"<details><summary>{plural(content.runs.total, 'run')} of processes that kept a journal</summary>"
        + table(columns, content.runs)
        + cut(content.runs, "runs", "the earliest")
        + "</details>"
    )


SECTIONS = (
    ("timeline", "Timeline", timeline),
    ("incidents", "Incidents", incidents),
    ("latency", "Latency", latency),
    ("objectives", "Objectives", objectives),
    ("capacity", "Capacity", capacity),
    ("clients", "Clients", clients),
    ("audit", "Audit", audit),
    ("quality", "Quality of the data", quality),
    ("processes", "Processes", processes),
)
"""Each section's key, its heading and what makes its HTML, in the order of the page."""
