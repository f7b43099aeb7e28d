"""The sections of a report, each a key, a heading and its HTML. Figures go into ``figures`` by name."""

from html import escape

from bstar_pipeline.report import plots
from bstar_pipeline.report.content import Content
from bstar_pipeline.report.elements import Cell, Column, cut, plot, table
from bstar_pipeline.report.words import (
    KINDS,
    Verdict,
    alerts,
    budget_note,
    budget_used,
    clock,
    count,
    date_and_time,
    duration,
    is_one_day,
    plural,
    promised,
    share,
)

Section = tuple[str, str, str]
"""Key, heading, HTML."""


def timeline(content: Content, figures: dict[str, plots.Figure]) -> Section:
    """What each node was, and the requests beneath."""
    figures["timeline"] = plots.timeline(content)
    rows: list[list[Cell]] = [
        [
            (
                f"{each.node} "
                + ("ACTIVE, but away" if each.state == "ACTIVE" and not each.is_serving else each.state),
                each.text or each.event,
            ),
            _moment(content, each.since_at_us),
            duration(each.until_at_us - each.since_at_us),
            str(each.epoch),
        ]
        for each in content.intervals
    ]
    columns = [Column("state", "head"), Column("since", "when"), Column("for", "n"), Column("epoch", "n")]
    return (
        "timeline",
        "Timeline",
        "<p class=note>Above what each node was, below requests per second in steps of "
        f"{duration(content.step_us)}. Triangles and dotted lines are incidents, red areas outages.</p>"
        + plot("timeline", plots.describe(content))
        + _legend(content)
        + f"<details><summary>The states as a table ({len(rows)})</summary>"
        + table(columns, rows)
        + cut(content.intervals_cut, "intervals", "the longest")
        + "</details>",
    )


def _legend(content: Content) -> str:
    keys = [(state, colour) for state, colour in plots.STATES.items() if state != "ERROR"]
    if any(each.state == "ERROR" for each in content.intervals):
        keys.append(("ERROR", plots.STATES["ERROR"]))
    keys.append(("answered", "--answered"))
    if content.errors:
        keys.append(("not answered", "--bad"))
    return (
        "<ul class=legend>"
        + "".join(f'<li><i style="background: var({colour})"></i>{word}</li>' for word, colour in keys)
        + "</ul>"
    )


def incidents(content: Content) -> Section:
    """What moved the role or ended a node."""
    if not content.incidents:
        return "incidents", "Incidents", "<p>None: neither a node ended nor did the role move.</p>"
    columns = [
        Column("what", "head"),
        Column("when", "when"),
        Column("outage", "n"),
        Column("detected after", "n"),
        Column("taken over after", "n"),
        Column("pair whole after", "n"),
        Column("sent again", "n"),
        Column("refused", "n"),
        Column("unknown", "n"),
    ]
    rows: list[list[Cell]] = []
    for number, each in enumerate(content.incidents, start=1):
        successor = f", {each.successor} took over" if each.successor and each.taken_over_at_us else ""
        whole_us = None if each.recovered_at_us is None else each.recovered_at_us - each.began_at_us
        error = f"± {duration(each.began_error_us)}" if each.began_error_us else ""
        rows.append(
            [
                (f"{number}. {each.node} {KINDS.get(each.kind, each.kind)}{successor}", each.cause),
                (_moment(content, each.began_at_us), error),
                duration(each.outage_us),
                duration(each.detection_us),
                duration(each.takeover_us),
                duration(whole_us),
                count(each.retried),
                count(each.refused),
                count(each.unknown),
            ]
        )
    return (
        "incidents",
        "Incidents",
        "<p class=note>Outage: the longest time without an answer that clients saw around it. Durations "
        "count from when it happened. Unknown: requests whose outcome their client never learned.</p>"
        + table(columns, rows)
        + cut(content.incidents_cut, "incidents", "those with the longest outages"),
    )


def latency(content: Content, figures: dict[str, plots.Figure]) -> Section:
    """How long requests took, over time."""
    if not content.heats:
        return "latency", "Latency", "<p>No request was timed in this period.</p>"
    options = []
    for index, each in enumerate(content.heats):
        figures[f"heat-{index}"] = plots.heat(content, each)
        options.append(f'<option value="heat-{index}">{escape(each.service or "all services")}</option>')
    choose = (
        f"<label class=choose>Service <select data-plot=latency-plot>{''.join(options)}</select></label>"
        if len(options) > 2
        else ""
    )
    return (
        "latency",
        "Latency",
        "<p class=note>From acceptance to the end of each request. The more a field stands out, "
        f"the more requests took so long in these {duration(content.step_us)}.</p>"
        + choose
        + plot(
            "heat-0",
            "Latency of requests over time; the table of objectives has the percentiles.",
            place="latency-plot",
        ),
    )


