"""The figures of a report as plotly.js reads them: plain lists and dictionaries, no plotly object.

Colours are names of the page's CSS variables ("--active"); its script puts the values in, and again when the
reader's device goes from light to dark. Texts from the wire are escaped here, because plotly takes a little
HTML in its labels. Every figure is bounded by what ``collect`` brought.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from bstar_pipeline.report.content import Capacity, Content, Heat, Incident, Interval, Objective
from bstar_pipeline.report.words import KINDS, count, date_and_time, duration, is_one_day, moment, share

Figure = dict[str, Any]
"""``data`` and ``layout`` of plotly.js."""

# What a node was, as the legend says it, in its order.
STATES = {
    "ACTIVE": "--active",
    "PASSIVE": "--passive",
    "starting": "--starting",
    "away": "--away",
    "ERROR": "--bad",
}
# How each kind of incident is marked: plotly's name, and a sign for the legend.
MARKS = {
    "crash": ("x", "✖"),
    "stop": ("square", "■"),
    "start": ("triangle-up", "▲"),
    "handover": ("diamond", "◆"),
    "pause": ("circle", "●"),
    "partition": ("diamond-open", "◇"),
    "both-active": ("star", "★"),
    "outage": ("hourglass", "⧗"),
}
_OTHER_MARK = ("triangle-down", "▼")
_STARTING = ("PRIMARY", "BACKUP")
_LINES = ("--line-1", "--line-2", "--line-3", "--line-4", "--line-5")
_INCIDENTS = "incidents"
_AXIS = {"automargin": True, "gridcolor": "--rule", "zeroline": False, "linecolor": "--rule"}
_FROM_ZERO = _AXIS | {"rangemode": "tozero", "fixedrange": True}
_LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": -0.12,
    "yanchor": "top",
    "traceorder": "normal",
}
_LAYOUT = {
    "hovermode": "closest",
    "margin": {"l": 8, "r": 12, "t": 8, "b": 8, "pad": 2},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"size": 14, "color": "--text", "family": "system-ui, sans-serif"},
    "legend": _LEGEND,
    "hoverlabel": {"font": {"size": 14, "color": "--text"}, "bgcolor": "--surface", "align": "left"},
}


def timeline(content: Content) -> Figure:
    """The nodes' states, the incidents, and beneath them, on the same axis, requests per second."""
    nodes = sorted({each.node for each in content.intervals}, reverse=True)
    # Bottom to top. "primary" sorts behind "backup": it is the upper one.
    rows = [*sorted(nodes), *([_INCIDENTS] if content.incidents else [])]
    by_state: dict[str, list[Interval]] = {state: [] for state in STATES}
    for each in content.intervals:
        by_state.setdefault(_state(each), []).append(each)
    data = [_bars(content, state, chosen) for state, chosen in by_state.items() if chosen]
    if content.incidents:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "incident",
                "x": [_ms(each.began_at_us) for each in content.incidents],
                "y": [_INCIDENTS] * len(content.incidents),
                "marker": {
                    "symbol": [MARKS.get(each.kind, _OTHER_MARK)[0] for each in content.incidents],
                    "size": 14,
                    "color": "--bad",
                },
                "cliponaxis": False,
                "hovertext": [
                    f"<b>{number}. {_text(each.node)} {_text(KINDS.get(each.kind, each.kind))}</b><br>"
                    f"{moment(content, each.began_at_us)}, outage {duration(each.outage_us)}<br>"
                    f"{_wrap(each.cause)}"
                    for number, each in enumerate(content.incidents, start=1)
                ],
                "hoverinfo": "text",
            }
        )
    data += _rates(content)
    states_axis = {
        "domain": [0.52, 1],
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [_text(row) for row in rows],
        "range": [-0.5, len(rows) - 0.5],
        "showgrid": False,
    }
    rates_axis = {"domain": [0, 0.42], "title": {"text": "requests/s", "standoff": 6}, "nticks": 5}
    shapes = [
        shape
        for each in content.incidents
        for shape in _marks(each)
        if content.from_us <= each.began_at_us <= content.until_us
    ]
    return _figure(
        data,
        height=400,
        barmode="overlay",
        # The page has a legend of its own, which takes less room on a phone.
        showlegend=False,
        uniformtext={"mode": "hide", "minsize": 14},
        xaxis=_time_axis(content) | {"anchor": "y2"},
        yaxis=_AXIS | states_axis | {"fixedrange": True},
        yaxis2=_FROM_ZERO | rates_axis,
        shapes=shapes,
    )


