"""The kinds of records, for docs/journal.md, from ``bstar.records`` and its docstrings."""

import inspect
import re
from typing import Literal, Union, get_args, get_origin

import msgspec

from bstar.records import KINDS, Base
from pages.markdown import wrapped

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
    return wrapped("\n".join(lines).rstrip())


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
