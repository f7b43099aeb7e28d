"""Writes the kinds of records into the documentation, from ``bstar.records`` itself.

    python -m bstar.journal.page                          print them
    python -m bstar.journal.page --write docs/journal.md  put them between the two markers of that file
    python -m bstar.journal.page --check docs/journal.md  fail if that would change the file

What a line says is told once, by the docstrings of the structs that lines are made of and read with.
"""

import inspect
import re
import sys
from typing import Literal, Union, get_args, get_origin

import msgspec

from bstar import generated
from bstar.records import KINDS, Base

_MODULE = "bstar.journal.page"
BEGIN, END = generated.begin_of(_MODULE), generated.END
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
    return generated.wrapped("\n".join(lines).rstrip())


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
    return generated.replace(document, _MODULE, generate())


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 if ``--check`` finds a difference."""
    return generated.run(arguments, _MODULE, __doc__ or "", generate)


if __name__ == "__main__":
    sys.exit(main())
