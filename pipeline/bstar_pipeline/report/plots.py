"""The figures of a report: SVG for what is drawn, HTML for what is read, no script.

A drawing is stretched to the width of the screen, and its letters are not: names, times and marks stand
beside or above it, at a share of its width. Colours are the page's CSS variables, so figures follow the
reader's choice of light or dark. What a field or bar means appears where a pointer rests; the tables say it,
too.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from bstar_pipeline.report.content import Capacity, Content, Heat, Incident, Interval, Objective
from bstar_pipeline.report.words import KINDS, count, date_and_time, duration, moment, share

# What a node was, as the legend says it, in its order.
STATES = {
    "ACTIVE": "--active",
    "PASSIVE": "--passive",
    "starting": "--starting",
    "away": "--away",
    "ERROR": "--bad",
}
# How each kind of incident is marked.
MARKS = {
    "crash": "✖",
    "both-crash": "✱",
    "stop": "■",
    "start": "▲",
    "handover": "◆",
    "pause": "●",
    "partition": "◇",
    "both-active": "★",
    "outage": "▼",
}
_OTHER_MARK = "✚"
_STARTING = ("PRIMARY", "BACKUP")
_LINES = ("--line-1", "--line-2", "--line-3", "--line-4", "--line-5")
_INCIDENTS = "incidents"
# Drawings are so many units wide.
_WIDE = 1000.0
_TICKS_MAX = 6
# A label in the middle of its tick must not stick out.
_MARGIN = 0.08
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
_TIME_STEPS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
_POINTS_MAX = 12
"""Of a line with fewer, its points are drawn as well."""


def timeline(content: Content) -> str:
    """The nodes' states, the incidents, and beneath them, on the same axis, requests per second."""
    # "primary" sorts behind "backup": it is the upper one.
    nodes = sorted({each.node for each in content.intervals}, reverse=True)
    rows = [*([_INCIDENTS] if content.incidents else []), *nodes]
    marks = "".join(_mark(content, number, each) for number, each in enumerate(content.incidents, start=1))
    states = _Panel(
        34 * max(1, len(rows)), [(name, (place + 0.5) / len(rows)) for place, name in enumerate(rows)]
    )
    states.draw(_bars(content, rows))
    states.draw(_moments(content))
    states.above = marks
    return _figure("timeline-plot", describe(content), content, [states, _rates(content)])


def _bars(content: Content, rows: Sequence[str]) -> Iterator[str]:
    """One bar for each interval; a border keeps what is narrower than a pixel visible."""
    height = _WIDE / max(1, len(rows))
    for state, chosen in groupby(sorted(content.intervals, key=_state), key=_state):
        colour = STATES.get(state, "--muted")
        yield f'<g class=bars style="fill:var({colour});stroke:var({colour})">'
        for each in chosen:
            x, until = _x(content, each.since_at_us), _x(content, each.until_at_us)
            y = (rows.index(each.node) + 0.15) * height
            about = (
                f"{each.node}: {each.state}, epoch {each.epoch}\n{moment(content, each.since_at_us)} – "
                f"{moment(content, each.until_at_us)} ({duration(each.until_at_us - each.since_at_us)})\n"
                f"{each.text}"
            )
            wide = max(0.01, until - x)
            yield (
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{height * 0.7:.1f}">'
                f"<title>{escape(about)}</title></rect>"
            )
        yield "</g>"


def _mark(content: Content, number: int, incident: Incident) -> str:
    """The sign of an incident, above the drawing."""
    about = (
        f"{number}. {incident.node} {KINDS.get(incident.kind, incident.kind)}\n"
        f"{moment(content, incident.began_at_us)}, outage {duration(incident.outage_us)}\n{incident.cause}"
    )
    left = min(99.0, max(1.0, _x(content, incident.began_at_us) / 10))
    return f'<b style="left:{left:.2f}%" title="{escape(about)}">{MARKS.get(incident.kind, _OTHER_MARK)}</b>'


def _moments(content: Content) -> Iterator[str]:
    """A dotted line for each incident."""
    lines = "".join(f"M{_x(content, each.began_at_us):.2f} 0V1000" for each in content.incidents)
    yield f'<path class=moments d="{lines}"/>'


