"""The report: what it says, that it is one page of its own, and that a browser draws it, on a phone too."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from bstar_pipeline.report import plots
from bstar_pipeline.report.content import Content, Shown, Verdicts
from bstar_pipeline.report.page import render
from bstar_pipeline.report.words import KINDS, count, date_and_time, duration, judge, plural, share
from support.chromium import chromium
from support.report_content import NASTY, START, STEPS, at, report_content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.chromium import Browser, Page

MADE = START + 3_600_000_000


# --- words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value_us", "text"),
    [
        (None, "–"),
        (0, "0 µs"),
        (40, "40 µs"),
        (999, "999 µs"),
        (1_500, "1.5 ms"),
        (11_840, "11.8 ms"),
        (312_400, "312 ms"),
        (999_600, "1 s"),
        (1_250_000, "1.25 s"),
        (59_960_000, "1 min"),
        (125_000_000, "2 min 5 s"),
        (3_599_700_000, "1 h"),
        (11_520_000_000, "3 h 12 min"),
        (352_800_000_000, "4 d 2 h"),
        (-40, "−40 µs"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_fits(value_us: float | None, text: str) -> None:
    assert duration(value_us) == text


def test_numbers_are_told_as_people_read_them() -> None:
    assert [count(1_234_567.4), plural(1, "request"), plural(2, "request")] == [
        "1,234,567",
        "1 request",
        "2 requests",
    ]
    assert [share(None), share(0), share(0.00003), share(0.0123), share(0.5)] == [
        "–",
        "0 %",
        "< 0.01 %",
        "1.23 %",
        "50.0 %",
    ]
    assert date_and_time(START + 1_234_567, to="ms") == "2026-11-21 08:00:01.234"


@pytest.mark.parametrize(
    ("verdicts", "requests", "level", "headline"),
    [
        (None, 12, "empty", "Not audited"),
        ([], 0, "empty", "Nothing to judge"),
        ([], 12, "passed", "Passed: each of 12 requests had exactly one outcome."),
        ([Verdicts("executed-twice", 0, 3, 0)], 12, "passed", "Passed"),
        ([Verdicts("crossed", 0, 0, 12)], 12, "unproven", "not all is proven"),
        (
            [Verdicts("lost", 2, 0, 0), Verdicts("both-active", 1, 0, 0), Verdicts("crossed", 0, 0, 12)],
            12,
            "violated",
            "Violated: 2 requests were lost; 1 interval in which both nodes served.",
        ),
        ([Verdicts("lost", 1, 0, 0)], 0, "violated", "Violated: 1 request was lost."),
        ([Verdicts("a-rule-of-tomorrow", 2, 0, 0)], 1, "violated", "2 findings of a-rule-of-tomorrow"),
    ],
)
def test_the_verdict_is_the_worst_that_was_found(
    verdicts: list[Verdicts] | None, requests: float, level: str, headline: str
) -> None:
    verdict = judge(verdicts, requests)
    assert verdict.level == level
    assert headline in verdict.headline


def test_excused_repetitions_are_told_but_do_not_spoil_the_verdict() -> None:
    verdict = judge([Verdicts("executed-twice", 0, 25, 0)], 100)
    assert any("25 cases" in sentence for sentence in verdict.sentences)


# --- the page without a browser -------------------------------------------------------------------------


class Elements(HTMLParser):
    """Every element, and every text outside of the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self._within = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("style", "script"):
            self.texts.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return render(report_content(is_broken=True), made_at_us=MADE)


def test_the_page_is_one_file_that_asks_for_nothing(page: str) -> None:
    elements = Elements(page)
    assert all(address.startswith("#") for address in elements.addresses)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(elements.tags)
    assert "default-src 'none'" in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert len(page.encode()) < 1_000_000


def test_names_from_the_wire_cannot_become_elements(page: str) -> None:
    elements = Elements(page)
    # One script, and the policy allows no other.
    assert elements.tags.count("script") == 1
    (digest,) = re.findall("script-src 'sha256-([^']+)'", page)
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert base64.b64decode(digest) == hashlib.sha256(script.encode()).digest()
    assert NASTY in "".join(elements.texts)
    assert NASTY not in page


