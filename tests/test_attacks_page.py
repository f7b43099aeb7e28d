"""The threat model of docs/security.md and the attacks that are made agree."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.attacks import ATTACKS
from chaos.keyed import commands, parse

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text()


def rows(heading: str) -> list[tuple[str, str]]:
    """Who tries to do what, in the table under this heading."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)^##", PAGE, re.DOTALL | re.MULTILINE)
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert cells[0][:2] == ["who", "tries to"]
    return [(who, tries_to) for who, tries_to, *_ in cells[1:]]


def test_each_attack_is_a_row_of_the_threat_model() -> None:
    made = {(attack.who, attack.tries_to) for attack in ATTACKS}
    assert made <= set(rows("What it protects against"))


def test_the_page_shows_what_became_of_each_attack() -> None:
    assert rows("Each attack, tried") == [(attack.who, attack.tries_to) for attack in ATTACKS]


def test_a_pair_takes_five_commands() -> None:
    assert [words[:2] for words, _ in parse(commands()["pair"])] == [
        *[["bstar", "keys"]] * 3,
        *[["bstar", "serve"]] * 2,
    ]


def test_variables_of_the_page_belong_to_the_commands_that_follow() -> None:
    lines = ["export A=1 B=2", "# nothing", "", "C=3 bstar call x  # ask", "bstar status"]
    assert list(parse(lines)) == [
        (["bstar", "call", "x"], {"A": "1", "B": "2", "C": "3"}),
        (["bstar", "status"], {"A": "1", "B": "2"}),
    ]
