"""Handlers that `bstar worker` is told to use."""

from __future__ import annotations

from bstar_client import Request

NUMBER = 5


async def coroutine(request: Request) -> bytes:
    return request.body


def nothing() -> bytes:
    return b""


def plain(request: Request) -> bytes:
    return request.body