def test_the_figures_are_in_the_page_as_words_too(page: str) -> None:
    """Whoever does not see them reads the tables."""
    text = " ".join(Elements(page).texts)
    for told in (
        "Violated: 1 interval in which both nodes served; 1 request was lost.",
        "primary crashed, backup took over",
        "08:06:42.250",
        "24 ms",
        "1.9 ms, 4.1 ms, 11.8 ms",
        "99.9 % answered, 99 % within 250 ms",
        "31 records dropped",
        "1 file cut off",
        "checkout-7 (a3a3a3a3a3a3)",
        "floods",
        "3 of 12 services are shown: the most utilised.",
        "40 ms",
    ):
        assert told in text


def test_a_report_about_nothing_says_so() -> None:
    nothing = replace(
        report_content(),
        requests=0.0,
        errors=0.0,
        verdicts=[],
        findings=Shown(),
        intervals=Shown(),
        incidents=Shown(),
        heats=[],
        edges_us=[],
        objectives=Shown(),
        p99_us=None,
        capacity=Shown(),
        clients=Shown(),
        runs=Shown(),
    )
    text = " ".join(Elements(render(nothing, made_at_us=MADE)).texts)
    assert "Nothing to judge: there is no request in this period." in text
    assert "neither a node ended nor did the role move" in text


def drawing(figure: plots.Figure, kind: str) -> list[dict[str, str]]:
    """The attributes of each element of a class."""
    shapes = "".join(part for panel in figure.panels for part in panel.parts)
    found = [dict(re.findall(r'([\w-]+)="([^"]*)"', told)) for told in re.findall(r"<\w+([^>]*)>", shapes)]
    return [attributes for attributes in found if attributes.get("class", "").split(" ")[0] == kind]


def test_incidents_and_states_share_one_axis_with_the_requests() -> None:
    content = report_content()
    figure = plots.timeline(content)
    length_us = content.until_us - content.from_us
    assert len(drawing(figure, "bar")) == len(content.intervals)
    places = [(each.began_at_us - content.from_us) / length_us for each in content.incidents]
    assert [place for place, _, _ in figure.panels[0].marks] == pytest.approx(places, abs=1e-4)
    lines = drawing(figure, "moments")
    assert len(lines) == len(figure.panels)
    for each in lines:
        at = [float(x) / 1000 for x in re.findall(r"M([\d.]+) 0V", each["d"])]
        assert at == pytest.approx(places, abs=1e-4)
    not_answered, answered = drawing(figure, "area")
    assert len(re.findall(r"H", answered["d"])) == STEPS
    # What was not answered shows above what was, where there is any.
    tops = [re.findall(r"V([\d.]+)H", area["d"]) for area in (not_answered, answered)]
    assert [step for step, (lower, upper) in enumerate(zip(*tops, strict=True)) if lower != upper] == [162]


def test_an_outage_is_shaded_where_requests_waited() -> None:
    content = report_content()
    first = replace(content.incidents[0], outage_at_us=content.from_us, outage_us=60_000_000)
    figure = plots.timeline(replace(content, incidents=Shown([first])))
    (shade,) = drawing(figure, "outage")
    assert (float(shade["x"]), float(shade["width"])) == pytest.approx(
        (0, 60e9 / (content.until_us - content.from_us)), abs=0.01
    )


def test_the_heat_map_has_every_cell_where_it_belongs() -> None:
    content = report_content()
    heat = content.heats[0]
    fields: list[tuple[int, int]] = []
    for level in drawing(plots.heat(content, heat), "heat"):
        cells = re.findall(r"M(\d+) (\d+)\.5h1", level["d"])
        assert "".join(f"M{x} {y}.5h1" for x, y in cells) == level["d"]
        fields += [(int(x), len(content.edges_us) - 2 - int(y)) for x, y in cells]
    assert sorted(fields) == sorted((step, row) for step, row, _ in heat.cells)