def objectives(content: Content, figures: dict[str, plots.Figure]) -> Section:
    """Each service against its objectives."""
    if not content.objectives:
        return "objectives", "Objectives", "<p>No request was recorded by a node in this period.</p>"
    columns = [
        Column("service", "head"),
        Column("requests", "n"),
        Column("peak per s", "n"),
        Column("errors", "n"),
        Column("p50, p95, p99", "n"),
        Column("budget used", "n"),
        Column("burn rate", "n"),
        Column("worst minute", "n"),
        Column("alerts"),
    ]
    rows: list[list[Cell]] = [
        [
            (each.service, promised(each.promise)),
            count(each.requests),
            f"{each.peak_per_s:,.0f}",
            share(each.error_share),
            ", ".join(map(duration, (each.p50_us, each.p95_us, each.p99_us))),
            (budget_used(each.promise), budget_note(each.promise)),
            _times(each.burn_rate),
            ""
            if not each.worst_burn_rate
            else (_times(each.worst_burn_rate), _moment(content, each.worst_at_us)),
            alerts(each),
        ]
        for each in content.objectives
    ]
    figure = plots.burn(content, content.objectives)
    drawn = ""
    if figure is not None and any(rate for each in content.objectives for _, rate in each.burn):
        figures["burn"] = figure
        drawn = "<h3>Burn rate</h3>" + plot("burn", "Burn rate of the error budget over time, by service.")
    return (
        "objectives",
        "Objectives",
        "<p class=note>Burn rate: the share of requests that missed the objective over the share that "
        "may. At 1 × the error budget lasts exactly for its period.</p>"
        + table(columns, rows)
        + cut(content.objectives_cut, "services", "the busiest")
        + drawn,
    )


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ×" if value >= 100 else f"{value:.2g} ×"


def capacity(content: Content, figures: dict[str, plots.Figure]) -> Section:
    """How much the workers have to do."""
    if not content.capacity:
        return "capacity", "Capacity", "<p>The nodes told nothing about their load in this period.</p>"
    columns = [
        Column("service", "head"),
        Column("workers", "n"),
        Column("utilisation", "n"),
        Column("peak", "n"),
        Column("arrivals per s", "n"),
        Column("longest queue", "n"),
        Column("trend per day", "n"),
        Column("full from", "when"),
    ]
    rows: list[list[Cell]] = [
        [
            each.service,
            f"{each.workers:.3g}",
            share(each.utilisation),
            share(each.peak_utilisation),
            f"{each.arrivals_per_s:,.3g}",
            count(each.queued_max),
            "–" if each.trend_per_day is None else f"{each.trend_per_day * 100:+.2f} points",
            "not foreseen"
            if each.saturates_at_us is None
            else f"{date_and_time(each.saturates_at_us, to='minutes')}",
        ]
        for each in content.capacity
    ]
    # A single hour is a point, not a course.
    figure = plots.capacity(content, [each for each in content.capacity if len(each.hours) > 1])
    drawn = ""
    if figure is not None:
        figures["capacity"] = figure
        drawn = "<h3>Utilisation of the workers</h3>" + plot(
            "capacity", "Utilisation of the workers by hour, by service, with its trend."
        )
    return (
        "capacity",
        "Capacity",
        "<p class=note>The last hour of each service. Utilisation: the share of what all workers "
        "can take at once that they held. The forecast is a straight line through all hours.</p>"
        + table(columns, rows)
        + cut(content.capacity_cut, "services", "the most utilised")
        + drawn,
    )