def _bars(content: Content, state: str, chosen: Sequence[Interval]) -> Figure:
    colour = STATES.get(state, "--muted")
    return {
        "type": "bar",
        "orientation": "h",
        "name": _text(state),
        "y": [_text(each.node) for each in chosen],
        "base": [_ms(each.since_at_us) for each in chosen],
        "x": [max(0.001, (each.until_at_us - each.since_at_us) / 1000) for each in chosen],
        "width": 0.7,
        # A border keeps what is narrower than a pixel visible.
        "marker": {"color": colour, "line": {"width": 1, "color": colour}},
        "text": [_text(state)] * len(chosen),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "insidetextfont": {"color": "--on-state", "size": 14},
        "hovertext": [
            f"<b>{_text(each.node)}: {_text(each.state)}</b>, epoch {each.epoch}<br>"
            f"{moment(content, each.since_at_us)} – {moment(content, each.until_at_us)} "
            f"({duration(each.until_at_us - each.since_at_us)})<br>{_wrap(each.text)}"
            for each in chosen
        ],
        "hoverinfo": "text",
    }


def _rates(content: Content) -> list[Figure]:
    per_s = 1e6 / content.step_us
    x = [_ms(rate.at_us) for rate in content.rates]
    # The last step ends where the next one would begin.
    x.append(_ms(content.rates[-1].at_us + content.step_us) if content.rates else _ms(content.until_us))

    def trace(name: str, colour: str, values: list[float]) -> Figure:
        y = [round(value * per_s, 3) for value in values]
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "yaxis": "y2",
            "x": x,
            "y": [*y, y[-1] if y else 0],
            "stackgroup": "requests",
            "line": {"shape": "hv", "width": 0, "color": colour},
            "fillcolor": colour,
            "hovertemplate": f"%{{y:.4~g}}/s {name}<extra></extra>",
        }

    traces = [trace("answered", "--answered", [rate.answered for rate in content.rates])]
    if content.errors:
        traces.append(trace("not answered", "--bad", [rate.not_answered for rate in content.rates]))
    return traces


def _marks(incident: Incident) -> Iterable[Figure]:
    place = {"xref": "x", "yref": "paper", "y0": 0}
    at_ms = _ms(incident.began_at_us)
    dotted = {"color": "--bad", "width": 1, "dash": "dot"}
    yield place | {"type": "line", "x0": at_ms, "x1": at_ms, "y1": 1, "line": dotted}
    if incident.outage_us:
        began_us = incident.began_at_us if incident.outage_at_us is None else incident.outage_at_us
        span = {"x0": _ms(began_us), "x1": _ms(began_us + incident.outage_us), "y1": 0.42}
        yield place | span | {"type": "rect", "line": {"width": 0}, "fillcolor": "--bad", "opacity": 0.25}


