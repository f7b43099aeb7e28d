"""Takes the usual values of options without pydantic.

Typer lets pydantic convert each value, even ``None``. To import it and to build its validators takes a
quarter of the CPU of a node's start. A text, a number in its range and a path need no validator.
Any other value goes to Typer, which also words each refusal.
"""

import os
import re
from collections.abc import Callable
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

_NUMBER = {int: re.compile(r"[0-9]{1,18}"), float: re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")}
# Settings of an option that ask for more.
_SPECIAL = ("parser", "clamp", "exists", "writable", "resolve_path", "allow_dash", "path_type")
UNUSUAL: Any = object()
"""The value needs Typer's own conversion."""


@cache
def coerce_quickly() -> None:
    """Let the parameters of all commands take usual values at once."""
    for kind in (TyperArgument, TyperOption):
        # A Typer without this method needs no pydantic.
        if build := getattr(kind, "get_runtime_param", None):
            kind.get_runtime_param = partialmethod(_Coercion, build)  # type: ignore[assignment]


class _Coercion:
    """Stands for the ``RuntimeParam`` that ``build`` makes of a parameter."""

    def __init__(self, parameter: Any, build: Callable[[Any], Any]) -> None:
        self._build = partial(build, parameter)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """As Typer's."""
        made = usual(value, param)
        return self._build().coerce(value, param=param, ctx=ctx) if made is UNUSUAL else made


def usual(value: Any, parameter: Any) -> Any:
    """What Typer makes of a value; UNUSUAL where it must be asked."""
    kind, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    has_many = parameter.multiple or parameter.nargs == -1
    if value is None:
        return () if has_many else None
    if any(getattr(info, name) for name in _SPECIAL) or not (info.case_sensitive and info.readable):
        return UNUSUAL
    if not has_many:
        return _one(value, kind, info)
    if get_origin(kind) is not list or not isinstance(value, list | tuple):
        return UNUSUAL
    values = [_one(each, get_args(kind)[0], info) for each in value]
    return UNUSUAL if UNUSUAL in values else values


def _one(value: Any, kind: Any, info: Any) -> Any:
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else UNUSUAL
    if kind is Path and isinstance(value, str):
        path = Path(value)
        return path if os.access(path, os.R_OK) or not os.path.lexists(path) else UNUSUAL
    if kind in _NUMBER and isinstance(value, str) and _NUMBER[kind].fullmatch(value):
        value = kind(value)
    if type(value) is not kind or kind not in (str, int, float):
        return UNUSUAL
    is_too_low = info.min is not None and value < info.min
    return UNUSUAL if is_too_low or (info.max is not None and value > info.max) else value
