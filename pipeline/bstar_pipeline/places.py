"""Paths and patterns as Spark spells them, and what they name on this machine without Spark.

``file:/a b`` and ``/a b`` name the same directory, and ``%20`` stands for itself.
"""

import glob
import re
from collections.abc import Iterator

from bstar.errors import ConfigurationError
from bstar_pipeline.commits import folder_named

_SPECIAL = frozenset("*?[{\\")
# Innermost, so that choices may stand within choices.
_CHOICE = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}")


def literal(path: str) -> str:
    """A path that names this file alone, also if a pattern would have the same letters."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def is_pattern(path: str) -> bool:
    """Whether it may name several places."""
    return not _SPECIAL.isdisjoint(path)


def matching(path: str) -> list[str]:
    """The files and directories that a path or pattern names, as Hadoop's patterns do.

    ``*`` and ``?`` stay within a name, ``[a-c]`` and ``[^a]`` are letters, ``{a,b}`` either of these, and a
    backslash takes the next letter as it is. Raises ConfigurationError if it is about another machine.
    """
    place = folder_named(path) if path else None
    if place is None:
        why = f"{path} is elsewhere: the local engine reads folders of this machine"
        raise ConfigurationError(why if path else "an empty path names no file")
    if not is_pattern(path):
        return [str(place)]
    found = (sorted(glob.glob(one, include_hidden=True)) for one in _alternatives(str(place)))  # noqa: PTH207
    return [path for paths in found for path in paths]


def _alternatives(pattern: str) -> Iterator[str]:
    """The pattern once for each choice in its braces, which may hold slashes, as Python spells patterns."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        # Here "not" is another letter, and a letter is taken as it is in brackets.
        yield re.sub(r"\\(.)", lambda match: glob.escape(match[1]), pattern.replace("[^", "[!"))
        return
    for one in choice[1].split(","):
        yield from _alternatives(pattern[: choice.start()] + one + pattern[choice.end() :])
