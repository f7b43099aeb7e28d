"""Scripts in a file of tests/golden: what is done stands after ``$``, below it what is seen.

People read them. After a change that is meant to alter what is seen, run the tests of the file with
BSTAR_WRITE_GOLDEN=1 in one process, read the difference line by line, and commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
# In a comment of a script, which is marked with it.
REQUIREMENT = re.compile(r"(?<=[ ,])[A-Z]{2,4}\d?-[A-Z]-\d\d(?=[,. :])")
IS_WRITTEN = bool(os.environ.get("BSTAR_WRITE_GOLDEN"))


class Scripts:
    """The scripts of one file, by title."""

    def __init__(self, name: str) -> None:
        self.path = GOLDEN / name
        self._head, *scripts = self.path.read_text("utf-8").split("\n## ")
        self._scripts = {title: lines for title, _, lines in (each.partition("\n") for each in scripts)}
        self.titles = list(self._scripts)

    def params(self) -> list[Any]:
        """The titles, each marked with the requirements that its comments name."""
        found = ((title, set(REQUIREMENT.findall(lines))) for title, lines in self._scripts.items())
        return [
            pytest.param(title, marks=[pytest.mark.requirement(name) for name in sorted(names)], id=title)
            for title, names in found
        ]

    def check(self, title: str, play: Callable[[list[str]], list[str]]) -> None:
        """What ``play`` makes of the lines that are done is the script; or becomes it."""
        script = self._scripts[title].strip("\n").split("\n")
        played = play([line for line in script if line.startswith("$ ")])
        assert IS_WRITTEN or played == script
        self._scripts[title] = "\n".join(played) + "\n"
        if IS_WRITTEN:
            text = "".join(f"\n## {title}\n{lines}" for title, lines in self._scripts.items())
            self.path.write_text(self._head + text, "utf-8")

    def play(self, title: str, stage: Stage) -> None:
        """The same, line by line on a stage."""
        self.check(title, lambda lines: [seen for line in lines for seen in (line, *stage.run(line[2:]))])


class Stage(Protocol):
    """What carries a line of a script out."""

    def run(self, line: str) -> list[str]:
        """Carry the line out; what is seen."""
