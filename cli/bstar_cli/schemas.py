"""JSON schemas of services: one written on a line for people, and a body checked against one."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bstar.base.printable import counted, printable
from bstar.base.undecodable import UNDECODABLE
from bstar.wire.description import Offer, Schema

_OUTLINE_CHARS_MAX: Final = 2_000
_WHY_CHARS_MAX: Final = 300
_MISFITS_SHOWN_MAX: Final = 3
# A model in a model in a model; a type may contain itself.
_DEPTH_MAX: Final = 4


class UncheckableError(Exception):
    """The body cannot be checked; the text says why."""


def versions_text(versions: dict[str, int]) -> str:
    """The versions of a service; of several with how many workers each has."""
    if len(versions) < 2:
        return next(iter(versions), "-")
    return ", ".join(f"{version or 'none'} ({count})" for version, count in versions.items())


def mixture(versions: dict[str, int]) -> str:
    """What is said of a service with several versions; empty for one."""
    if len(versions) < 2:
        return ""
    parts = (f"{version or 'none'} ({counted(count, 'worker')})" for version, count in versions.items())
    return f"{len(versions)} versions at once: {', '.join(parts)}"


# --- for people ---------------------------------------------------------------------------------------------


def outline(schema: Schema) -> str:
    """A schema on one line: ``Ask {sku: integer, currency: string = "EUR"}``."""
    return printable(_outline(schema, schema.get("$defs"), _DEPTH_MAX), _OUTLINE_CHARS_MAX)


def _outline(schema: Any, types: Any, depth: int) -> str:
    if not isinstance(schema, dict):
        return "anything"
    if isinstance(name := schema.get("$ref"), str):
        name = name.rpartition("/")[2]
        target = types.get(name) if isinstance(types, dict) else None
        return name if target is None or not depth else _outline(target, types, depth - 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(word), list):
            return " | ".join(_outline(each, types, depth) for each in choices)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(map(_literal, values if isinstance(values, list) else [values]))
    if isinstance(fields := schema.get("properties"), dict):
        return _fields(schema, fields, types, depth)
    kind = schema.get("type", "anything")
    if kind == "array":
        items = schema.get("prefixItems", schema.get("items"))
        inner = ", ".join(
            _outline(each, types, depth) for each in (items if isinstance(items, list) else [items])
        )
        return f"[{inner}]"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"{{…: {_outline(values, types, depth)}}}"
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _fields(schema: Schema, fields: dict[str, Any], types: Any, depth: int) -> str:
    title = f"{schema['title']} " if isinstance(schema.get("title"), str) else ""
    required = schema.get("required", [])
    parts = []
    for name, field in fields.items():
        default = field.get("default") if isinstance(field, dict) else None
        is_needed = isinstance(required, list) and name in required
        end = "" if is_needed else f" = {_literal(default)}" if default is not None else ""
        parts.append(f"{name}{'' if is_needed or end else '?'}: {_outline(field, types, depth)}{end}")
    return f"{title}{{{', '.join(parts)}}}"


def _literal(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- for bodies ---------------------------------------------------------------------------------------------


def misfits(offers: Sequence[Offer], frames: Sequence[bytes]) -> list[tuple[Offer, str | None]]:
    """For each description with a schema why workers of it would decline this body; None if it fits.

    UncheckableError if that cannot be known.
    """
    described = [(offer, offer.request) for offer in offers if offer.request is not None]
    if len(frames) != 1:
        text = f"it has {len(frames)} frames, and a JSON body is one"
        return [(offer, text) for offer, _ in described]
    if not described:
        return []
    if not frames[0]:
        return [(offer, "it is empty") for offer, _ in described]
    try:
        value = msgspec.json.decode(frames[0])
    except UNDECODABLE as error:
        return [(offer, f"it is no JSON: {error}") for offer, _ in described]
    return [(offer, _misfit(value, schema)) for offer, schema in described]


def _misfit(value: object, schema: Schema) -> str | None:
    try:
        from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415 - an extra, and slow to load
        from jsonschema.exceptions import best_match  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UncheckableError(
            f"{error.name} is not installed: pip install '.[schema]' in a clone of bstar"
        ) from error
    try:
        Draft202012Validator.check_schema(schema)
        # Its own registry: without one a reference to an address would be fetched from there.
        found = list(Draft202012Validator(schema, registry=Registry()).iter_errors(value))
    except (SchemaError, Unresolvable, RecursionError) as error:
        raise UncheckableError(
            f"its schema cannot be used: {printable(str(error), _WHY_CHARS_MAX)}"
        ) from error
    if not found:
        return None
    texts = []
    for each in found[:_MISFITS_SHOWN_MAX]:
        inmost = best_match([each]) or each
        place = inmost.json_path.removeprefix("$").removeprefix(".")
        texts.append(printable(f"{place}: {inmost.message}" if place else inmost.message, _WHY_CHARS_MAX))
    more = len(found) - len(texts)
    return "; ".join([*texts, *([f"and {more} more"] if more else [])])