def _rates(content: Content) -> _Panel:
    per_s = _SECOND_US / content.step_us
    sums = [(rate.answered + rate.not_answered) * per_s for rate in content.rates]
    panel = _Panel.with_scale(180, max(sums, default=0.0), lambda value: f"{value:,.4g}")
    panel.title = "requests/s"
    y = panel.y
    steps = [(_x(content, rate.at_us), _x(content, rate.at_us + content.step_us)) for rate in content.rates]
    answered = [rate.answered * per_s for rate in content.rates]
    for colour, lower, upper in (("--answered", [0.0] * len(sums), answered), ("--bad", answered, sums)):
        if upper != lower:
            edge = "".join(
                f"{x:.2f} {y(to):.1f}H{end:.2f}L" for (x, end), to in zip(steps, upper, strict=True)
            )
            back = "".join(
                f"{end:.2f} {y(to):.1f}H{x:.2f}L"
                for (x, end), to in zip(steps[::-1], lower[::-1], strict=True)
            )
            panel.draw([f'<path class=area style="fill:var({colour})" d="M{edge}{back[:-1]}z"/>'])
    panel.draw(_outages(content))
    panel.draw(_moments(content))
    panel.draw(
        _hover(
            x,
            end,
            f"{moment(content, rate.at_us)}\n{rate.answered * per_s:,.4g}/s answered, "
            f"{rate.not_answered * per_s:,.4g}/s not",
        )
        for (x, end), rate in zip(steps, content.rates, strict=True)
    )
    return panel


def _outages(content: Content) -> Iterator[str]:
    for each in content.incidents:
        if each.outage_us:
            began_us = each.began_at_us if each.outage_at_us is None else each.outage_at_us
            x, until = _x(content, began_us), _x(content, began_us + each.outage_us)
            yield f'<rect class=outage x="{x:.2f}" y="0" width="{max(0.5, until - x):.2f}" height="1000"/>'


def _hover(x: float, until: float, about: str) -> str:
    """Nothing to see; a pointer that rests there is told something."""
    return (
        f'<rect class=hover x="{x:.2f}" y="0" width="{until - x:.2f}" height="1000">'
        f"<title>{escape(about)}</title></rect>"
    )


def heat(content: Content, heat: Heat) -> str:
    """Requests by time and duration, as colours, with their median and 99th percentile as lines."""
    low, high = content.edges_us[0], content.edges_us[-1]
    scale = math.log(high / low)

    def y(value_us: float) -> float:
        return _WIDE * (1 - math.log(max(value_us, low) / low) / scale)

    labels = [(duration(tick * 1000), y(tick * 1000) / _WIDE) for tick in ticks(low / 1000, high / 1000)]
    panel = _Panel(300, labels)
    rows = len(content.edges_us) - 1
    origin_us = content.rates[0].at_us if content.rates else content.from_us
    x, wide = _x(content, origin_us), _x(content, origin_us + content.step_us) - _x(content, origin_us)
    most = math.log(max(2.0, *(weight for _, _, weight in heat.cells)))
    levels: dict[int, list[tuple[int, int]]] = {}
    for step, row, weight in heat.cells:
        level = round(4 * math.log(max(weight, 1.0)) / most)
        levels.setdefault(level + 1, []).append((row, step))
    panel.draw(
        f'<path class=heat style="fill:var(--heat-{level})" '
        f'transform="translate({x:.3f} 0) scale({wide:.5f} {_WIDE / rows:.4f})" d="{_cells(chosen, rows)}"/>'
        for level, chosen in sorted(levels.items())
    )
    for name, at in (("median", 1), ("p99", 2)):
        points = [(x + (line[0] + 0.5) * wide, y(line[at])) for line in heat.lines]
        panel.draw([_course(points, "--text" if at == 1 else "--bad", name)])
    weights: dict[int, float] = {}
    for step, _, weight in heat.cells:
        weights[step] = weights.get(step, 0.0) + weight
    panel.draw(
        _hover(
            x + step * wide,
            x + (step + 1) * wide,
            f"{moment(content, origin_us + step * content.step_us)}\n{count(weights.get(step, 0))} requests\n"
            f"median {duration(p50)}, p99 {duration(p99)}",
        )
        for step, p50, p99 in heat.lines
    )
    about = f"Latency of {heat.service or 'all services'} over time; the objectives have the percentiles."
    key = _key([("median", "--text"), ("p99", "--bad")])
    return _figure("", about, content, [panel]) + key


