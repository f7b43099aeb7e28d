"""What a type checker sees of the public names: mypy runs over this file, strictly, and that is the test.

The functions here are not called, except by the last test, which runs one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterator
from contextlib import aclosing, closing
from typing import assert_type

import pytest

from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    CallFailed,
    HAClient,
    Reply,
    Request,
    Worker,
    WorkerHooks,
)
from support.scripted import ScriptedBroker

NODES = "tcp://127.0.0.1:5001,tcp://127.0.0.1:5002"


class Price:
    """A handler that is an object, and more than a handler."""

    rate = 1

    def __call__(self, request: Request) -> bytes:
        return request.body


def parts(request: Request) -> Iterator[bytes]:
    yield request.body


def whole(request: Request) -> Generator[bytes, None, list[bytes]]:
    yield request.body
    return [b"a", b"b"]


async def async_parts(request: Request) -> AsyncIterator[bytes]:
    yield request.body


async def async_whole(request: Request) -> bytes:
    return request.body


def workers() -> None:
    """A decorated function stays what it was."""
    worker = Worker(NODES, "price", parts)

    @worker.handler
    def quote(request: Request, rate: int = 2) -> bytes:
        return request.body * rate

    assert_type(quote(Request(b"", (b"",), b"", False, 0, None, b""), rate=3), bytes)
    assert_type(worker.handler(Price()), Price)
    worker.handler(whole)
    asynchronous = AsyncWorker(NODES, "price", async_whole)

    @asynchronous.handler
    async def shout(request: Request, loud: bool = True) -> bytes:
        return request.body

    told = asyncio.run(shout(Request(b"", (b"",), b"", False, 0, None, b""), loud=False))
    assert_type(told, bytes)
    asynchronous.handler(async_parts)
    with pytest.raises(TypeError):
        Worker(NODES, "price", async_whole)  # type: ignore[arg-type]
    AsyncWorker(NODES, "price", Price())  # type: ignore[arg-type]


class Hooks(WorkerHooks):
    """Its methods are told of whatever a handler may raise."""

    def request_failed(self, worker: Worker, request: Request, error: BaseException) -> None:
        """Nothing."""


def calls(client: HAClient) -> None:
    """What is left early is closed."""
    with closing(client.stream("price", b"x", timeout=None)) as stream:
        for part in stream:
            assert_type(part, Reply)
    asks: list[bytes | Ask] = [b"x", Ask(b"x", key="text"), Ask(b"x", key=b"octets", timeout=None)]
    with closing(client.map("price", asks)) as replies:
        for reply in replies:
            assert_type(reply, Reply)
    with closing(client.map("price", asks, errors="return")) as outcomes:
        for outcome in outcomes:
            assert_type(outcome, Reply | CallFailed)
    assert_type(client.map("price", asks), Generator[Reply, None, None])
    client.request("price", b"x", key="text", timeout=5)


async def async_calls(client: AsyncHAClient) -> list[Reply]:
    """The same for asyncio."""
    told: list[Reply] = []
    async with aclosing(client.stream("price", b"x")) as stream:
        async for part in stream:
            assert_type(part, Reply)
            told.append(part)
    async with aclosing(client.map("price", [b"x", Ask(b"x", key="text")])) as replies:
        async for reply in replies:
            assert_type(reply, Reply)
            told.append(reply)
    async with aclosing(client.map("price", [b"x"], errors="return")) as outcomes:
        async for outcome in outcomes:
            assert_type(outcome, Reply | CallFailed)
    assert_type(client.map("price", [b"x"]), AsyncGenerator[Reply, None])
    waiting: Awaitable[Reply] = client.request("price", b"x", key="text", timeout=5)
    return [*told, await waiting]


@pytest.mark.loopback
def test_what_type_checks_runs() -> None:
    with ScriptedBroker() as broker:
        with HAClient(f"{broker.endpoint}, {broker.endpoint.replace('127.0.0.1', 'localhost')}") as client:
            calls(client)

        async def work() -> None:
            async with AsyncHAClient(broker.endpoint) as client:
                assert len(await async_calls(client)) == 4

        asyncio.run(work())
    workers()
