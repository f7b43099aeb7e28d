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
from typing import NamedTuple

from markupsafe import Markup

from bstar_pipeline.report.content import Content, Heat, Interval, round_step_us
from bstar_pipeline.report.words import count, duration, happened, kind_of, moment
from bstar_pipeline.tables import utc

STATES = {each: f"--{each.lower()}" for each in ("ACTIVE", "PASSIVE", "starting", "away")} | {
    "ERROR": "--bad"
}
"""What a node was, as the legend says it, in its order."""
_LINES = ("--line-1", "--line-2", "--line-3", "--line-4", "--line-5")
_WIDE = 1000.0
"""Drawings are so many units wide and high."""
_TICKS_MAX = 6
# A label in the middle of its tick must not stick out.
_MARGIN = 0.08
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
# How much of 08:06:42.250 tells apart the times of steps that are not shorter.
_TIME_LETTERS = ((_DAY_US, 0), (60 * _SECOND_US, 5), (_SECOND_US, 8), (0, 12))
_POINTS_MAX = 12
"""Of a line with fewer, its points are drawn as well."""

_Span = tuple[int, int]
_Two = tuple[float, float]
_Courses = Mapping[str, list[tuple[int, float]]]


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

    def box(self, kind: str, x: _Two, y: _Two = (0, 1000), style: str = "", about: str = "") -> None:
        """Draw a rectangle on top of what is drawn. ``about`` appears where a pointer rests."""
        where = f'x="{x[0]:.2f}" y="{y[0]:.1f}" width="{x[1] - x[0]:.2f}" height="{y[1] - y[0]:.1f}"'
        self._draw("rect", kind, where, style, about)

    def _draw(self, tag: str, kind: str, where: str, style: str, about: str) -> None:
        caption = Markup("<title>{}</title>").format(about) if about else ""
        shape = Markup(f'<{tag} class="{kind}" {where}' + (f' style="{style}"' if style else "") + ">")  # noqa: S704
        self.parts.append(shape + caption + Markup(f"</{tag}>"))  # noqa: S704 - our own tags


