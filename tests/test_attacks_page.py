"""The threat model of docs/security.md and the attacks that are made agree."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.attacks import ATTACKS
from chaos.keyed import commands, parse

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text()


def test_the_attacks_that_are_made_are_those_that_the_threat_model_marks() -> None:
    (section,) = re.findall(r"^## What it protects against\n(.*?)^##", PAGE, re.DOTALL | re.MULTILINE)
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert cells[0] == ["who", "tries to", "what stops it"]
    marked = {(who, tries_to) for who, tries_to, stop in cells if stop.endswith("†")}
    assert marked == {(attack.who, attack.tries_to) for attack in ATTACKS}


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
