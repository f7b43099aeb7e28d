"""The catalogue: what each mutant changes, which tests judge it, and what is wrong with an entry.

[[mutant]]
name = "a queue has no limit"                    # what the mutant does wrong; unique
file = "broker/bstar_broker/core/queues.py"
old = "if self.length >= limit:"                 # occurs exactly once in the file
new = "if False:"
tests = ["tests/test_queues.py"]                 # files, or file::test; pytest gets them as they are
equivalent = "why no test can notice it"         # only where that is so
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
_FOLDER = Path(__file__).parent


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wrong change. ``old`` becomes ``new`` in ``file``; then at least one of ``tests`` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def text(self, original: str) -> str:
        """The file's text with the mutant in it."""
        return original.replace(self.old, self.new)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: list[Mutant]


def read_catalogue(folder: Path = _FOLDER) -> list[Mutant]:
    """All mutants, in the order of the files' names. Raises ``msgspec.ValidationError`` for a bad entry."""
    return [
        mutant
        for path in sorted(folder.glob("*.toml"))
        for mutant in msgspec.convert(tomllib.loads(path.read_text()), _File).mutant
    ]


CATALOGUE = read_catalogue()


def faults_of(mutant: Mutant, root: Path = ROOT) -> Iterator[str]:
    """Why this entry cannot be run, or proves nothing."""
    path = root / mutant.file
    if not path.is_file():
        yield f"{mutant.file} does not exist"
        return
    found = path.read_text().count(mutant.old)
    if found != 1:
        yield f"old occurs {found} times in {mutant.file}, not once: {mutant.old!r}"
    if mutant.old == mutant.new:
        yield "new equals old"
    if not mutant.tests:
        yield "no test judges it"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        source = root / file
        if not source.is_file():
            yield f"{file} does not exist"
        elif name and f"def {name.partition('[')[0]}(" not in source.read_text():
            yield f"{file} has no test {name}"
