"""The services of the pair as an OpenAPI document: a path for each, with schemas where workers tell them."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

import bstar
from bstar.errors import CallError
from bstar.security.principals import Principal
from bstar.wire.description import NO_DESCRIPTION, Description, Offer, Schema
from bstar.wire.mmi import OK, Service
from bstar_client.aio.client import AsyncHAClient
from bstar_client.asgi.failures import STATUSES
from bstar_client.asgi.settings import FrontSettings
from bstar_client.calls.requests import read_json
from bstar_client.core.calls import CallFailed

_WINDOW: Final = 64
_ANY: Final[dict[str, Any]] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_DEFS: Final = "#/$defs/"
_NAME: Final = re.compile(r'"#/\$defs/([^"/]+)')
_COMPONENTS: Final = "#/components/schemas/"
# A worker's schema may be nested as deep as JSON goes. Below this level anything fits.
_DEPTH_MAX: Final = 100
_ERROR: Final = {
    "type": "object",
    "required": ["code", "text", "may_have_executed"],
    "properties": {
        "code": {"type": "string", "enum": list(STATUSES)},
        "text": {"type": "string"},
        "may_have_executed": {"type": "boolean"},
    },
}


async def document_of(
    client: AsyncHAClient, principal: Principal | None, settings: FrontSettings, *, has_tokens: bool
) -> dict[str, Any]:
    """The document of the services that the principal may call; of all without principals."""
    listed = sorted(str(each["service"]) for each in await client.services(timeout=settings.timeout_s))
    names = [name for name in listed if principal is None or principal.calls.match(name.encode())]
    told = await _told(client, names, settings.timeout_s)
    schemas = _Schemas(told)
    components: dict[str, Any] = {"schemas": schemas.components}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Services of a bstar pair", "version": bstar.__version__},
        "paths": {
            f"/call/{quote(name)}": {
                "post": _operation(name, told.get(name, NO_DESCRIPTION), schemas, settings.timeout_max_s)
            }
            for name in names
        },
        "components": components,
    }
    if has_tokens:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document


async def _told(client: AsyncHAClient, names: list[str], timeout_s: float) -> Mapping[str, Description]:
    """What most workers of each service tell. A node of an earlier release knows nothing of it."""
    found: dict[str, Description] = {}
    replies = client.map(
        Service.DESCRIPTIONS.value,
        [name.encode() for name in names],
        window=_WINDOW,
        timeout=timeout_s,
        errors="return",
    )
    async for reply in replies:
        if isinstance(reply, CallFailed):
            if not isinstance(reply.error, CallError):
                raise reply.error
            continue
        if len(reply.frames) > 1 and reply.frames[0] == OK:
            offers = read_json(reply.frames[1], list[Offer], Service.DESCRIPTIONS)
            found[names[reply.index]] = max(offers, key=lambda offer: offer.workers, default=NO_DESCRIPTION)
    return found


class _Schemas:
    """The named schemas of all services, as components of the document.

    A worker's schema refers to its own ``$defs``. In the document such a reference begins at the document, so
    it would lead nowhere. A name that stands for different schemas has its service before it.
    """

    def __init__(self, told: Mapping[str, Description]) -> None:
        self.components: dict[str, Schema] = {"Error": _ERROR}
        # What each component means: no two schemas share one.
        self._meant = {"Error": b""}
        schemas = [
            (name, what, schema)
            for name, each in told.items()
            for what, schema in (("request", each.request), ("reply", each.reply))
            if schema is not None
        ]
        meanings: defaultdict[str, set[bytes]] = defaultdict(set, Error={b""})
        for _, _, schema in schemas:
            for name in (defs := _defs_of(schema)):
                meanings[name].add(_meaning(name, defs))
        self._is_shared = {name: len(found) == 1 for name, found in meanings.items()}
        self._contents = {(name, what): self._content(name, what, schema) for name, what, schema in schemas}

    def content(self, service: str, what: str) -> dict[str, Any]:
        """The media type and schema of a service's ``request`` or ``reply``."""
        return self._contents.get((service, what), _ANY)

    def _content(self, service: str, what: str, schema: Schema) -> dict[str, Any]:
        defs = _defs_of(schema)
        keys = {
            name: self._key(
                name if self._is_shared[name] else f"{service}.{what}.{name}", _meaning(name, defs)
            )
            for name in defs
        }
        for name, each in defs.items():
            self.components[keys[name]] = {**_led(each, keys), "title": keys[name]}
        rest = {word: each for word, each in schema.items() if word != "$defs"}
        return {"application/json": {"schema": _led(rest, keys)}}

    def _key(self, name: str, meaning: bytes) -> str:
        """A free name of a component, or one that means the same."""
        key = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        while self._meant.setdefault(key, meaning) != meaning:
            key += "_"
        return key


def _defs_of(schema: Schema) -> dict[str, Schema]:
    found = schema.get("$defs")
    found = found if isinstance(found, dict) else {}
    return {name: each for name, each in found.items() if isinstance(each, dict)}


def _meaning(name: str, defs: dict[str, Schema]) -> bytes:
    """A named schema with all that it refers to."""
    found = {name: defs[name]}
    waiting = [defs[name]]
    while waiting:
        for each in _NAME.findall(msgspec.json.encode(waiting.pop()).decode()):
            if each in defs and each not in found:
                found[each] = defs[each]
                waiting.append(defs[each])
    return msgspec.json.encode(found, order="sorted")


def _led(node: Any, keys: Mapping[str, str], depth: int = 0) -> Any:
    """A part of a schema whose references lead to components.

    It loses the title of an object: generators of clients name a class by that, and want each name once.
    """
    if isinstance(node, str) and node.startswith(_DEFS):
        name, slash, rest = node.removeprefix(_DEFS).partition("/")
        return f"{_COMPONENTS}{keys.get(name, name)}{slash}{rest}"
    if depth == _DEPTH_MAX and isinstance(node, dict | list):
        return {}
    if isinstance(node, dict):
        is_title = isinstance(node.get("title"), str) and "properties" in node
        left = {word: each for word, each in node.items() if word != "title"} if is_title else node
        return {word: _led(each, keys, depth + 1) for word, each in left.items()}
    if isinstance(node, list):
        return [_led(each, keys, depth + 1) for each in node]
    return node


def _operation(name: str, told: Description, schemas: _Schemas, timeout_max_s: float) -> dict[str, Any]:
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": timeout_max_s}
    operation: dict[str, Any] = {
        "operationId": name,
        "parameters": [
            _header("Bstar-Timeout", "Seconds until the call's deadline.", seconds),
            _header("Bstar-Idempotent", "false: it is executed at most once.", {"type": "boolean"}),
            _header(
                "Idempotency-Key",
                "Requests with one key are one request.",
                {"type": "string", "minLength": 1},
            ),
        ],
        "requestBody": {"required": True, "content": schemas.content(name, "request")},
        "responses": {
            "200": {"description": "The reply.", "content": schemas.content(name, "reply")},
            "default": {
                "description": "No reply: docs/http.md lists the codes.",
                "content": {"application/json": {"schema": {"$ref": f"{_COMPONENTS}Error"}}},
            },
        },
    }
    if told.description:
        operation["summary"] = told.description
    if told.version:
        operation["x-service-version"] = told.version
    return operation


def _header(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
