"""The kinds of records, for docs/journal.md, from ``bstar.records`` and its docstrings."""

import inspect
import re
from typing import Literal, Union, get_args, get_origin

import msgspec

from bstar.records import KINDS, Base
from pages.markdown import wrapped

_WORDS: dict[object, str] = {int: ":int", float: ":float", str: "", bool: ":bool"}


def generate() -> str:
    """The Markdown between the markers."""
    common = {field.name for field in msgspec.structs.fields(Base)}
    text = _prose(Base)
    fields = [_field(field, text) for field in msgspec.structs.fields(Base)]
    lines = [f"{text} `kind` is one of those below. {_list(fields)}", ""]
    for word, kind in KINDS.items():
        text = _prose(kind)
        own = [_field(field, text) for field in msgspec.structs.fields(kind) if field.name not in common]
        lines += [f"**`{word}`** – {text} {_list(own)}".rstrip(), ""]
    return wrapped("\n".join(lines).rstrip())


def _list(fields: list[str]) -> str:
    return f"*Fields:* {', '.join(fields)}." if fields else ""


def _prose(kind: type[Base]) -> str:
    text = inspect.getdoc(kind) or ""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def _field(field: msgspec.structs.FieldInfo, text: str) -> str:
    default = "" if field.required else f"={msgspec.json.encode(field.default).decode()}"
    return f"`{field.name}{_type(field.type, text)}{default}`"


def _type(annotation: object, text: str) -> str:
    """Of a Literal the values that ``text`` does not name."""
    if get_origin(annotation) is Literal:
        words = [f'"{word}"' for word in get_args(annotation)]
        return "" if all(word in text for word in words) else f":{'/'.join(words)}"
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members and get_origin(annotation) in (Union, type(int | None)):
        return "/".join(_WORDS[member] for member in members)
    return _WORDS[annotation]
