"""What a program shows of itself to somebody who tries it: reprs, warnings, names to import."""

from __future__ import annotations

import logging

import pytest

from bstar.errors import CallTimeoutError, DeadLetterError, HandlerError
from bstar.security import Security, new_key
from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    HAClient,
    LazyPirateClient,
    Reply,
    ReplyFile,
    Request,
    RequestStatus,
    Result,
    Task,
    Worker,
)
from bstar_client import Security as Exported
from bstar_client.workers.reply_file import ReplyFile as Original

A, B, C, D = (f"tcp://127.0.0.1:{port}" for port in (1, 2, 3, 4))
SECRET = {"token": "s3cret"}


def close(*clients: object) -> None:
    """Close the clients for threads; those for asyncio have no loop yet."""
    for client in clients:
        if isinstance(client, HAClient | LazyPirateClient):
            client.close()


def test_names_that_a_program_needs_are_imported_from_one_place() -> None:
    assert Exported is Security
    assert ReplyFile is Original


# --- warnings -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    """A command of another test may have silenced it."""
    caplog.set_level(logging.WARNING, "bstar_client.endpoints")


@pytest.mark.parametrize("kind", [HAClient, AsyncHAClient])
def test_a_client_of_one_node_or_of_three_says_so(
    kind: type[HAClient | AsyncHAClient], caplog: pytest.LogCaptureFixture
) -> None:
    made = [kind([A, B]), kind({"east": [A, B], "west": [C, D]}), kind([A], dialect="mdp02")]
    assert caplog.messages == []
    made += [kind(A), kind([A, B, C])]
    close(*made)
    one, three = caplog.messages
    assert one.startswith(
        f"{kind.__name__} has one endpoint, {A}: when that node is down no other one is asked"
    )
    assert three.startswith(f"{kind.__name__} has 3 endpoints in one list, {A}, {B}, {C}, and a pair has two")
    assert three.endswith("several pairs are a list of lists (docs/fleet.md)")


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_worker_of_one_node_says_so(
    kind: type[Worker | AsyncWorker], caplog: pytest.LogCaptureFixture
) -> None:
    kind([A, B], "echo")
    kind([A], "echo", dialect="mdp02")
    assert caplog.records == []
    kind([A], "echo")
    assert caplog.messages[0].startswith(f"{kind.__name__} has one endpoint, {A}")
    assert caplog.records[0].levelno == logging.WARNING


# --- reprs --------------------------------------------------------------------------------------------------


def test_a_client_and_a_worker_show_their_servers_and_how_they_are_and_no_key() -> None:
    key = new_key("shop")
    security = Security(key, servers=[new_key("node").public])
    client = HAClient([A, B], security=security)
    worker = Worker([A, B], "echo", lambda request: b"", security=security)
    assert repr(client) == f"<HAClient {A}, {B}; active: not known; 0 in flight; key shop>"
    assert repr(worker) == f'<Worker "echo" at {A}, {B}; registered at no node; 0 requests; key shop>'
    assert repr(AsyncHAClient({"east": [A], "west": [B]})) == (
        f"<AsyncHAClient {A}, {B}; 0 of 2 pairs have an active node; 0 in flight>"
    )
    assert repr(AsyncWorker([A, B], "x\x1b")) == (
        rf'<AsyncWorker "x\x1b" at {A}, {B}; registered at no node; 0 requests>'
    )
    lazy = LazyPirateClient([A])
    assert repr(lazy) == f"<LazyPirateClient {A}; 0 in flight>"
    close(client, lazy)
    for shown in (repr(client), repr(worker), repr(security)):
        assert key.secret.decode() not in shown


def test_what_is_not_made_yet_has_a_repr() -> None:
    assert repr(HAClient.__new__(HAClient)) == "<HAClient, not made>"
    assert repr(Worker.__new__(Worker)) == "<Worker, not made>"


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        (Reply((b"hello",), endpoint=A), f"Reply(frames=b'hello', endpoint='{A}')"),
        (
            Reply((b"x" * 5_000, b"y"), partials=((b"1",),) * 3, attempts=2),
            f"Reply(frames=2 frames: b'{'x' * 32}'… (5,000 bytes), …, partials=3 of them, attempts=2)",
        ),
        (
            Result("ab", (b"z" * 100,), 2, 1.0, 2.0),
            f"Result(id='ab', frames=b'{'z' * 32}'… (100 bytes), attempts=2, submitted_at=1.0, ended_at=2.0)",
        ),
        (
            RequestStatus("ab", "dead", text="e" * 200),
            f"RequestStatus(id='ab', state='dead', text='{'e' * 99}…')",
        ),
        (Ask(b"q", headers=SECRET), "Ask(body=b'q', headers=['token'])"),
        (Ask("no bytes"), "Ask(body=<str>)"),  # type: ignore[arg-type]  # refused when it is sent
        (Task(b"", headers=SECRET), "Task(body=b'', headers=['token'])"),
        (
            Request(b"echo", (b"q",), b"\1" * 24, False, 3, None, b"token s3cret", headers=SECRET),
            (
                f"Request(service=b'echo', frames=b'q', identity={'01' * 24}, is_redelivered=False, epoch=3, "
                "deadline=None, extensions=12 bytes, headers=['token'])"
            ),
        ),
        (
            CallTimeoutError("timed out", may_have_executed=True),
            "CallTimeoutError('timed out', may_have_executed=True)",
        ),
        (
            DeadLetterError("dead", request_id="ab", cause="failed", said="no", attempts=3),
            "DeadLetterError('dead', may_have_executed=True, request_id='ab')",
        ),
        (HandlerError("h" * 4_000), f"HandlerError('{'h' * 300}…', may_have_executed=True)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_and_errors_show_what_tells_them_apart_and_little_of_their_bodies(
    thing: object, shown: str
) -> None:
    assert repr(thing) == shown
