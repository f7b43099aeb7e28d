"""A call that timed out says which service, how long and whether a worker offers it; logs name requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bstar.errors import BusyError, CallError, CallTimeoutError, NoActiveNodeError
from bstar.wire import durable, native
from bstar_client import AsyncHAClient, HAClient, Request, Worker
from bstar_client.calls.durable import Task, schedule_frame, submit_frame
from bstar_client.calls.durable_answers import fetch_frame
from bstar_client.core.call_errors import expired, overdue, too_late
from bstar_client.core.calls import Call
from support.brokers import lone_broker
from support.desk import Desk, ident
from support.scripted import WAIT_S
from support.timeouts import timeout_of_node


def call_for(service: bytes = b"price") -> Call:
    return Call(service, [b""], begun_at=100.0)


# --- the client's words -------------------------------------------------------------------------------------


def test_a_request_that_expired_in_a_queue_tells_where_how_long_and_why() -> None:
    error = expired(call_for(), "tcp://node:1", 'no worker offers service "price"', 105.0)
    assert str(error) == (
        "timed out after 5.0 s in the queue of tcp://node:1: "
        'no worker offers service "price"; it was not executed'
    )
    assert not error.may_have_executed


def test_a_request_of_which_an_earlier_attempt_is_unknown_says_so() -> None:
    call = call_for()
    call.was_dispatched = True
    error = expired(call, "tcp://node:1", "", 100.25)
    assert str(error) == (
        'timed out after 0.250 s in the queue of tcp://node:1: service "price"; '
        "an earlier attempt may have been executed"
    )
    assert error.may_have_executed


@pytest.mark.parametrize(
    ("operation", "frame", "whom"),
    [
        ("submit", submit_frame("price", Task(b"x")), 'submit to service "price"'),
        (
            "schedule",
            schedule_frame("price", Task(b"x"), every=5.0, cron=None, zone="UTC", missed="skip"),
            'schedule to service "price"',
        ),
        ("result", fetch_frame("0a" * 16), f"result of request {'0a' * 16}"),
        ("cancel", bytes.fromhex("0a" * 16), f"cancel of request {'0a' * 16}"),
        ("list", durable.encode(durable.Filter()), "list"),
    ],
    # Without names the frames would be the tests' names, and each process makes other ids.
    ids=["submit", "schedule", "result", "cancel", "list"],
)
def test_a_durable_operation_names_what_its_caller_asked_for(operation: str, frame: bytes, whom: str) -> None:
    call = Call(b"store." + operation.encode(), [frame], begun_at=100.0)
    assert f"no node was active for the durable store ({whom}); it" in str(overdue(call, call, "none", 101.0))


def test_a_call_to_the_store_that_is_none_of_ours_names_the_service() -> None:
    call = Call(b"store.submit", [b"?"], begun_at=100.0)
    assert 'for service "store.submit"' in str(overdue(call, call, "none", 101.0))


def sent(call: Call) -> None:
    call.attempts, call.sent_to = 2, 1


def was_busy(call: Call) -> None:
    call.busy_count, call.busy_text = 1, "the queue\nis full"


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        (
            sent,
            CallTimeoutError,
            'timed out after 5.0 s: service "price" has not answered; 2 attempts, it may have been executed',
        ),
        (
            was_busy,
            BusyError,
            r'timed out after 5.0 s: the broker was busy for service "price" until then (the queue\nis full)',
        ),
        (
            lambda call: None,
            NoActiveNodeError,
            'timed out after 5.0 s: no node was active for service "price"; it was not executed',
        ),
    ],
)
def test_a_deadline_that_passes_at_the_client_tells_what_is_known(
    state: Callable[[Call], None], kind: type[CallError], text: str
) -> None:
    call = call_for()
    state(call)
    error = overdue(call, call, "n", 105.0)
    assert (type(error), str(error)) == (kind, f"{text}. Nodes: n")


def test_a_foreign_name_is_written_with_escapes() -> None:
    text = str(too_late(call_for(b"\x1b[31m\xff"), 101.0))
    assert text == r'timed out after 1.0 s: the request for service "\x1b[31m\xff" had not been sent'


# --- the broker's -------------------------------------------------------------------------------------------


def test_the_log_names_a_poisoned_request_its_service_and_how_often_it_was_given() -> None:
    desk = Desk(deliveries_max=2)
    for worker in (b"w0", b"w1"):
        desk.ready(worker, b"price\x07")
    desk.request(b"c", 1, service=b"price\x07")
    for worker in (b"w0", b"w1"):
        desk.send(worker, *native.encode_disconnect())
    (line,) = desk.notices
    assert line.startswith(
        rf'request {ident(1).hex()} of service "price\x07", given to workers 2 times, is given up: '
    )
    assert "poison" in line
    assert line.isprintable()


def test_the_log_names_a_request_that_was_lost_with_its_worker_and_does_not_name_thousands() -> None:
    desk = Desk()
    desk.ready(b"w", credit=50)
    for number in range(1, 51):
        desk.request(b"c", number, is_once=True)
    desk.send(b"w", *native.encode_disconnect())
    assert len(desk.notices) == 10
    # The last one first: it goes back to the head of the queue before the others.
    begin = f'request {ident(50).hex()} of service "echo", given to workers once, is given up: '
    assert desk.notices[0].startswith(begin)
    assert [line.endswith("only counted") for line in desk.notices] == [False] * 9 + [True]


# --- all together -------------------------------------------------------------------------------------------


@pytest.mark.loopback
def test_both_clients_say_that_nobody_offers_the_service(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        with HAClient(broker.endpoint) as client, pytest.raises(CallTimeoutError) as caught:
            client.request("price", b"", timeout=4.0)

        async def ask() -> str:
            async with AsyncHAClient(broker.endpoint) as client:
                with pytest.raises(CallTimeoutError) as caught:
                    await client.request("price", b"", timeout=4.0)
                return str(caught.value)

        for text in (str(caught.value), asyncio.run(ask())):
            assert text.startswith("timed out after ")
            assert f' in the queue of {broker.endpoint}: no worker offers service "price"' in text


@pytest.mark.loopback
def test_a_client_says_that_the_only_worker_was_busy(tmp_path: Path) -> None:
    go_on = threading.Event()
    begun = threading.Event()

    def hold(request: Request) -> bytes:
        begun.set()
        assert go_on.wait(WAIT_S)
        return b""

    with (
        lone_broker(tmp_path) as broker,
        Worker(broker.endpoint, "price", hold),
        HAClient(broker.endpoint) as client,
    ):
        holder = threading.Thread(target=lambda: client.request("price", b""))
        holder.start()
        assert begun.wait(WAIT_S)
        error = timeout_of_node(lambda: client.request("price", b"", timeout=4.0))
        assert 'the only worker of service "price" was busy' in str(error)
        go_on.set()
        holder.join(WAIT_S)
