"""Documents with a part that a module writes: between two markers, printed, written or checked.

The module's command is ``python -m MODULE``, with ``--write FILE`` or ``--check FILE``.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

_WIDTH = 100
END = "<!-- end of the generated part -->"


def begin_of(module: str) -> str:
    """The marker before the part that ``python -m MODULE`` writes."""
    return f"<!-- begin of the generated part: python -m {module} -->"


def wrapped(markdown: str) -> str:
    """Each paragraph and bullet, which is one line, at 100 columns; tables, headings and code stay."""
    return "\n".join(
        line
        if line.startswith(("|", "#", "<", " ", "`" * 3))
        else textwrap.fill(
            line,
            _WIDTH,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in markdown.split("\n")
    )


def replace(document: str, module: str, part: str) -> str:
    """``document`` with ``part`` between the markers; ValueError if it lacks them."""
    marker = begin_of(module)
    head, begin, rest = document.partition(marker)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the two markers are missing: {marker} and {END}")
    return f"{head}{marker}\n\n{part}\n\n{END}{tail}"


def run(arguments: list[str] | None, module: str, about: str, generate: Callable[[], str]) -> int:
    """The module's command; the exit status is 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.split("\n", maxsplit=1)[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", metavar="FILE", type=Path)
    action.add_argument("--check", metavar="FILE", type=Path)
    asked = parser.parse_args(arguments)
    path: Path | None = asked.write or asked.check
    if path is None:
        sys.stdout.write(generate() + "\n")
        return 0
    before = path.read_text(encoding="utf-8")
    after = replace(before, module, generate())
    if before == after:
        return 0
    if asked.check:
        command = f"python -m {module} --write {path}"
        sys.stderr.write(f"{path} is not what the code says: run make docs, or {command}\n")
        return 1
    path.write_text(after, encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")
    return 0