@pytest.mark.parametrize(
    ("most", "labels"),
    [(0, ["0", "0.5", "1"]), (7, ["0", "2", "4", "6", "8"]), (437, ["0", "200", "400", "600"]), (1, None)],
)
def test_a_scale_begins_at_zero_and_ends_at_a_round_number(most: float, labels: list[str] | None) -> None:
    panel = plots.Panel.with_scale(100, most, lambda value: f"{value:.4g}")
    told = [text for text, _ in panel.labels]
    assert labels is None or told == labels
    assert float(told[-1]) >= most
    assert panel.y(float(told[-1])) == 0


# --- the page in a browser ------------------------------------------------------------------------------

TOO_SMALL = """(() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || parent.closest('script, style, noscript')) continue;
    const size = parseFloat(getComputedStyle(parent).fontSize);
    if (size < 14) found.push(size + ': ' + walk.currentNode.data.slice(0, 40));
  }
  return found;
})()"""
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(each =>
  each.getBoundingClientRect().right > innerWidth + 0.5 && !each.closest('svg, thead, .hoverlayer')
).map(each => each.outerHTML.slice(0, 120))"""
RUN_TOGETHER = """[...document.querySelectorAll('.plot .x')].flatMap(axis => {
  const times = [...axis.children].map(each => each.getBoundingClientRect()).filter(each => each.width);
  return times.slice(1).filter((each, i) => each.left < times[i].right + 4).map(() => axis.innerHTML);
})"""
ALERTS_IN_SIGHT = """[...document.querySelectorAll('#objectives [data-label=alerts]')].every(cell =>
  cell.getBoundingClientRect().right <= cell.closest('.scroll').getBoundingClientRect().right)"""
TIMES = """[...document.querySelectorAll('#timeline-plot .x span')].filter(each => each.offsetWidth).length"""
DRAWN = """(() => {
  const of = (place, what) => [...document.querySelectorAll('#' + place + ' ' + what)].filter(each => {
    const box = each.getBoundingClientRect();
    return box.width + box.height > 0;
  }).length;
  return {
    bars: of('timeline-plot', '.bar'),
    areas: of('timeline-plot', '.area'),
    incidents: of('timeline-plot', 'b'),
    heat: of('latency-plot', '.heat'),
    percentiles: of('latency-plot', '.course'),
    burn: of('burn-plot', '.course'),
    capacity: of('capacity-plot', '.course'),
  };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def file(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def check(shown: Page, width: int) -> None:
    """What holds on every screen: all is drawn, nothing complains, nothing sticks out, all can be read."""
    content = report_content()
    drawn = shown.evaluate(DRAWN)
    assert drawn["bars"] == len(content.intervals)
    assert drawn["incidents"] == len(content.incidents)
    assert drawn["areas"] == 2
    assert 1 <= drawn["heat"] <= 5
    assert drawn["percentiles"] == 2
    assert drawn["burn"] == len(content.objectives)
    assert drawn["capacity"] >= len(content.capacity)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate(TOO_WIDE) == []
    assert shown.evaluate(TOO_SMALL) == []
    assert shown.evaluate("typeof window.broken") == "undefined"
    assert shown.complaints() == []
    assert [each for each in shown.addresses() if not re.match(r"(file|data|blob):", each)] == []


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("width", "height", "is_phone", "is_dark"),
    [(390, 844, True, True), (390, 844, True, False), (1280, 900, False, False)],
    ids=["phone at night", "phone", "desk"],
)
def test_a_browser_draws_the_report(
    browser: Browser, file: Path, width: int, height: int, is_phone: bool, is_dark: bool
) -> None:
    shown = browser.open(file, width=width, height=height, is_phone=is_phone, is_dark=is_dark)
    check(shown, width)
    shown.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert shown.evaluate(TOO_WIDE) == []
    assert shown.evaluate(TOO_SMALL) == []
    assert shown.evaluate(ALERTS_IN_SIGHT)
    # The background follows the reader's choice of light or dark.
    red = shown.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert (red < 60) == is_dark


@pytest.mark.loopback
@pytest.mark.parametrize(("width", "height", "is_phone"), [(390, 844, True), (1280, 800, False)])
def test_the_answers_fit_on_the_first_screen(
    browser: Browser, file: Path, width: int, height: int, is_phone: bool
) -> None:
    shown = browser.open(file, width=width, height=height, is_phone=is_phone)
    assert shown.evaluate("document.querySelector('.lead').getBoundingClientRect().bottom") <= height


@pytest.mark.loopback
def test_times_are_in_the_zone_of_the_reader_too(browser: Browser, file: Path) -> None:
    beside = "document.querySelector('.lead time').nextSibling?.textContent ?? ''"
    shown = browser.open(file, width=390, height=844, is_phone=True, zone="Asia/Kolkata")
    assert shown.evaluate(beside) == "13:43:31 GMT+5:30"
    shown = browser.open(file, width=390, height=844, is_phone=True, zone="Pacific/Auckland")
    assert shown.evaluate(beside).startswith("21:13:31 ")
    shown = browser.open(file, width=390, height=844, is_phone=True, zone="Pacific/Pago_Pago")
    assert shown.evaluate(beside).startswith("2026-11-20 21:13:31 ")
    shown = browser.open(file, width=390, height=844, is_phone=True, zone="UTC")
    assert "13:31" not in shown.evaluate(beside)


@pytest.mark.loopback
@pytest.mark.parametrize("length_s", [22, 1200])
def test_times_do_not_run_into_each_other_on_a_phone(
    browser: Browser, tmp_path: Path, length_s: float
) -> None:
    path = tmp_path / "report.html"
    content = replace(report_content(), until_us=at(length_s))
    path.write_text(render(content, made_at_us=MADE), encoding="utf-8")
    shown = browser.open(path, width=360, height=740, is_phone=True)
    assert shown.evaluate(TIMES) >= 2
    assert shown.evaluate(RUN_TOGETHER) == []


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (7, 150, [10, 20, 50, 100]),
        (10, 99, [10, 20, 50]),
        (0.5, 500, [1, 10, 100]),
        (0.01, 9_000, [0.01, 0.1, 1, 10, 100, 1_000]),
    ],
)
def test_a_scale_of_latencies_has_several_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert plots.ticks(low, high) == pytest.approx(ticks)