class Figure(NamedTuple):
    """Panels with one axis of time; ``key`` is (colour, word)."""

    panels: Sequence[Panel]
    span: _Span
    key: Sequence[tuple[str, str]]

    @property
    def times(self) -> list[tuple[float, str, str]]:
        """Round times of the span: share of the width, date ("" if all are of one), time."""
        first_us, last_us = self.span
        step_us = round_step_us(last_us - first_us, _TICKS_MAX)
        margin_us = round((last_us - first_us) * _MARGIN)
        is_of_days = utc(first_us).date() != utc(last_us - 1).date()
        letters = next(letters for least_us, letters in _TIME_LETTERS if step_us >= least_us)
        found = []
        for at_us in range(-(-(first_us + margin_us) // step_us) * step_us, last_us - margin_us + 1, step_us):
            date, time = f"{utc(at_us):%b %d}", f"{utc(at_us):%T.%f}"[:letters]
            found.append((_share(self.span, at_us), date if is_of_days or not time else "", time))
        return found


def timeline(content: Content) -> Figure:
    """The nodes' states, the incidents, and beneath them, on the same axis, requests per second."""
    # "primary" sorts behind "backup": it is the upper one.
    nodes = sorted({each.node for each in content.intervals}, reverse=True)
    rows = [*(["incidents"] if content.incidents else []), *nodes]
    height = _WIDE / max(1, len(rows))
    states = Panel(30 * max(1, len(rows)), [(name, (n + 0.5) / len(rows)) for n, name in enumerate(rows)])
    for each in content.intervals:
        x, y = _x(content.span, each.since_at_us), (rows.index(each.node) + 0.15) * height
        times = f"{moment(content, each.since_at_us)} – {moment(content, each.until_at_us)}"
        lasted = duration(each.until_at_us - each.since_at_us)
        about = f"{each.node}: {each.state}, epoch {each.epoch}\n{times} ({lasted})\n{each.text}"
        colour = f"var({STATES.get(state_of(each), '--muted')})"
        until = max(x + 0.01, _x(content.span, each.until_at_us))
        # A border keeps what is narrower than a pixel visible.
        states.box("bar", (x, until), (y, y + height * 0.7), f"fill:{colour};stroke:{colour}", about)
    _moments(states, content)
    for number, incident in enumerate(content.incidents, start=1):
        about = (
            f"{number}. {happened(incident)}\n{moment(content, incident.began_at_us)}, "
            f"outage {duration(incident.outage_us)}\n{incident.cause}"
        )
        place = min(0.99, max(0.01, _share(content.span, incident.began_at_us)))
        states.marks.append((place, kind_of(incident).mark, about))
    seen = {state_of(each) for each in content.intervals}
    key = [(colour, state) for state, colour in STATES.items() if state in seen]
    key += [("--answered", "answered"), *([("--bad", "not answered")] if content.errors else [])]
    return Figure([states, _rates(content)], content.span, key)


def state_of(interval: Interval) -> str:
    """What a node was, in a word of STATES."""
    if interval.state in ("PRIMARY", "BACKUP"):
        return "starting"
    return "away" if interval.state == "ACTIVE" and not interval.is_serving else interval.state


def _moments(panel: Panel, content: Content) -> None:
    """A dotted line for each incident."""
    panel.path("moments", (f"M{_x(content.span, each.began_at_us):.2f} 0V1000" for each in content.incidents))


def _rates(content: Content) -> Panel:
    span, per_s = content.span, _SECOND_US / content.step_us
    sums = [(rate.answered + rate.not_answered) * per_s for rate in content.rates]
    panel = Panel.with_scale(130, max(sums, default=0.0), lambda value: f"{value:,.4g}", "requests/s")
    steps = [(_x(span, rate.at_us), _x(span, rate.at_us + content.step_us)) for rate in content.rates]
    # The second covers the lower part of the first.
    for colour, tops in (("--bad", sums), ("--answered", [rate.answered * per_s for rate in content.rates])):
        edge = (f"V{panel.y(top):.1f}H{until:.2f}" for (_, until), top in zip(steps, tops, strict=True))
        if steps and (colour != "--bad" or content.errors):
            panel.path("area", [f"M{steps[0][0]:.2f} 1000", *edge, "V1000z"], f"fill:var({colour})")
    for each in content.incidents:
        if each.outage_us:
            x = _x(span, each.outage_began_us)
            panel.box("outage", (x, max(x + 0.5, _x(span, each.outage_began_us + each.outage_us))))
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

    panel = Panel(260, [(duration(tick), y(tick) / _WIDE) for tick in ticks(low, high)])
    rows = len(content.edges_us) - 1
    origin_us = content.rates[0].at_us
    x, wide = _x(content.span, origin_us), _WIDE * content.step_us / (content.until_us - content.from_us)
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
        when, requests = moment(content, origin_us + step * content.step_us), count(weights.get(step, 0))
        about = f"{when}\n{requests} requests\nmedian {duration(p50)}, p99 {duration(p99)}"
        panel.box("hover", (x + step * wide, x + (step + 1) * wide), about=about)
    return Figure([panel], content.span, key)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: decades, and between a few of them 2 and 5 as well."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    found = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in found if low <= tick <= high]


def burn(content: Content) -> Figure | None:
    """Burn rate of the error budget over time, for the busiest services; None if nothing burned."""
    lines = {each.service: each.burn for each in content.objectives if each.burn}
    has_burned = any(rate for points in lines.values() for _, rate in points)
    return _lines(content, lines, lambda value: f"{value:,.3g} ×") if has_burned else None


def capacity(content: Content) -> Figure | None:
    """Utilisation of workers by hour, and its trend for half a period or until all are in use, or None."""
    # A single hour is a point, not a course.
    lines = {each.service: each.hours for each in content.capacity if len(each.hours) > 1}
    ahead = {}
    for each in content.capacity:
        if each.service in lines and each.trend_per_day:
            last_at_us, last = each.hours[-1]
            ahead_us = (content.until_us - content.from_us) // 2
            if each.trend_per_day > 0:
                ahead_us = min(ahead_us, int(max(0.0, 1 - last) / each.trend_per_day * _DAY_US))
            led = max(0.0, last + each.trend_per_day * ahead_us / _DAY_US)
            ahead[each.service] = [(last_at_us, last), (last_at_us + ahead_us, led)]
    return _lines(content, lines, lambda value: f"{value:.0%}", ahead)


def _lines(
    content: Content, lines: _Courses, spell: Callable[[float], str], ahead: _Courses | None = None
) -> Figure | None:
    """Courses over time by service, and where they lead, or None."""
    colours = dict(zip(lines, _LINES, strict=False))
    drawn = [(service, points, "") for service, points in lines.items()]
    drawn += [(service, points, " forecast") for service, points in (ahead or {}).items()]
    if not drawn:
        return None
    times = [at_us for _, points, _ in drawn for at_us, _ in points]
    span = (min(content.from_us, *times), max(content.until_us, *times))
    panel = Panel.with_scale(220, max(1.0, *(y for _, points, _ in drawn for _, y in points)), spell)
    for service, points, kind in drawn:
        course = [(_x(span, at_us), panel.y(y)) for at_us, y in points]
        _course(panel, course, colours[service], service, kind)
    panel.path("limit", [f"M0 {panel.y(1.0):.1f}H1000"])
    return Figure([panel], span, [(colour, service) for service, colour in colours.items()])


def _course(panel: Panel, points: Sequence[_Two], colour: str, name: str, kind: str = "") -> None:
    """A line through points; of a few of them with the points."""
    places = [f"{x:.2f} {y:.1f}" for x, y in points]
    panel.path(f"course{kind}", ["M", "L".join(places)], f"stroke:var({colour})", name)
    if not kind and len(points) <= _POINTS_MAX:
        panel.path("dots", (f"M{place}h0" for place in places), f"stroke:var({colour})", name)


def _share(span: _Span, at_us: int) -> float:
    return (at_us - span[0]) / (span[1] - span[0])


def _x(span: _Span, at_us: int) -> float:
    return _WIDE * _share(span, at_us)