def _cells(cells: Iterable[tuple[int, int]], rows: int) -> str:
    """Fields of one colour (row, step), one unit each, as a path; neighbours of a row become one."""
    path = []
    for row, group in groupby(sorted(cells), key=lambda cell: cell[0]):
        steps = [step for _, step in group]
        begin = steps[0]
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if following != step + 1:
                wide = step + 1 - begin
                path.append(f"M{begin} {rows - 1 - row}h{wide}v1h-{wide}z")
                begin = following if following is not None else begin
    return "".join(path)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: decades, and between a few of them 2 and 5 as well."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    found = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in found if low <= tick <= high]


def burn(content: Content, objectives: Sequence[Objective]) -> str | None:
    """Burn rate of the error budget over time, for the busiest services; None if there is none."""
    chosen = [each for each in objectives if each.burn]
    if not chosen:
        return None
    lines = [(each.service, each.burn, False) for each in chosen]
    about = "Burn rate of the error budget over time, by service."
    return _lines("burn-plot", about, content, lines, lambda value: f"{value:,.3g} ×")


def capacity(content: Content, services: Sequence[Capacity]) -> str | None:
    """Utilisation of the workers by hour, with a straight line to where it leads; None if there is none."""
    chosen = [each for each in services if each.hours]
    if not chosen:
        return None
    lines: list[tuple[str, list[tuple[int, float]], bool]] = []
    for each in chosen:
        lines.append((each.service, [(at_us, mean) for at_us, mean, _ in each.hours], False))
        if each.trend_per_day and len(each.hours) > 1:
            lines.append((each.service, _ahead(content, each, each.trend_per_day), True))
    about = "Utilisation of the workers by hour, by service, with its trend."
    return _lines("capacity-plot", about, content, lines, lambda value: f"{value:.0%}")


def _ahead(content: Content, each: Capacity, trend_per_day: float) -> list[tuple[int, float]]:
    """Half the period onwards from the last hour, or until all workers are in use."""
    last_at_us, last, _ = each.hours[-1]
    ahead_us = (content.until_us - content.from_us) // 2
    if trend_per_day > 0:
        ahead_us = min(ahead_us, int(max(0.0, 1 - last) / trend_per_day * _DAY_US))
    return [(last_at_us, last), (last_at_us + ahead_us, max(0.0, last + trend_per_day * ahead_us / _DAY_US))]


def _lines(
    name: str,
    about: str,
    content: Content,
    lines: Sequence[tuple[str, list[tuple[int, float]], bool]],
    spell: Callable[[float], str],
) -> str:
    """Courses over time by service; the third of each says whether it is a forecast."""
    services = list(dict.fromkeys(service for service, _, _ in lines))[: len(_LINES)]
    colours = dict(zip(services, _LINES, strict=False))
    times = [at_us for _, points, _ in lines for at_us, _ in points]
    span = (min(content.from_us, *times), max(content.until_us, *times))
    panel = _Panel.with_scale(240, max(1.0, *(y for _, points, _ in lines for _, y in points)), spell)
    for service, points, is_forecast in lines:
        if service in colours:
            drawn = [(_place(span, at_us) * _WIDE, panel.y(y)) for at_us, y in points]
            panel.draw([_course(drawn, colours[service], service, is_forecast=is_forecast)])
    panel.draw([f'<path class=limit d="M0 {panel.y(1.0):.1f}H1000"/>'])
    return _figure(name, about, content, [panel], span) + _key(list(colours.items()))


def _course(
    points: Sequence[tuple[float, float]], colour: str, name: str, *, is_forecast: bool = False
) -> str:
    """A line through points; of a few of them with the points."""
    places = [f"{x:.2f} {y:.1f}" for x, y in points]
    kind = " forecast" if is_forecast else ""
    style = f'style="stroke:var({colour})"'
    told = f"<title>{escape(name)}</title>"
    line = f'<path class="course{kind}" {style} d="M{"L".join(places)}">{told}</path>'
    if is_forecast or len(points) > _POINTS_MAX:
        return line
    dots = "".join(f"M{place}h0" for place in places)
    return line + f'<path class=dots {style} d="{dots}">{told}</path>'


def _key(names: Sequence[tuple[str, str]]) -> str:
    items = (f'<li><i style="background:var({colour})"></i>{escape(name)}</li>' for name, colour in names)
    return f"<ul class=legend>{''.join(items)}</ul>"


