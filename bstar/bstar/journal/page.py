"""Writes the kinds of records into the documentation, from ``bstar.records`` itself.

    python -m bstar.journal.page                          print them
    python -m bstar.journal.page --write docs/journal.md  put them between the two markers of that file
    python -m bstar.journal.page --check docs/journal.md  fail if that would change the file

What a line says is told once, by the docstrings of the structs that lines are made of and read with.
"""

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

import msgspec

from bstar.records import KINDS, Base

__all__ = ["generate", "main", "replace"]

BEGIN = "<!-- begin of the generated part: python -m bstar.journal.page -->"
END = "<!-- end of the generated part -->"
_WORDS: dict[object, str] = {int: "integer", float: "number", str: "text", bool: "true or false"}


def generate() -> str:
    """The Markdown between the markers."""
    common = {field.name for field in msgspec.structs.fields(Base)}
    lines = ["| field of every record | |", "|---|---|", "| `kind` | one of those below |"]
    lines += [f"| `{field.name}` | {_type(field.type)} |" for field in msgspec.structs.fields(Base)]
    lines += ["", f"{_prose(Base)}", ""]
    for word, kind in KINDS.items():
        own = [field for field in msgspec.structs.fields(kind) if field.name not in common]
        lines += [f"**`{word}`** – {_prose(kind)}", ""]
        if own:
            lines += ["Fields: " + "; ".join(_field(field) for field in own) + ".", ""]
    return "\n".join(lines).rstrip()


def _prose(kind: type[Base]) -> str:
    text = inspect.getdoc(kind) or ""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def _field(field: msgspec.structs.FieldInfo) -> str:
    text = f"`{field.name}` {_type(field.type)}"
    if field.required:
        return text
    default = msgspec.json.encode(field.default).decode()
    return f"{text} (left out if {default})"


def _type(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{word}"' for word in get_args(annotation))
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members and get_origin(annotation) in (Union, type(int | None)):
        return " or ".join(_WORDS[member] for member in members)
    return _WORDS[annotation]


def replace(document: str) -> str:
    """``document`` with the part between the markers written anew; ValueError if it lacks them."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the two markers are missing: {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{generate()}\n\n{END}{tail}"


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m bstar.journal.page", description=__doc__.split("\n", maxsplit=1)[0]
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", metavar="FILE", type=Path)
    action.add_argument("--check", metavar="FILE", type=Path)
    asked = parser.parse_args(arguments)
    path: Path | None = asked.write or asked.check
    if path is None:
        sys.stdout.write(generate() + "\n")
        return 0
    before = path.read_text(encoding="utf-8")
    after = replace(before)
    if before == after:
        return 0
    if asked.check:
        sys.stderr.write(f"{path} is not what bstar.records says: run make docs\n")
        return 1
    path.write_text(after, encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
