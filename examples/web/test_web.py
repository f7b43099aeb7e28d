"""The web API: one status for each outcome, deadlines handed on, a stop that loses no request."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx
import pytest

from api import api
from bstar_client import App, Request
from bstar_client.tracing import instrument
from bstar_testing import FakePair, fake, pair, wait_until
from parcels import app

PARCEL = {"country": "NO", "grams": 1_200}
LABEL = {"Idempotency-Key": "parcel 1"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

Handler = Callable[[Request], Awaitable[bytes]]


@asynccontextmanager
async def serving(
    services: App | Mapping[str, Handler] = app,
) -> AsyncGenerator[tuple[FakePair, httpx.AsyncClient], None]:
    """The API in this process, in front of a pair in memory."""
    office = fake(services)
    transport = httpx.ASGITransport(api)
    async with office as client, httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        api.state.client = client
        yield office, http


def in_memory(check: Callable[[FakePair, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as (office, http):
            await check(office, http)

    asyncio.run(run())


def test_a_parcel_has_its_price_also_after_a_failover() -> None:
    async def check(office: FakePair, http: httpx.AsyncClient) -> None:
        assert (await http.post("/quotes", json=PARCEL)).json() == {"cents": 2_520}
        office.fail_over()
        assert (await http.post("/quotes", json=PARCEL)).json() == {"cents": 2_520}

    in_memory(check)


def test_what_the_service_declines_is_a_mistake_of_the_caller() -> None:
    async def check(_: FakePair, http: httpx.AsyncClient) -> None:
        answer = await http.post("/quotes", json=PARCEL | {"country": "XX"})
        assert answer.status_code == 404
        assert answer.json()["code"] == "no-such-country"
        assert answer.json()["data"] == ["CH", "NO"]
        assert (await http.post("/quotes", json=PARCEL | {"grams": 0})).status_code == 422

    in_memory(check)


def test_a_busy_pair_asks_callers_to_come_back() -> None:
    async def check(office: FakePair, http: httpx.AsyncClient) -> None:
        with office.busy():
            answer = await http.post("/quotes", json=PARCEL)
        assert answer.status_code == 503
        assert 1 <= int(answer.headers["Retry-After"]) <= 5
        assert not answer.json()["may_have_executed"]

    in_memory(check)


def test_a_deadline_that_passes_at_work_says_that_it_may_have_been_done() -> None:
    async def check(_: FakePair, http: httpx.AsyncClient) -> None:
        headers = LABEL | {"Request-Timeout": "0.05"}
        answer = await http.post("/labels", json=PARCEL, headers=headers)
        assert answer.status_code == 504
        assert answer.json()["may_have_executed"]
        assert (await http.post("/labels", json=PARCEL, headers=LABEL)).status_code == 200
        headers = LABEL | {"Request-Timeout": "soon"}
        assert (await http.post("/labels", json=PARCEL, headers=headers)).status_code == 422

    in_memory(check)


def test_a_label_that_is_asked_for_twice_is_one_label() -> None:
    async def check(office: FakePair, http: httpx.AsyncClient) -> None:
        office.lose_reply()
        first = (await http.post("/labels", json=PARCEL, headers=LABEL)).json()
        assert (await http.post("/labels", json=PARCEL, headers=LABEL)).json() == first
        other = await http.post("/labels", json=PARCEL, headers={"Idempotency-Key": "parcel 2"})
        assert other.json()["tracking"] != first["tracking"]

    in_memory(check)


def test_one_key_is_for_one_body() -> None:
    async def check(_: FakePair, http: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(
            http.post("/labels", json=PARCEL, headers=LABEL),
            http.post("/labels", json=PARCEL | {"grams": 1}, headers=LABEL),
        )
        assert sorted(answer.status_code for answer in answers) == [200, 400]

    in_memory(check)


def test_the_trace_of_the_caller_reaches_the_service() -> None:
    seen: list[str] = []

    async def quote(request: Request) -> bytes:
        seen.append(request.headers["traceparent"])
        return b'{"cents": 1}'

    async def run() -> None:
        async with serving({"parcel.quote": quote}) as (_, http):
            instrument(api.state.client)
            headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            assert (await http.post("/quotes", json=PARCEL, headers=headers)).status_code == 200

    asyncio.run(run())
    [parent] = seen
    assert parent.startswith(f"00-{TRACE}-")


@pytest.mark.loopback
def test_a_stop_finishes_the_request_under_way() -> None:
    with pair(workers=0) as p, socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1", free.getsockname()[1]
        free.close()
        argv = [sys.executable, "-m", "bstar_cli", "run", "parcels:app"]
        p.start_process("office", argv, {"PRINT_S": "3"})
        argv = [sys.executable, "-m", "uvicorn", "api:api", "--port", str(address[1])]
        served = p.start_process("api", argv)
        served.wait_for_log("Uvicorn running")
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=60) as http,
            ThreadPoolExecutor() as pool,
        ):
            assert http.post("/quotes", json=PARCEL, headers={"Request-Timeout": "30"}).status_code == 200
            later = pool.submit(http.post, "/labels", json=PARCEL, headers=LABEL | {"Request-Timeout": "30"})
            wait_until(lambda: p.active().state().broker.in_flight, "the label is being printed")
            served.send_signal(signal.SIGTERM)
            assert later.result(60).status_code == 200
        served.wait_exit()
