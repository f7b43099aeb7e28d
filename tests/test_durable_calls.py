"""Both clients and a store over real sockets: every test runs with threads and with asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bstar.errors import (
    BusyError,
    CallTimeoutError,
    ClosedError,
    DeadLetterError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    UnknownRequestError,
)
from bstar.fleet import Fleet
from bstar.wire.durable import Cause, Service, State
from bstar.wire.messages import ErrorCode, Request
from bstar.wire.native_broker import CODEC
from bstar_client import AsyncHAClient, HAClient, RetryPolicy, Task
from bstar_client.aio.durable import DurableCalls as AioCalls
from bstar_client.sync.durable import DurableCalls as SyncCalls
from support.blocking import Blocking
from support.fake_store import FakeStore
from support.scripted import PASSIVE, WAIT_S, ScriptedBroker, status

pytestmark = pytest.mark.loopback

ID = "00112233445566778899aabbccddeeff"


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def broker(store: FakeStore) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(on_request=store) as broker:
        yield broker


@pytest.fixture(params=[HAClient, Blocking], ids=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> type[HAClient]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def client(kind: type[HAClient], broker: ScriptedBroker) -> Iterator[HAClient]:
    client = kind(broker.endpoint)
    yield client
    client.close()


def test_both_clients_have_the_same_words() -> None:
    def words(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and name not in ("_check", "_submit_many")
        }

    assert words(SyncCalls) == words(AioCalls)


def test_a_request_is_stored_and_its_answer_is_kept_until_it_is_closed(
    client: HAClient, broker: ScriptedBroker, store: FakeStore
) -> None:
    request_id = client.submit("price", [b"a", b"b"], priority=3)
    submit = store.submits[bytes.fromhex(request_id)]
    assert (submit.service, submit.body, submit.priority) == (b"price", [b"a", b"b"], 3)
    assert client.result(request_id, wait=0) is None
    assert client.status_of(request_id).state == "pending"
    store.end(request_id, b"done", attempts=1)
    for _ in range(2):
        result = client.result(request_id)
        assert (result.body, result.attempts, result.id) == (b"done", 2, request_id)
    assert client.close_result(request_id).state == "answered"
    assert client.close_result(request_id).state == "unknown"
    assert client.status_of(request_id).state == "unknown"
    with pytest.raises(UnknownRequestError):
        client.result(request_id)


def test_an_answer_is_awaited(client: HAClient, broker: ScriptedBroker, store: FakeStore) -> None:
    request_id = client.submit("price", b"x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.result, request_id, wait=60)
        broker.wait_for(lambda: bool(store.waiting))
        for frames in store.end(request_id, b"done"):
            broker.send(frames)
        answer = waiting.result(WAIT_S)
    assert answer is not None
    assert answer.body == b"done"
    [fetch] = store.fetches
    assert fetch.wait_ms == 20_000, "a longer wait is several questions"


def test_a_wait_ends_in_time(client: HAClient, store: FakeStore) -> None:
    request_id = client.submit("price", b"x")
    store.waits = False
    began_at = time.monotonic()
    assert client.result(request_id, wait=0.3) is None
    assert time.monotonic() - began_at >= 0.3
    assert len(store.fetches) <= 5, "a node that does not wait is not asked without a pause"


def test_a_wait_goes_on_over_times_without_a_node(kind: type[HAClient], store: FakeStore) -> None:
    with ScriptedBroker(on_request=store) as broker:
        client = kind(broker.endpoint, timeout=0.2)
        try:
            request_id = client.submit("price", b"x", timeout=WAIT_S)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.result, request_id)
                broker.wait_for(lambda: bool(store.waiting))
                broker.close()
                broker.status = status(PASSIVE, retry_after_ms=0xFFFF_FFFF)
                store.end(request_id, b"done")
                broker.open()
                # It is asked, and says that it does not serve, for longer than the client's timeout.
                seen = len(broker.messages)
                broker.wait_for(lambda: len(broker.messages) > seen + 5)
                assert not waiting.done()
                broker.status = status(epoch=3)
                assert waiting.result(WAIT_S).body == b"done"
        finally:
            client.close()


def test_a_wait_that_nobody_answers_is_no_pending_request(client: HAClient, broker: ScriptedBroker) -> None:
    broker.status = status(PASSIVE, retry_after_ms=0xFFFF_FFFF)
    with pytest.raises(NoActiveNodeError):
        client.result(ID, wait=0, timeout=0.1)


def test_a_lost_answer_to_a_submit_makes_no_second_request(kind: type[HAClient], store: FakeStore) -> None:
    """Its first node dies with the answer; the other one gets the same Submit."""
    backup = FakeStore()
    told = status(PASSIVE, epoch=1)
    with ScriptedBroker(on_request=store) as primary, ScriptedBroker(told, on_request=backup) as other:
        other.is_promoted_by_votes = True
        store.lose = lambda request: True
        client = kind([primary.endpoint, other.endpoint])
        try:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.submit, "price", b"x")
                primary.wait_for(lambda: bool(store.submits))
                primary.close()
                request_id = waiting.result(WAIT_S)
        finally:
            client.close()
    assert list(backup.submits) == list(store.submits) == [bytes.fromhex(request_id)]


def test_a_submit_with_a_key_may_be_repeated_by_anybody(client: HAClient, store: FakeStore) -> None:
    ids = {client.submit("price", b"x", key="order 4711") for _ in range(3)}
    assert len(ids) == len(store.submits) == 1


def test_many_are_submitted_in_order(client: HAClient, store: FakeStore) -> None:
    bodies = [b"%d" % number for number in range(1_000)]
    policy = RetryPolicy(max=1)
    ids = list(
        client.submit_many("price", [*bodies, Task([b"a", b"b"], key="k", retries=policy)], window=100)
    )
    *plain, last = [store.submits[bytes.fromhex(each)] for each in ids]
    assert [submit.body for submit in plain] == [[body] for body in bodies]
    assert (last.body, last.attempts_max) == ([b"a", b"b"], 1)


def test_a_body_of_many_that_cannot_be_sent_is_named(client: HAClient) -> None:
    with pytest.raises(TypeError, match="encode the text first") as caught:
        list(client.submit_many("price", [b"a", "b"]))  # type: ignore[list-item] # that is the point
    assert caught.value.__notes__ == ["body 1 of submit_many()"]


def test_async_bodies() -> None:
    async def bodies() -> AsyncIterator[bytes | Task]:
        yield b"a"
        await asyncio.sleep(0)
        yield Task(b"b", priority=1)

    async def work(endpoint: str) -> list[str]:
        async with AsyncHAClient(endpoint) as client:
            return [each async for each in client.submit_many("price", bodies())]

    store = FakeStore()
    with ScriptedBroker(on_request=store) as broker:
        ids = asyncio.run(work(broker.endpoint))
    assert [store.submits[bytes.fromhex(each)].priority for each in ids] == [0, 1]


def test_a_dead_letter_is_listed_and_tried_again(client: HAClient, store: FakeStore) -> None:
    ids = list(client.submit_many("price", [b"a", b"b", b"c"]))
    store.end(ids[1], state=State.DEAD, attempts=5, cause=Cause.FAILED, text="ValueError: no")
    [dead] = list(client.dead_letters(bodies=True))
    assert (dead.id, dead.cause, dead.text, dead.body) == (ids[1], "failed", "ValueError: no", b"b")
    [without] = list(client.dead_letters())
    with pytest.raises(ValueError, match="bodies=True"):
        without.body  # noqa: B018 - it raises
    with pytest.raises(DeadLetterError, match="after 5 attempts: failed: ValueError: no") as caught:
        client.result(ids[1])
    assert caught.value.may_have_executed
    assert client.retry(ids[1]).state == "pending"
    assert list(client.dead_letters()) == []
    assert client.cancel(ids[1]).state == "cancelled"


def test_a_list_has_as_many_pages_as_it_needs(client: HAClient, store: FakeStore) -> None:
    ids = list(client.submit_many("price", [b"%d" % number for number in range(25)]))
    client.submit("book", b"x")
    store.page_max = 7
    assert [each.id for each in list(client.requests(service="price"))] == ids
    assert [each.service for each in list(client.requests(service="book"))] == ["book"]
    assert len(list(client.requests(state="pending"))) == 26
    assert list(client.requests(state="dead")) == []


def test_a_refusal_of_the_store_is_an_error_of_the_call(
    client: HAClient, broker: ScriptedBroker, store: FakeStore
) -> None:
    def reject(request: Request) -> list[list[bytes]]:
        return [CODEC.failure(request, 1, ErrorCode.INVALID, b"no store here")]

    def busy(request: Request) -> list[list[bytes]]:
        return [CODEC.busy(request, 1, 10, b"one copy only")]

    broker.on_request = reject
    with pytest.raises(RejectedError, match="no store here"):
        client.submit("price", b"x")
    broker.on_request = busy
    with pytest.raises(BusyError, match="one copy only") as caught:
        client.submit("price", b"x", timeout=3.0)
    assert caught.value.may_have_executed is False, "nothing was stored"
    broker.on_request = lambda request: []
    with pytest.raises(CallTimeoutError) as lost:
        client.submit("price", b"x", timeout=2.0)
    assert lost.value.may_have_executed, "it may be stored"


def test_a_refused_submit_is_repeated_until_it_is_taken(
    client: HAClient, broker: ScriptedBroker, store: FakeStore
) -> None:
    seen: list[Request] = []

    def busy_twice(request: Request) -> list[list[bytes]]:
        seen.append(request)
        return [CODEC.busy(request, 1, 1, b"alone")] if len(seen) < 3 else store(request)

    broker.on_request = busy_twice
    client.submit("price", b"x")
    assert len({bytes(request.body[0]) for request in seen}) == 1, "the same Submit"


@pytest.mark.parametrize("name", ["result", "status_of", "close_result", "cancel", "retry"])
def test_an_id_of_several_pairs_needs_its_service(
    kind: type[HAClient], store: FakeStore, broker: ScriptedBroker, name: str
) -> None:
    other = FakeStore()
    with ScriptedBroker(on_request=other) as second:
        fleet = {"east": [broker.endpoint], "west": [second.endpoint]}
        client = kind(fleet, pins={"price": "east", "book": "west"})
        try:
            for service, here in (("price", store), ("book", other)):
                [request_id] = list(client.submit_many(service, [b"x"]))
                assert [each.hex() for each in here.submits] == [request_id]
                here.end(request_id, b"done")
                done = getattr(client, name)(request_id, service=service)
                assert (done.body if name == "result" else done.state) in (b"done", "answered")
                with pytest.raises(LocalProtocolError, match="this client has 2 pairs: name the service"):
                    getattr(client, name)(request_id)
        finally:
            client.close()


def test_a_list_is_of_all_pairs(kind: type[HAClient], store: FakeStore, broker: ScriptedBroker) -> None:
    other = FakeStore()
    with ScriptedBroker(on_request=other) as second:
        fleet = Fleet.of({"east": [broker.endpoint], "west": [second.endpoint]}, {"a": "east", "b": "west"})
        client = kind(fleet)
        try:
            ids = [client.submit(service, b"x") for service in ("a", "b")]
            assert [each.id for each in list(client.requests())] == ids
            assert [each.id for each in list(client.requests(service="b"))] == ids[1:]
            with pytest.raises(LocalProtocolError, match=r"use submit\(\), result\(\)"):
                client.request(Service.STATUS.value, b"")
        finally:
            client.close()


def test_plain_majordomo_has_none(kind: type[HAClient], broker: ScriptedBroker) -> None:
    client = kind(broker.endpoint, dialect="mdp02")
    try:
        arguments: dict[str, list[Any]] = {"submit": ["a", b""], "result": [ID], "submit_many": ["a", []]}
        for name, given in arguments.items():
            with pytest.raises(LocalProtocolError, match="use the native dialect"):
                getattr(client, name)(*given)
    finally:
        client.close()


def test_a_closed_client_asks_nothing(broker: ScriptedBroker) -> None:
    client = HAClient(broker.endpoint)
    client.close()
    with pytest.raises(ClosedError):
        client.submit("price", b"x")
    with pytest.raises(ClosedError):
        client.result(ID)
    with pytest.raises(ClosedError):
        client.requests()


def test_closing_ends_a_wait(broker: ScriptedBroker, store: FakeStore) -> None:
    client = HAClient(broker.endpoint)
    request_id = client.submit("price", b"x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.result, request_id)
        broker.wait_for(lambda: bool(store.waiting))
        client.close()
        with pytest.raises((ClosedError, OutcomeUnknownError), match="closed"):
            waiting.result(WAIT_S)


async def test_a_task_that_waits_is_cancelled(broker: ScriptedBroker, store: FakeStore) -> None:
    async with AsyncHAClient(broker.endpoint) as client:
        request_id = await client.submit("price", b"x")
        waiting = asyncio.create_task(client.result(request_id))
        await asyncio.to_thread(broker.wait_for, lambda: bool(store.waiting))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.status_of(request_id)).state == "pending"
