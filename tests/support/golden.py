"""Scripts in a file of tests/golden: what is done stands after ``$``, below it what is seen.

People read them. After a change that is meant to alter what is seen, run the tests of the file with
BSTAR_WRITE_GOLDEN=1 in one process, read the difference line by line, and commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
IS_WRITTEN = bool(os.environ.get("BSTAR_WRITE_GOLDEN"))


class Scripts:
    """The scripts of one file, by title."""

    def __init__(self, name: str) -> None:
        self.path = GOLDEN / name
        self._head, *scripts = self.path.read_text("utf-8").split("\n## ")
        self._scripts = {title: lines for title, _, lines in (each.partition("\n") for each in scripts)}
        self.titles = list(self._scripts)

    def check(self, title: str, play: Callable[[list[str]], list[str]]) -> None:
        """What ``play`` makes of the lines that are done is the script; or becomes it."""
        script = self._scripts[title].strip("\n").split("\n")
        played = play([line for line in script if line.startswith("$ ")])
        assert IS_WRITTEN or played == script
        self._scripts[title] = "\n".join(played) + "\n"
        if IS_WRITTEN:
            text = "".join(f"\n## {title}\n{lines}" for title, lines in self._scripts.items())
            self.path.write_text(self._head + text, "utf-8")
