"""What a type checker sees of the public names: mypy and pyright run over this file, strictly.

The functions here are not called, except by the last test, which runs one of them.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, assert_type

import msgspec
import mypy.api
import pytest

from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    CallFailed,
    HAClient,
    Reply,
    Request,
    Result,
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


class Order(msgspec.Struct):
    """A body."""

    sku: int


@dataclass
class Receipt:
    """A reply."""

    cents: int


class Line(TypedDict):
    """Another body."""

    sku: int


def sell(order: Order) -> Receipt:
    return Receipt(order.sku)


async def sell_later(order: Order, request: Request) -> Receipt:
    return Receipt(order.sku)


def typed_calls(client: HAClient, line: Line) -> None:
    """``reply`` is the type of what comes back."""
    Worker(NODES, "sell", sell)
    AsyncWorker(NODES, "sell", sell_later)
    assert_type(client.request("sell", Order(7), reply=Receipt, codec="msgpack"), Receipt)
    assert_type(client.request("sell", line), Reply)
    assert_type(client.request("sell", Receipt(1), reply=list[int], timeout=5), list[int])
    assert_type(client.map("sell", [Order(7)], reply=Receipt), Generator[Receipt, None, None])
    assert_type(
        client.map("sell", [Order(7)], reply=Receipt, errors="return"),
        Generator[Receipt | CallFailed, None, None],
    )
    assert_type(client.stream("sell", Order(7), reply=Receipt), Generator[Receipt, None, None])
    assert_type(client.submit("sell", Order(7)), str)
    assert_type(client.result("00", reply=Receipt), Receipt)
    assert_type(client.result("00", reply=Receipt, wait=5), Receipt | None)
    assert_type(client.result("00"), Result)
    client.request("sell", 5)  # type: ignore[call-overload]
    client.request("sell", Order(7), reply=Receipt, codec="yaml")  # type: ignore[call-overload]


async def typed_calls_later(client: AsyncHAClient) -> None:
    """The same for asyncio."""
    assert_type(await client.request("sell", Order(7), reply=Receipt), Receipt)
    assert_type(client.map("sell", [Order(7)], reply=Receipt), AsyncGenerator[Receipt, None])
    assert_type(client.stream("sell", Order(7), reply=Receipt), AsyncGenerator[Receipt, None])
    assert_type(await client.result("00", reply=Receipt, wait=5), Receipt | None)


SNIPPET = """
import msgspec
from bstar_client import AsyncHAClient, HAClient

class Ask(msgspec.Struct):
    sku: int

class Price(msgspec.Struct):
    cents: int

def calls(client: HAClient) -> None:
    reveal_type(client.request("price", Ask(7), reply=Price))
    reveal_type(client.request("price", b"7"))
    reveal_type(client.begin("price", Ask(7), reply=Price).result())
    reveal_type(next(client.map("price", [Ask(7)], reply=Price)))
    reveal_type(next(client.map("price", [Ask(7)], reply=Price, errors="return")))
    reveal_type(next(client.stream("price", Ask(7), reply=Price)))
    reveal_type(client.submit("price", Ask(7)))
    reveal_type(client.result("id", reply=Price))
    reveal_type(client.result("id", reply=Price, wait=5))
    reveal_type(client.ask_all("price", Ask(7), reply=Price))

async def calls_later(client: AsyncHAClient) -> None:
    reveal_type(await client.request("price", Ask(7), reply=Price))
    reveal_type(await client.begin("price", Ask(7), reply=Price))
    reveal_type(await anext(client.map("price", [Ask(7)], reply=Price)))
    reveal_type(await anext(client.stream("price", Ask(7), reply=Price)))
    reveal_type(await client.submit("price", Ask(7)))
    reveal_type(await client.result("id", reply=Price, wait=5))
    reveal_type(await client.ask_all("price", Ask(7), reply=Price))
"""
OUTCOMES = "dict[str, Price | CallFailed]"
REVEALED = [
    *(
        "Price",
        "Reply",
        "Price",
        "Price",
        "Price | CallFailed",
        "Price",
        "str",
        "Price",
        "Price | None",
        OUTCOMES,
    ),
    *("Price", "Price", "Price", "Price", "str", "Price | None", OUTCOMES),
]


def test_a_program_of_a_user_sees_the_type_that_it_asks_for(tmp_path: Path) -> None:
    """As mypy tells a program outside of this repository."""
    script = tmp_path / "shop.py"
    script.write_text(SNIPPET)
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}"]
    told, trouble, status = mypy.api.run([*options, str(script)])
    assert (status, trouble) == (0, ""), told
    revealed = re.findall(r'Revealed type is "([^"]*)"', told)
    assert [re.sub(r"\w+\.", "", each) for each in revealed] == REVEALED


@pytest.mark.loopback
def test_an_editor_sees_the_type_that_a_program_asks_for(tmp_path: Path) -> None:
    """As pyright tells a program outside of this repository."""
    script = tmp_path / "shop.py"
    script.write_text(SNIPPET)
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    revealed = re.findall(r'Type of ".*" is "([^"]*)"', done.stdout)
    assert revealed == REVEALED, done.stdout + done.stderr


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
