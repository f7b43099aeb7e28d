"""``docs/interface.txt``: every name that docs/stability.md promises, one a line.

So a change of one shows in a diff. Annotations are left out: Python versions print them differently.
"""

import ast
import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bstar.settings.fields import ENTRIES, FIELDS
from bstar_cli import exits
from bstar_cli.main import app

# What applications import. Everything else is ours to change.
PACKAGES = (
    "bstar",
    "bstar.security",
    "bstar.settings",
    "bstar_client",
    "bstar_client.emq",
    "bstar_client.pzq",
    "bstar_testing",
    "bstar_pipeline",
)
_PLAIN = (type(None), bool, int, float, str, bytes)
_OWN = ("bstar", "bstar_")
_ROOT = Path(__file__).parent.parent.parent


def generate() -> str:
    """The whole file."""
    lines = [
        "# Written by `make docs`. docs/stability.md says what is promised of these names.",
        "",
        "# Python",
        *(line for package in PACKAGES for line in _package(package)),
        "",
        "# Commands",
        *_commands(typer.main.get_command(app), "bstar"),
        "",
        "# Exit statuses",
        *sorted(f"exit {name} {value}" for name, value in vars(exits).items() if isinstance(value, int)),
        "",
        "# Configuration",
        *sorted(f"key {path}: {field.expected}" for path, field in FIELDS.items()),
        *sorted(
            f"key {path}.PATTERN.{name}: {member.expected}"
            for path, members in ENTRIES.items()
            for name, member in members.items()
        ),
        "",
        "# Metrics",
        *(f"metric {name}" for name in sorted(_metrics())),
    ]
    return "\n".join(lines) + "\n"


def _package(name: str) -> Iterator[str]:
    package = importlib.import_module(name)
    for public in sorted(package.__all__):
        yield from _thing(f"{name}.{public}", getattr(package, public))


def _thing(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        if issubclass(thing, enum.Enum):
            yield from (f"{name}.{member.name}" for member in thing)
            return
        yield f"{name}{_signature(thing)}"
        for attribute, value in sorted(_members(thing).items()):
            if isinstance(value, property):
                yield f"{name}.{attribute}"
            elif callable(value) or isinstance(value, classmethod | staticmethod):
                yield f"{name}.{attribute}{_signature(getattr(thing, attribute))}"
    else:
        yield f"{name}{_signature(thing)}" if inspect.isfunction(thing) else name


def _members(thing: type) -> dict[str, Any]:
    """The public attributes of the class and of those bases that are ours."""
    found: dict[str, Any] = {}
    for base in reversed(thing.__mro__):
        if base.__module__.partition(".")[0].startswith(_OWN):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return found


def _signature(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    shown = [
        parameter.replace(annotation=parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))


def _default(value: Any) -> Any:
    """The default, or an ellipsis for one whose text is different from run to run."""
    return value if value is inspect.Parameter.empty or type(value) in _PLAIN else ...


def _commands(command: Any, name: str) -> Iterator[str]:
    # Any: Typer brings a Click of its own, whose types it does not publish.
    if hasattr(command, "commands"):
        for each in sorted(command.commands):
            yield from _commands(command.commands[each], f"{name} {each}")
        return
    arguments = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    options = [
        "/".join((*each.opts, *each.secondary_opts))
        for each in command.params
        if each.param_type_name == "option"
    ]
    yield " ".join((name, *arguments, *sorted(options)))


def _metrics() -> set[str]:
    """The names that the modules of metrics hold."""
    names = set()
    for folder in ("broker", "client"):
        for path in (_ROOT / folder).rglob("metrics*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and node.value.startswith("bstar_")
                ):
                    names.add(node.value)
    return {name for name in names if name.replace("_", "").isalnum() and name.islower()}