@pytest.mark.loopback
def test_each_service_has_its_latencies_behind_its_name(browser: Browser, file: Path) -> None:
    shown = browser.open(file, width=390, height=844, is_phone=True)
    tall = (
        "[...document.querySelectorAll('#latency details')].map(each => "
        "[each.querySelector('summary').textContent, each.offsetHeight > 200])"
    )
    services = [each.service for each in report_content().heats[1:]]
    assert NASTY in services
    assert shown.evaluate(tall) == [[service, False] for service in services]
    shown.evaluate("document.querySelectorAll('#latency details').forEach(each => each.open = true)")
    assert shown.evaluate(tall) == [[service, True] for service in services]
    assert shown.complaints() == []


def test_times_of_several_days_have_their_dates() -> None:
    content: Content = replace(report_content(), until_us=at(3 * 86_400))
    page = render(content, made_at_us=MADE)
    assert "2026-11-21 08:06:42.250" in page
    # Neither the tiles nor what is shown under the pointer have a time that could be of any day.
    assert not re.findall(r"(?<!T)(?<!2026-11-21 )(?<!2026-11-22 )(?<!2026-11-23 )08:06:42", page)
    assert ("Nov 22", "00:00") in [tick[1:] for tick in plots.timeline(content).times]


def _answers(content: Content) -> dict[str, str]:
    """What the first screen answers, by question."""
    page = render(content, made_at_us=MADE)
    rows = re.findall(r"<div><dt>(.*?)</dt><dd[^>]*>(.*?)</dd></div>", page, re.DOTALL)
    return {question: " ".join(" ".join(Elements(answer).texts).split()) for question, answer in rows}


