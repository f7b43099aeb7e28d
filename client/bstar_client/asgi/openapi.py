"""The services of the pair as an OpenAPI document: a path for each, with schemas where workers tell them."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import bstar
from bstar.errors import CallError
from bstar.security.principals import Principal
from bstar.wire.description import NO_DESCRIPTION, Description, Offer
from bstar.wire.mmi import OK, Service
from bstar_client.aio.client import AsyncHAClient
from bstar_client.asgi.failures import STATUSES
from bstar_client.calls.requests import read_json
from bstar_client.core.calls import CallFailed

_WINDOW: Final = 64
_ANY: Final[dict[str, Any]] = {"application/octet-stream": {"schema": {}}}
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
    client: AsyncHAClient, principal: Principal | None, timeout_s: float, *, has_tokens: bool
) -> dict[str, Any]:
    """The document of the services that the principal may call; of all without principals."""
    listed = [str(each["service"]) for each in await client.services(timeout=timeout_s)]
    names = [name for name in listed if principal is None or principal.calls.match(name.encode())]
    told = await _told(client, names, timeout_s)
    components: dict[str, Any] = {"schemas": {"Error": _ERROR}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Services of a bstar pair", "version": bstar.__version__},
        "paths": {
            f"/call/{quote(name)}": {"post": _operation(name, told.get(name, NO_DESCRIPTION))}
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


def _operation(name: str, told: Description) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "parameters": [
            _header("Bstar-Timeout", "Seconds until the call's deadline.", {"type": "number"}),
            _header("Bstar-Idempotent", "false: it is executed at most once.", {"type": "boolean"}),
            _header("Idempotency-Key", "Requests with one key are one request.", {"type": "string"}),
        ],
        "requestBody": {"required": True, "content": _content(told.request)},
        "responses": {
            "200": {"description": "The reply.", "content": _content(told.reply)},
            "default": {
                "description": "No reply: docs/http.md lists the codes.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
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


def _content(schema: dict[str, Any] | None) -> dict[str, Any]:
    return _ANY if schema is None else {"application/json": {"schema": schema}}
