"""docs/patterns.md says the same things of each pattern in its first table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "patterns.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
PATTERNS = sorted(set(re.findall(r"^\| \[[^\]]*\]\(#([\w-]+)\)", PAGE, re.MULTILINE)))
POINTS = {
    "what to prefer": r"prefer",
    "configuration or program": r"```(python|yaml)\n|\*\*configuration\*\*|\]\([\w./-]+\.(md|py)",
    "a failover": r"failover|dies|killed",
    "what is not supported": r"not (supported|served)",
}
LINES_MAX = 15


def section(pattern: str) -> str:
    (found,) = [text for name, text in SECTIONS.items() if name.lower().replace(" ", "-") == pattern]
    return str(found)


def missing(text: str) -> list[str]:
    words = " ".join(text.split())
    found = {name for name, point in POINTS.items() if re.search(point, text + words, re.IGNORECASE)}
    return [name for name in POINTS if name not in found]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_has_all_points(pattern: str) -> None:
    text = section(pattern)
    assert text.lstrip()[0].isalpha() or text.lstrip()[0] == "`"  # what it is for
    assert not missing(text)


def test_a_missing_point_is_found() -> None:
    assert missing("A queue.\n\n**Failover**: none.") == [name for name in POINTS if name != "a failover"]


def test_programs_are_short() -> None:
    programs = re.findall(r"```python\n(# \w+\.py\n.*?)```", PAGE, re.DOTALL)
    assert programs
    for program in programs:
        name, *lines = [line for line in program.splitlines() if line.strip()]
        assert len(lines) <= LINES_MAX, name