def test_the_first_screen_answers_what_a_person_on_call_asks() -> None:
    content = report_content()
    told = _answers(content)
    assert "<h1>backup was away, primary took over</h1>" in render(content, made_at_us=MADE)
    assert told["When"].startswith("2026-11-21 08:13:31.000 UTC the pair was whole again after 29 s")
    assert told["No answer for"] == "314 ms since 08:13:31.000"
    assert told["Who was hit"].startswith("41 requests waited or failed, of echo (2 clients); 41 sent again")
    # 14 of the 672 that the objective allows, 3 of 6,720: the first is more of a budget.
    assert told["Cost"] == (
        "echo: 2 % of its budget (14 not answered, 3 slow). So far 21 % of its budget is used: kept."
    )
    assert told["What to do"].startswith("Find out what held backup")
    crash = replace(content.incidents[0], recovered_at_us=None)
    told = _answers(replace(content, incidents=Shown([crash]), hits=[]))
    assert "If bstar status does not show both nodes, start what is missing." in told["What to do"]
    assert told["Cost"] == "None of an objective."
    unnoticed = replace(crash, outage_us=None, affected=0)
    stop = replace(unnoticed, kind="stop")
    told = _answers(replace(content, incidents=Shown([unnoticed, stop]), hits=[]))
    assert (told["No answer for"], told["Who was hit"]) == ("0 s", "No request waited or failed.")
    assert "Find out why primary ended" in told["What to do"]
    calm = replace(content, incidents=Shown([stop]), hits=[])
    assert "<h1>No outage, and no node failed.</h1>" in render(calm, made_at_us=MADE)
    assert _answers(calm)["What to do"] == "Nothing. 1 incident"


def test_what_an_outage_cost_beyond_its_budget_is_told_in_times() -> None:
    content = report_content()
    (hit,) = content.hits
    told = _answers(replace(content, hits=[replace(hit, not_answered=1_478)]))["Cost"]
    assert told.startswith("echo: 2.2 times its budget (1,478 not answered, 3 slow).")


def test_every_kind_of_incident_says_what_to_do() -> None:
    assert all(each.to_do.endswith((".", "?")) for each in KINDS.values())


def test_a_broken_promise_is_the_headline() -> None:
    broken = report_content(is_broken=True)
    assert re.search("<h1>Violated: 1 interval .*; 1 request was lost.</h1>", render(broken, made_at_us=MADE))
    assert list(_answers(broken))[:3] == ["First", "Outage", "When"]
    assert next(iter(_answers(report_content()))) == "When"


def test_the_first_screen_names_the_services_that_missed_their_objective() -> None:
    content = report_content()
    assert _answers(content)["Objectives"].startswith("Each service kept its own.")
    first, *others = content.objectives
    assert first.promise is not None
    failing = replace(first, promise=replace(first.promise, is_kept=False))
    missed = replace(content, objectives=Shown([failing, *others]))
    assert _answers(missed)["Objectives"].startswith("Missed: echo.")
    assert "is used: missed." in _answers(missed)["Cost"]
    unknown = Shown(replace(each, promise=None) for each in content.objectives)
    told = _answers(replace(content, objectives=unknown))
    assert told["Objectives"].startswith("None is known.")
    assert told["Cost"] == "echo: no objective is known."


def test_each_kind_of_incident_has_a_mark_of_its_own() -> None:
    marks = [each.mark for each in KINDS.values()]
    assert len(set(marks)) == len(KINDS)
    content = report_content()
    first = content.incidents[0]
    content = replace(content, incidents=Shown(replace(first, kind=kind) for kind in KINDS))
    assert [sign for _, sign, _ in plots.timeline(content).panels[0].marks] == marks
    text = " ".join(Elements(render(content, made_at_us=MADE)).texts)
    assert all(f"{each.mark} {kind}" in text for kind, each in KINDS.items())