def clients(content: Content) -> Section:
    """Who asked."""
    if not content.clients:
        return "clients", "Clients", "<p>No client asked anything in this period.</p>"
    columns = [
        Column("client", "head"),
        Column("requests", "n"),
        Column("share", "n"),
        Column("peak per s", "n"),
        Column("not answered", "n"),
        Column("sent again", "n"),
        Column("told BUSY", "n"),
        Column("p99", "n"),
        Column("remark"),
    ]
    rows: list[list[Cell]] = []
    for each in content.clients:
        remarks = [
            word for word, is_so in (("floods", each.is_flooding), ("retries", each.is_retrying)) if is_so
        ]
        rows.append(
            [
                f"{each.node} ({each.client[:12]})" if each.node else each.client,
                count(each.requests),
                share(each.share),
                f"{each.peak_per_s:,.3g}",
                count(each.not_answered),
                count(each.retries),
                count(each.busy),
                duration(each.p99_us),
                ", ".join(remarks),
            ]
        )
    return (
        "clients",
        "Clients",
        "<p class=note>Over whole days; those that flood or retry first.</p>"
        + table(columns, rows)
        + cut(content.clients_cut, "clients", "the conspicuous and the busiest"),
    )


def audit(content: Content, verdict: Verdict) -> Section:
    """What the audit found, rule by rule and one by one."""
    body = f"<p>{escape(verdict.headline)}</p>"
    if content.verdicts:
        columns = [
            Column("rule", "head"),
            Column("violated", "n"),
            Column("excused", "n"),
            Column("unproven", "n"),
        ]
        body += table(
            columns,
            [
                [each.rule, count(each.violated), count(each.excused), count(each.unproven)]
                for each in content.verdicts
            ],
        )
    if content.findings:
        columns = [
            Column("finding", "head"),
            Column("when", "when"),
            Column("request"),
            Column("service"),
            Column("node"),
            Column("for", "n"),
            Column("count", "n"),
        ]
        rows: list[list[Cell]] = [
            [
                (f"{each.rule}: {each.verdict}", each.text),
                _moment(content, each.at_us),
                f"{each.client} {'' if each.number is None else each.number}".strip(),
                each.service,
                each.node,
                "" if each.duration_us is None else duration(each.duration_us),
                count(each.count),
            ]
            for each in content.findings
        ]
        body += "<h3>Findings</h3>" + table(columns, rows)
        body += cut(content.findings_cut, "findings", "violations first")
    return "audit", "Audit", body


def quality(content: Content) -> Section:
    """What of the journals could not be read or is missing."""
    quality = content.quality
    facts = [
        ["files", ", ".join(f"{count(number)} {state}" for state, number in quality.files) or "none"],
        ["lines", count(quality.lines)],
        [
            "lines that could not be read",
            ", ".join(f"{count(number)} {reason}" for reason, number in quality.rejected) or "0",
        ],
        ["records that came twice and count once", count(quality.duplicates)],
        ["records that are missing", count(quality.missing)],
        ["records dropped by a journal that could not keep up", count(quality.dropped)],
        ["requests sampled", "yes" if quality.is_sampled else "no"],
    ]
    body = table([Column("of the journals", "head"), Column("")], facts)
    if quality.samples:
        body += f"<details><summary>Some lines that could not be read ({len(quality.samples)})</summary>"
        columns = [Column("file", "head"), Column("reason"), Column("line")]
        body += table(columns, [[file.rsplit("/", 1)[-1], *rest] for file, *rest in quality.samples])
        body += "</details>"
    return "quality", "Quality of the data", body


def processes(content: Content) -> Section:
    """The runs of processes that kept a journal."""
    columns = [
        Column("process", "head"),
        Column("started", "when"),
        Column("lived", "n"),
        Column("end"),
        Column("host"),
        Column("version"),
        Column("configuration"),
        Column("records", "n"),
        Column("missing", "n"),
        Column("dropped", "n"),
    ]
    rows: list[list[Cell]] = [
        [
            f"{each.source} {each.node}" + (f" ({each.service})" if each.service else ""),
            date_and_time(each.started_at_us),
            duration(each.last_at_us - each.started_at_us),
            "said that it stopped" if each.is_clean else "no word",
            each.host,
            each.version,
            each.config,
            count(each.records),
            count(each.missing),
            count(each.dropped),
        ]
        for each in content.runs
    ]
    body = (
        f"<details><summary>{plural(content.runs_cut.total, 'run')} of processes that kept a journal"
        "</summary>" + table(columns, rows) + cut(content.runs_cut, "runs", "the earliest") + "</details>"
    )
    return "processes", "Processes", body


def _moment(content: Content, at_us: int | None) -> str:
    """A time, with its date only where the report is about more than one."""
    return clock(at_us) if is_one_day(content) else date_and_time(at_us, to="ms")
