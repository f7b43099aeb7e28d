"""The figures of a report, for ``figure`` of page.html: SVG for what is drawn, HTML for what is read.

A drawing is stretched to the width of the screen, and its letters are not: names, times and marks stand
beside or above it, at a share of its width. Plotting libraries scale the letters with the drawing, to 3 px on
a phone. Colours are the page's CSS variables, so figures follow the reader's choice of light or dark. What a
field or bar means appears where a pointer rests; the tables say it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from bstar_pipeline.report.content import Capacity, Content, Heat, Incident, Interval, Objective
from bstar_pipeline.report.words import count, date_and_time, duration, happened, moment, share
from bstar_pipeline.tables import utc

STATES = {
    "ACTIVE": "--active",
    "PASSIVE": "--passive",
    "starting": "--starting",
    "away": "--away",
    "ERROR": "--bad",
}
"""What a node was, as the legend says it, in its order."""
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
"""How each kind of incident is marked."""
_LINES = ("--line-1", "--line-2", "--line-3", "--line-4", "--line-5")
_WIDE = 1000.0
"""Drawings are so many units wide and high."""
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


@dataclass
class Panel:
    """One drawing of a figure: ``height`` in pixels, ``labels`` at shares of it from the top, ``marks``
    (share of the width, sign, what it means) above it.
    """

    height: int
    labels: Sequence[tuple[str, float]]
    most: float = 1.0
    title: str = ""
    parts: list[Markup] = field(default_factory=list)
    marks: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path("grid", (f"M0 {place * _WIDE:.1f}H1000" for _, place in self.labels))

    @classmethod
    def with_scale(cls, height: int, most: float, spell: Callable[[float], str], title: str = "") -> Panel:
        """From zero to a round number that is not below ``most``."""
        least = (most or 1.0) / 4
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999)
        top = step * math.ceil((most or 1.0) / step)
        values = [step * number for number in range(round(top / step) + 1)]
        return cls(height, [(spell(value), 1 - value / top) for value in values], top, title)

    def y(self, value: float) -> float:
        """In units of the drawing."""
        return _WIDE * (1 - value / self.most)

    def path(self, kind: str, pieces: Iterable[str], style: str = "", about: str = "") -> None:
        """Draw a path on top of what is drawn."""
        self._draw("path", kind, f'd="{"".join(pieces)}"', style, about)

    def box(
        self,
        kind: str,
        x: tuple[float, float],
        y: tuple[float, float] = (0, 1000),
        style: str = "",
        about: str = "",
    ) -> None:
        """Draw a rectangle on top of what is drawn. ``about`` appears where a pointer rests."""
        where = f'x="{x[0]:.2f}" y="{y[0]:.1f}" width="{x[1] - x[0]:.2f}" height="{y[1] - y[0]:.1f}"'
        self._draw("rect", kind, where, style, about)

    def _draw(self, tag: str, kind: str, where: str, style: str, about: str) -> None:
        caption = Markup("<title>{}</title>").format(about) if about else ""
        shape = Markup(f'<{tag} class="{kind}" {where}' + (f' style="{style}"' if style else "") + ">")  # noqa: S704
        self.parts.append(shape + caption + Markup(f"</{tag}>"))  # noqa: S704 - our own tags


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels with one time axis; ``about`` is for those who do not see it, ``key`` is (colour, word)."""

    name: str
    about: str
    panels: Sequence[Panel]
    span: tuple[int, int]
    key: Sequence[tuple[str, str]] = ()

    @property
    def wide(self) -> int:
        """How many letters the labels at the left need."""
        return max((len(text) for panel in self.panels for text, _ in panel.labels), default=1) + 1

    @property
    def times(self) -> list[tuple[float, str, str]]:
        """Round times of the span: share of the width, date ("" if all are of one), time."""
        length_us = self.span[1] - self.span[0]
        length_s = length_us / _SECOND_US
        step_s = next(
            (step for step in _TIME_STEPS_S if length_s / step <= _TICKS_MAX), length_s / _TICKS_MAX
        )
        step_us = max(1, round(step_s * _SECOND_US))
        first, last = (self.span[0] + round(length_us * part) for part in (_MARGIN, 1 - _MARGIN))
        found = range(-(-first // step_us) * step_us, last + 1, step_us)
        is_of_days = date_and_time(self.span[0])[:10] != date_and_time(self.span[1] - 1)[:10]
        spelled = ((_place(self.span, at_us), *_time(at_us, step_s)) for at_us in found)
        return [(place, date if is_of_days or not time else "", time) for place, date, time in spelled]


def timeline(content: Content) -> Figure:
    """The nodes' states, the incidents, and beneath them, on the same axis, requests per second."""
    # "primary" sorts behind "backup": it is the upper one.
    nodes = sorted({each.node for each in content.intervals}, reverse=True)
    rows = [*(["incidents"] if content.incidents else []), *nodes]
    height = _WIDE / max(1, len(rows))
    states = Panel(30 * max(1, len(rows)), [(name, (n + 0.5) / len(rows)) for n, name in enumerate(rows)])
    for each in content.intervals:
        x, y = _x(content, each.since_at_us), (rows.index(each.node) + 0.15) * height
        about = (
            f"{each.node}: {each.state}, epoch {each.epoch}\n{moment(content, each.since_at_us)} – "
            f"{moment(content, each.until_at_us)} ({duration(each.until_at_us - each.since_at_us)})\n"
            f"{each.text}"
        )
        colour = f"var({STATES.get(state_of(each), '--muted')})"
        until = max(x + 0.01, _x(content, each.until_at_us))
        # A border keeps what is narrower than a pixel visible.
        states.box("bar", (x, until), (y, y + height * 0.7), f"fill:{colour};stroke:{colour}", about)
    _moments(states, content)
    states.marks = [_mark(content, number, each) for number, each in enumerate(content.incidents, start=1)]
    seen = {state_of(each) for each in content.intervals}
    key = [(colour, state) for state, colour in STATES.items() if state in seen]
    key += [("--answered", "answered"), *([("--bad", "not answered")] if content.errors else [])]
    span = (content.from_us, content.until_us)
    return Figure("timeline-plot", describe(content), [states, _rates(content)], span, key)


def _mark(content: Content, number: int, each: Incident) -> tuple[float, str, str]:
    about = (
        f"{number}. {happened(each)}\n{moment(content, each.began_at_us)}, "
        f"outage {duration(each.outage_us)}\n{each.cause}"
    )
    place = min(0.99, max(0.01, _x(content, each.began_at_us) / _WIDE))
    return place, MARKS.get(each.kind, "✚"), about


def _moments(panel: Panel, content: Content) -> None:
    """A dotted line for each incident."""
    panel.path("moments", (f"M{_x(content, each.began_at_us):.2f} 0V1000" for each in content.incidents))


def _rates(content: Content) -> Panel:
    per_s = _SECOND_US / content.step_us
    sums = [(rate.answered + rate.not_answered) * per_s for rate in content.rates]
    panel = Panel.with_scale(130, max(sums, default=0.0), lambda value: f"{value:,.4g}", "requests/s")
    steps = [(_x(content, rate.at_us), _x(content, rate.at_us + content.step_us)) for rate in content.rates]
    # The second covers the lower part of the first.
    for colour, tops in (("--bad", sums), ("--answered", [rate.answered * per_s for rate in content.rates])):
        edge = (f"V{panel.y(top):.1f}H{until:.2f}" for (_, until), top in zip(steps, tops, strict=True))
        if steps and (colour != "--bad" or content.errors):
            panel.path("area", [f"M{steps[0][0]:.2f} 1000", *edge, "V1000z"], f"fill:var({colour})")
    for each in content.incidents:
        if each.outage_us:
            x = _x(content, each.outage_began_us)
            until = _x(content, each.outage_began_us + each.outage_us)
            panel.box("outage", (x, max(x + 0.5, until)))
    _moments(panel, content)
    for step, rate in zip(steps, content.rates, strict=True):
        caption = f"{rate.answered * per_s:,.4g}/s answered, {rate.not_answered * per_s:,.4g}/s not"
        panel.box("hover", step, about=f"{moment(content, rate.at_us)}\n{caption}")
    return panel


def heat(content: Content, heat: Heat) -> Figure:
    """Requests by time and duration, as colours, with their median and 99th percentile as lines."""
    low, high = content.edges_us[0], content.edges_us[-1]

    def y(value_us: float) -> float:
        return _WIDE * (1 - math.log(max(value_us, low) / low) / math.log(high / low))

    labels = [(duration(tick * 1000), y(tick * 1000) / _WIDE) for tick in ticks(low / 1000, high / 1000)]
    panel = Panel(260, labels)
    rows = len(content.edges_us) - 1
    origin_us = content.rates[0].at_us if content.rates else content.from_us
    x, wide = _x(content, origin_us), _x(content, origin_us + content.step_us) - _x(content, origin_us)
    most = math.log(max(2.0, *(weight for _, _, weight in heat.cells)))
    levels: dict[int, list[str]] = {}
    weights: dict[int, float] = {}
    for step, row, weight in sorted(heat.cells, key=lambda cell: (cell[1], cell[0])):
        level = 1 + round(4 * math.log(max(weight, 1.0)) / most)
        levels.setdefault(level, []).append(f"M{step} {rows - 1 - row}.5h1")
        weights[step] = weights.get(step, 0.0) + weight
    for level, cells in sorted(levels.items()):
        scaled = f"transform:translate({x:.3f}px,0) scale({wide:.5f},{_WIDE / rows:.4f})"
        panel.path("heat", cells, f"stroke:var(--heat-{level});{scaled}")
    key = [("--text", "median"), ("--bad", "p99")]
    for at, (colour, name) in enumerate(key, start=1):
        _course(panel, [(x + (line[0] + 0.5) * wide, y(line[at])) for line in heat.lines], colour, name)
    for step, p50, p99 in heat.lines:
        caption = f"{count(weights.get(step, 0))} requests\nmedian {duration(p50)}, p99 {duration(p99)}"
        when = moment(content, origin_us + step * content.step_us)
        panel.box("hover", (x + step * wide, x + (step + 1) * wide), about=f"{when}\n{caption}")
    about = f"Latency of {heat.service or 'all services'} over time; the objectives have the percentiles."
    return Figure("", about, [panel], (content.from_us, content.until_us), key)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: decades, and between a few of them 2 and 5 as well."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    found = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in found if low <= tick <= high]


def burn(content: Content, objectives: Sequence[Objective]) -> Figure | None:
    """Burn rate of the error budget over time, for the busiest services; None if nothing burned."""
    lines = {each.service: each.burn for each in objectives if each.burn}
    if not any(rate for points in lines.values() for _, rate in points):
        return None
    about = "Burn rate of the error budget over time, by service."
    return _lines("burn-plot", about, content, lines, lambda value: f"{value:,.3g} ×")


def capacity(content: Content, services: Sequence[Capacity]) -> Figure | None:
    """Utilisation of the workers by hour, with a straight line to where it leads, or None."""
    # A single hour is a point, not a course.
    chosen = [each for each in services if len(each.hours) > 1]
    lines = {each.service: [(at_us, mean) for at_us, mean, _ in each.hours] for each in chosen}
    ahead = {each.service: _ahead(content, each, each.trend_per_day) for each in chosen if each.trend_per_day}
    about = "Utilisation of the workers by hour, by service, with its trend."
    return _lines("capacity-plot", about, content, lines, lambda value: f"{value:.0%}", ahead)


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
    lines: Mapping[str, list[tuple[int, float]]],
    spell: Callable[[float], str],
    ahead: Mapping[str, list[tuple[int, float]]] | None = None,
) -> Figure | None:
    """Courses over time by service, and where they lead, or None."""
    colours = dict(zip(lines, _LINES, strict=False))
    drawn = [
        (service, points, kind)
        for kind, courses in (("", lines), (" forecast", ahead or {}))
        for service, points in courses.items()
        if service in colours
    ]
    if not drawn:
        return None
    times = [at_us for _, points, _ in drawn for at_us, _ in points]
    span = (min(content.from_us, *times), max(content.until_us, *times))
    panel = Panel.with_scale(220, max(1.0, *(y for _, points, _ in drawn for _, y in points)), spell)
    for service, points, kind in drawn:
        course = [(_place(span, at_us) * _WIDE, panel.y(y)) for at_us, y in points]
        _course(panel, course, colours[service], service, kind)
    panel.path("limit", [f"M0 {panel.y(1.0):.1f}H1000"])
    return Figure(name, about, [panel], span, [(colour, service) for service, colour in colours.items()])


def _course(
    panel: Panel, points: Sequence[tuple[float, float]], colour: str, name: str, kind: str = ""
) -> None:
    """A line through points; of a few of them with the points."""
    places = [f"{x:.2f} {y:.1f}" for x, y in points]
    panel.path(f"course{kind}", ["M", "L".join(places)], f"stroke:var({colour})", name)
    if not kind and len(points) <= _POINTS_MAX:
        panel.path("dots", (f"M{place}h0" for place in places), f"stroke:var({colour})", name)


def _time(at_us: int, step_s: float) -> tuple[str, str]:
    """The date of a tick, and its time if ticks are of less than days."""
    at = utc(at_us)
    time = "" if step_s >= 86_400 else f"{at:%H:%M}" if step_s >= 60 else f"{at:%H:%M:%S}"
    return f"{at:%b %d}", time + (f".{at_us % _SECOND_US // 1000:03}" if step_s < 1 else "")


def _place(span: tuple[int, int], at_us: int) -> float:
    return (at_us - span[0]) / max(1, span[1] - span[0])


def _x(content: Content, at_us: int) -> float:
    return _WIDE * _place((content.from_us, content.until_us), at_us)


def state_of(interval: Interval) -> str:
    """What a node was, in a word of STATES."""
    if interval.state in ("PRIMARY", "BACKUP"):
        return "starting"
    return "away" if interval.state == "ACTIVE" and not interval.is_serving else interval.state


def describe(content: Content) -> str:
    """The timeline in a sentence, for those who do not see it."""
    serving = sum(each.is_serving for each in content.intervals)
    return (
        f"States of the nodes from {date_and_time(content.from_us)} to "
        f"{date_and_time(content.until_us)} UTC: {count(serving)} intervals of service, "
        f"{count(len(content.incidents))} incidents, "
        f"{share(content.errors / content.requests if content.requests else 0)} of requests not answered."
    )
