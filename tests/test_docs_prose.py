"""The pages read well: prose is wrapped, and every page opens with a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIDTH = 100
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
        ROOT / "chaos-tests" / "README.md",
        *(ROOT / "examples").rglob("*.md"),
    ]
)
ROOMS = [
    ROOT / room for room in ("bstar", "broker", "client", "cli", "pipeline", "examples", "configs", "deploy")
]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines that are neither code nor a row of a table."""
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and not line.startswith("    ") and not line.lstrip().startswith("|"):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    # A link cannot be broken: it may stand alone on a longer line.
    long = [
        f"{number}: {line}"
        for number, line in prose(page.read_text("utf-8"))
        if len(line) > WIDTH and len(line.split()) > 2
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_opens_with_a_sentence(page: Path) -> None:
    lines = [line for line in page.read_text("utf-8").splitlines() if line and not line.startswith("<!--")]
    heading, first = lines[:2]
    assert heading.startswith("# ")
    assert first[0].isalpha() or first[0] in "`*["


def test_a_long_line_is_found() -> None:
    text = "a " * 60 + "\n\n    " + "b " * 60 + "\n\n| " + "c " * 60 + "|\n\n```\n" + "d " * 60 + "\n```\n"
    assert [number for number, line in prose(text) if len(line) > WIDTH] == [1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_row_of_a_table_stands_on_one_line_and_has_all_cells(page: Path) -> None:
    assert not broken_tables(page.read_text("utf-8"))


def broken_tables(text: str) -> list[str]:
    """Lines within a table that are no row, and rows with more or fewer cells than the first."""
    broken, cells = [], 0
    for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines():
        row = line.strip()
        is_row = row.startswith("|") and not line.startswith("    ")
        count = row.replace("\\|", "").count("|")
        if (is_row and (not row.endswith("|") or count != (cells or count))) or (
            cells and row and not is_row
        ):
            broken.append(line)
        cells = count if is_row else 0
    return broken


def test_a_wrapped_table_is_found() -> None:
    assert not broken_tables("a\n\n  | b | c |\n  |---|---|\n  | `d \\| e` | f |\n\ng\n")
    assert broken_tables("| b | c | |---|---| |\n  d | e |\n") == ["  d | e |"]
    assert broken_tables("| b | c |\n|---|---|\n| d |\n") == ["| d |"]


def test_no_page_installs_from_an_index_what_is_not_published() -> None:
    told = [
        path for room in ROOMS for path in room.rglob("*") if path.suffix in {".py", ".md", ".yaml", ".html"}
    ]
    named = [
        path for path in (*PAGES, *told) if re.search(r"pip install +['\"]?bstar", path.read_text("utf-8"))
    ]
    assert not named


def anchors(page: Path) -> set[str]:
    """What a link to a heading of this page may name, as the usual renderers form it."""
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lower())).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    broken = [
        f"{link}#{heading}"
        for link, heading in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", page.read_text("utf-8"))
        if heading not in anchors(page.parent / link if link else page)
    ]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]