# --- axes -----------------------------------------------------------------------------------------------


class _Panel:
    """One drawing of a figure: ``height`` in pixels, ``labels`` at shares of it from the top."""

    def __init__(self, height: int, labels: Sequence[tuple[str, float]], most: float = 1.0) -> None:
        self.height, self.labels, self._most = height, labels, most
        self.parts: list[str] = []
        self.above = self.title = ""
        if most != 1.0 or labels:
            grid = "".join(f"M0 {place * _WIDE:.1f}H1000" for _, place in labels)
            self.draw([f'<path class=grid d="{grid}"/>'])

    @classmethod
    def with_scale(cls, height: int, most: float, spell: Callable[[float], str]) -> _Panel:
        """From zero to a round number that is not below ``most``."""
        step = _round_step((most or 1.0) / 4)
        top = step * math.ceil((most or 1.0) / step)
        values = [step * number for number in range(round(top / step) + 1)]
        return cls(height, [(spell(value), 1 - value / top) for value in values], top)

    def y(self, value: float) -> float:
        """In units of the drawing."""
        return _WIDE * (1 - value / self._most)

    def draw(self, parts: Iterable[str]) -> None:
        """Put these on top of what is drawn already."""
        self.parts += parts

    def html(self, wide: int) -> str:
        """The labels, the drawing and what stands above it."""
        spans = "".join(f'<span style="top:{place:.1%}">{escape(text)}</span>' for text, place in self.labels)
        title = f"<em>{escape(self.title)}</em>" if self.title else ""
        return (
            f'<div class=y style="width:{wide}ch">{spans}</div><div class=panel>{title}'
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio=none style="height:{self.height}px">'
            f"{''.join(self.parts)}</svg>{self.above}</div>"
        )


def _figure(
    name: str, about: str, content: Content, panels: Sequence[_Panel], span: tuple[int, int] | None = None
) -> str:
    """Panels with one time axis; ``about`` is for those who do not see it."""
    chosen = span or (content.from_us, content.until_us)
    wide = max((len(text) for panel in panels for text, _ in panel.labels), default=1) + 1
    body = "".join(panel.html(wide) for panel in panels)
    ident = f' id="{name}"' if name else ""
    times = f"<div class=x>{_times(chosen)}</div>"
    return f'<div class=plot{ident} role=img aria-label="{escape(about)}">{body}{times}</div>'


def _times(span: tuple[int, int]) -> str:
    """Round times of a span; a narrow screen shows every other one."""
    length_s = (span[1] - span[0]) / _SECOND_US
    step_s = next((step for step in _TIME_STEPS_S if length_s / step <= _TICKS_MAX), length_s / _TICKS_MAX)
    step_us = max(1, round(step_s * _SECOND_US))
    first, last = (span[0] + round((span[1] - span[0]) * part) for part in (_MARGIN, 1 - _MARGIN))
    found = range(-(-first // step_us) * step_us, last + 1, step_us)
    is_of_days = date_and_time(span[0])[:10] != date_and_time(span[1] - 1)[:10]
    return "".join(
        f'<span{" class=odd" if number % 2 else ""} style="left:{_place(span, at_us):.2%}">'
        f"{_time(at_us, step_s, is_of_days)}</span>"
        for number, at_us in enumerate(found)
    )


def _time(at_us: int, step_s: float, is_of_days: bool) -> str:
    at = dt.datetime.fromtimestamp(at_us // _SECOND_US, dt.UTC)
    if step_s >= 86_400:
        return f"{at:%b %d}"
    time = f"{at:%H:%M}" if step_s >= 60 else f"{at:%H:%M:%S}"
    if step_s < 1:
        time += f".{at_us % _SECOND_US // 1000:03}"
    return f"{at:%b %d}<br>{time}" if is_of_days else time


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least so much."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999)


def _place(span: tuple[int, int], at_us: int) -> float:
    return (at_us - span[0]) / max(1, span[1] - span[0])


def _x(content: Content, at_us: int) -> float:
    return _WIDE * _place((content.from_us, content.until_us), at_us)


def _state(interval: Interval) -> str:
    if interval.state in _STARTING:
        return "starting"
    return "away" if interval.state == "ACTIVE" and not interval.is_serving else interval.state


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