def heat(content: Content, heat: Heat) -> Figure:
    """Requests by time and duration, as colours, with their median and 99th percentile as lines."""
    steps = len(content.rates)
    z: list[list[float | None]] = [[None] * steps for _ in range(len(content.edges_us) - 1)]
    for step, row, weight in heat.cells:
        if 0 <= step < steps:
            z[row][step] = round(weight, 2)
    most = max((weight for _, _, weight in heat.cells), default=1.0)
    origin_us = content.rates[0].at_us if content.rates else content.from_us
    edges = [_ms(origin_us + step * content.step_us) for step in range(steps + 1)]
    middles = [_ms(origin_us + step * content.step_us + content.step_us // 2) for step, _, _ in heat.lines]
    time = _hovered(content)
    data: list[Figure] = [
        {
            "type": "heatmap",
            "x": edges,
            "y": [round(edge / 1000, 6) for edge in content.edges_us],
            "z": z,
            "colorscale": _log_scale(most),
            "zmin": 0,
            "zmax": max(most, 1.0),
            "showscale": False,
            "hovertemplate": f"%{{x|{time}}}: %{{z:,.0f}} requests took about %{{y:.3~g}} ms<extra></extra>",
        }
    ]
    mode = "lines" if len(heat.lines) > 2 else "lines+markers"
    for name, colour, values in (
        ("median", "--text", [p50 for _, p50, _ in heat.lines]),
        ("p99", "--bad", [p99 for _, _, p99 in heat.lines]),
    ):
        data.append(
            {
                "type": "scatter",
                "mode": mode,
                "name": name,
                "x": middles,
                "y": [round(value / 1000, 4) for value in values],
                "line": {"color": colour, "width": 2, "dash": "solid"},
                "hovertemplate": f"%{{x|{time}}}: {name} %{{y:.3~g}} ms<extra></extra>",
            }
        )
    low, high = content.edges_us[0] / 1000, content.edges_us[-1] / 1000
    ticks = _ticks(low, high)
    axis = {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [duration(tick * 1000) for tick in ticks],
        "fixedrange": True,
    }
    return _figure(data, height=360, xaxis=_time_axis(content), yaxis=_AXIS | axis)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: decades, and between a few of them 2 and 5 as well."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def _log_scale(most: float) -> list[tuple[float, str]]:
    """Colours by the logarithm of the count, so that one slow request among thousands is seen."""
    stops = [max(most, 2.0) ** (step / 4 - 1) for step in range(5)]
    return [(0.0, "--heat-1"), *((stop, f"--heat-{i + 1}") for i, stop in enumerate(stops))]


def burn(content: Content, objectives: Sequence[Objective]) -> Figure | None:
    """Burn rate of the error budget over time, for the busiest services; None if there is none."""
    chosen = [each for each in objectives if each.burn]
    if not chosen:
        return None
    data = [
        _line(each.service, each.burn, colour, "%{y:.3~g} ×")
        for each, colour in zip(chosen, _LINES, strict=False)
    ]
    axis = _FROM_ZERO | {"nticks": 6}
    return _figure(data, height=300, xaxis=_time_axis(content), yaxis=axis, shapes=[_limit(1.0)])


def capacity(content: Content, services: Sequence[Capacity]) -> Figure | None:
    """Utilisation of the workers by hour, with a straight line to where it leads; None if there is none."""
    chosen = [each for each in services if each.hours]
    if not chosen:
        return None
    period_us = content.until_us - content.from_us
    ends_at_us = content.until_us
    data: list[Figure] = []
    for each, colour in zip(chosen, _LINES, strict=False):
        data.append(_line(each.service, [(at_us, mean) for at_us, mean, _ in each.hours], colour, "%{y:.1%}"))
        last_at_us, last, _ = each.hours[-1]
        if each.trend_per_day and len(each.hours) > 1:
            ahead_us = period_us // 2
            if each.trend_per_day > 0:
                ahead_us = min(ahead_us, int(max(0.0, 1 - last) / each.trend_per_day * 86_400e6))
            then = max(0.0, last + each.trend_per_day * ahead_us / 86_400e6)
            ends_at_us = max(ends_at_us, last_at_us + ahead_us)
            ahead = [(last_at_us, last), (last_at_us + ahead_us, then)]
            dashed = {"color": colour, "width": 2, "dash": "dash"}
            line = _line(each.service, ahead, colour, "%{y:.1%}")
            data.append(line | {"showlegend": False, "mode": "lines", "line": dashed})
    axis = _time_axis(content)
    first = min(each.hours[0][0] for each in chosen)
    axis["range"] = [_ms(min(first, content.from_us)), _ms(ends_at_us)]
    shares = _FROM_ZERO | {"tickformat": ".0%", "nticks": 6}
    return _figure(data, height=300, xaxis=axis, yaxis=shares, shapes=[_limit(1.0)])


def _line(name: str, points: Sequence[tuple[int, float]], colour: str, value: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 12 else "lines+markers",
        "name": _text(name),
        "x": [_ms(at_us) for at_us, _ in points],
        "y": [round(y, 5) for _, y in points],
        "line": {"color": colour, "width": 2},
        "hovertemplate": f"%{{x|%Y-%m-%d %H:%M}}: {value} {_text(name, is_template=True)}<extra></extra>",
    }


def _limit(y: float) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "--bad", "width": 1, "dash": "dash"},
    }


def _figure(data: list[Figure], **layout: Any) -> Figure:
    return {"data": data, "layout": _LAYOUT | layout}


def _time_axis(content: Content) -> Figure:
    return _AXIS | {
        "type": "date",
        "range": [_ms(content.from_us), _ms(content.until_us)],
        "nticks": 6,
        "tickangle": 0,
        "tickformatstops": [
            {"dtickrange": [None, 999], "value": "%H:%M:%S.%L"},
            {"dtickrange": [1000, 59_999], "value": "%H:%M:%S"},
            {
                "dtickrange": [60_000, 86_399_999],
                "value": "%H:%M" if is_one_day(content) else "%b %-d<br>%H:%M",
            },
            {"dtickrange": [86_400_000, None], "value": "%b %-d"},
        ],
        "hoverformat": f"{_hovered(content)}.%3f",
        "showline": True,
    }


def _hovered(content: Content) -> str:
    """The form of a time under the pointer."""
    return "%H:%M:%S" if is_one_day(content) else "%Y-%m-%d %H:%M:%S"


def _state(interval: Interval) -> str:
    if interval.state in _STARTING:
        return "starting"
    return "away" if interval.state == "ACTIVE" and not interval.is_serving else interval.state


def _ms(at_us: int) -> float:
    return at_us / 1000


def _text(raw: str, *, is_template: bool = False) -> str:
    """``raw`` as a label that shows just that. A template gives meaning to per cent signs, too."""
    text = html.escape(raw, quote=False)
    return text.replace("%{", "%&#123;") if is_template else text


def _wrap(raw: str, width: int = 44) -> str:
    lines = [""]
    for word in raw.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(_text(line) for line in lines[:4])


def describe(content: Content) -> str:
    """The timeline in a sentence, for those who do not see it."""
    serving = [each for each in content.intervals if each.is_serving]
    changes = (
        f"{count(len(serving))} intervals of service" if len(serving) != 1 else "one interval of service"
    )
    return (
        f"States of the nodes from {date_and_time(content.from_us)} "
        f"to {date_and_time(content.until_us)} UTC: {changes}, {count(len(content.incidents))} incidents, "
        f"{share(content.errors / content.requests if content.requests else 0)} of requests not answered."
    )
