"""What a worker says of its service when it registers: version, description, the schemas of typed bodies.

The schemas are JSON Schema (2020-12), made by msgspec of the handler's annotations; a model of pydantic makes
its own. They describe what a decoder of the worker takes as JSON.
"""

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from bstar.base.printable import printable
from bstar.errors import ConfigurationError
from bstar.wire.description import Description, Schema, encode_description
from bstar.wire.limits import DESCRIPTION_BYTES_MAX, DESCRIPTION_CHARS_MAX, SERVICE_VERSION_CHARS_MAX
from bstar_client.arguments.codecs import is_model, name_of

_log = logging.getLogger("bstar_client")

# The attribute of a function of a Request that has the types of its bodies: ``request``, ``reply``, ``part``.
KINDS = "bstar_kinds"


def check_version(version: object) -> str:
    """The version of a service: a short word. TypeError or ConfigurationError for anything else."""
    if not isinstance(version, str):
        raise TypeError(f'version is a text, as "1.4", not {type(version).__name__}')
    if len(version) > SERVICE_VERSION_CHARS_MAX or not version.isprintable():
        raise ConfigurationError(
            f"version has at most {SERVICE_VERSION_CHARS_MAX} printable characters, not {version!r}"
        )
    return version


def check_description(description: object) -> str | None:
    """The description of a service: one line, cut if it is long. TypeError if it is no text."""
    if description is None:
        return None
    if not isinstance(description, str):
        raise TypeError(f"description is a text or None, not {type(description).__name__}")
    return printable(" ".join(description.split()), DESCRIPTION_CHARS_MAX)


def first_line(handler: Callable[..., object]) -> str:
    """The first line of a handler's docstring, or of its class if it is an object."""
    while isinstance(handler, partial):
        handler = handler.func
    text = inspect.getdoc(handler) or ""
    return printable(text.partition("\n")[0], DESCRIPTION_CHARS_MAX)


def frame_of(service: bytes, version: str, description: str, handler: Callable[..., object]) -> bytes:
    """The frame that describes a service; ``handler`` is what ``typed.bind`` made."""
    kinds: dict[str, Any] = getattr(handler, KINDS, {})
    name = printable(service)
    schemas = {what: schema for what, kind in kinds.items() if (schema := _schema_of(kind, what, name))}
    frame = encode_description(Description(version, description, **schemas))
    if len(frame) <= DESCRIPTION_BYTES_MAX:
        return frame
    _log.warning(
        'service "%s": its schemas are not shown, because they have %d bytes, and %d are the most',
        name,
        len(frame),
        DESCRIPTION_BYTES_MAX,
    )
    return encode_description(Description(version, description))


def _schema_of(kind: Any, what: str, service: str) -> Schema | None:
    """The schema of a type; None, and a warning, if there is none."""
    import msgspec  # noqa: PLC0415 - its part for schemas is loaded for typed handlers alone

    inner: dict[str, Any] = {}

    def of_custom(cls: type) -> Schema:
        # Other classes that are models by their methods have no schema: anything may fit.
        if not is_model(cls) or not hasattr(cls, "model_json_schema"):
            return {}
        schema: Schema = cls.model_json_schema(
            ref_template=f"#/$defs/{cls.__name__}.{{model}}",
            mode="validation" if what == "request" else "serialization",
        )
        inner.update({f"{cls.__name__}.{name}": each for name, each in schema.pop("$defs", {}).items()})
        return schema

    try:
        schema = msgspec.json.schema(kind, schema_hook=of_custom)
    except Exception as error:  # noqa: BLE001 - a model's own code may raise anything
        _log.warning('service "%s": %s has no JSON schema: %s', service, name_of(kind), error)
        return None
    if inner:
        schema["$defs"] = {**schema.get("$defs", {}), **inner}
    _let_decimals_be_numbers(schema)
    return schema


def _let_decimals_be_numbers(schema: object) -> None:
    """msgspec says that a Decimal is a string, and decodes numbers, too."""
    if isinstance(schema, dict):
        if schema.get("format") == "decimal" and schema.get("type") == "string":
            schema["type"] = ["string", "number"]
        for each in schema.values():
            _let_decimals_be_numbers(each)
    elif isinstance(schema, list):
        for each in schema:
            _let_decimals_be_numbers(each)
