"""A handler that declines a request has answered it: what its caller, the store and the figures say of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bstar.errors import (
    BstarError,
    CallError,
    DeadLetterError,
    DeclinedError,
    HandlerError,
    LocalProtocolError,
)
from bstar.wire import durable, native
from bstar.wire.declined import data_behind, declined_text, read_declined
from bstar.wire.durable import Fetch, Service, Standing, State
from bstar.wire.messages import ErrorCode, Failure
from bstar.wire.native_broker import CODEC, NativeAsker
from bstar_broker.core.records import Accepted
from bstar_client import (
    AsyncWorker,
    Declined,
    FreelanceServer,
    LazyPirateClient,
    Reply,
    Request,
    Worker,
    WorkerHooks,
)
from bstar_client.arguments.declined import frames_of
from bstar_client.calls.durable_answers import Polls, read_status
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job, Mdp02Worker, NativeWorker
from bstar_testing import LoopbackHost
from support.client_desk import ACTIVE, PASSIVE, status
from support.client_desk import Desk as ClientDesk
from support.desk import Desk, heard, ident
from support.scripted import ScriptedBroker
from support.solo_store import SoloStore
from support.worker_bench import NativeBench
from test_durable_core import WORKER, jobs, ready
from test_handler_ends import Desk as Handled
from test_handler_ends import served

TEXT = b"Declined no-such-sku: we do not sell 7"
# It warns that the one broker of a test is no pair.
_ENDPOINTS = "bstar_client.endpoints"
ID = durable.new_id(1, b"0123456789")


def decline(data: object = None) -> Declined:
    return Declined("no-such-sku", "we do not sell 7", data)


# --- the form -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-W-20")
@pytest.mark.parametrize(
    ("code", "text", "octets"),
    [
        ("no-such-sku", "we do not sell 7", TEXT),
        ("a.b_C-9", "", b"Declined a.b_C-9"),
        ("a", "b: c", b"Declined a: b: c"),
        ("a", "\N{EURO SIGN}", b"Declined a: \xe2\x82\xac"),
    ],
)
def test_code_and_text_come_back_from_the_text_on_the_wire(code: str, text: str, octets: bytes) -> None:
    assert declined_text(code, text) == octets
    assert read_declined(octets) == (code, text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"Declined",
        b"Declined: a: b",
        b"Declined ",
        b"Declined a b",
        b"Declined a:b",
        b"Declined a\n",
        b"Declined " + b"a" * 65,
        b"RuntimeError: Declined a: b",
        b"declined a: b",
    ],
)
def test_a_failures_text_is_no_such_form(text: bytes) -> None:
    assert read_declined(text) is None


def test_a_long_text_is_cut_and_keeps_its_code() -> None:
    octets = declined_text("a", "x" * 10_000)
    assert len(octets) == 4_096
    declined = read_declined(octets)
    assert declined is not None
    assert declined[0] == "a"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        *(
            ((code,), LocalProtocolError, "a code of Declined is 1 to 64 letters")
            for code in ("", "a b", "a:", "a" * 65, "a\n")
        ),
        ((5,), TypeError, "the code of Declined is a text, not int"),
        ((b"a",), TypeError, "the code of Declined is a text, not bytes"),
        (("a", 5), TypeError, "the text of Declined is a text, not int"),
        (("a", "b", object()), TypeError, "the data of Declined is what JSON can hold: .*object"),
        (("a", "b", {"a": object()}), TypeError, "the data of Declined is what JSON can hold: .*object"),
        (("a", "b", "\ud800"), TypeError, "the data of Declined is what JSON can hold: .*surrogates"),
        (("a", "b", "x" * 65_536), LocalProtocolError, "the data of Declined has more than"),
    ],
)
def test_what_cannot_be_sent_is_an_error_where_it_is_raised(
    arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Declined(*arguments)


# --- the worker ---------------------------------------------------------------------------------------------


def job_of(bench: NativeBench) -> Job:
    bench.connect(0)
    bench.request(0)
    [job] = bench.begun()
    return job


def test_the_worker_answers_and_has_room_again() -> None:
    bench = NativeBench()
    job = job_of(bench)
    [sent] = bench.core.failed(job, [TEXT, b"[7]"], bench.now, outcome="declined")
    assert isinstance(sent, Send)
    message = native.decode(sent.frames)
    assert (message.command, message.value, message.body) == (native.ERROR, 1, [TEXT, b"[7]"])
    assert (bench.core.counters.declined, bench.core.counters.failed) == (1, 0)
    assert bench.core.running == 0
    assert bench.core.failed(job, [TEXT], bench.now, outcome="declined") == []
    assert bench.core.counters.results_late == 1


def test_without_data_there_is_no_frame_for_it() -> None:
    assert frames_of(decline()) == [TEXT]


def test_a_plain_worker_sends_the_published_form() -> None:
    assert Mdp02Worker().failure(job_of(NativeBench()), ErrorCode.HANDLER_FAILED, TEXT, b"[7]")[-2:] == [
        b"500",
        TEXT,
    ]


# --- the broker ---------------------------------------------------------------------------------------------


class Ends:
    """An observer that keeps outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def ended(self, request: Accepted, outcome: str, epoch: int, reply: object, now: float) -> None:
        self.outcomes.append(outcome)

    def registered(self, worker: object, now: float) -> None:
        """It is of no interest."""


def error_frames(number: int, *behind: bytes, text: bytes = TEXT) -> list[bytes]:
    head = native.header(native.ERROR, identity=ident(number), epoch=7, value=ErrorCode.HANDLER_FAILED)
    return [head, text, *behind]


@pytest.mark.requirement("BSN-B-29")
def test_the_broker_passes_it_on_and_counts_it_apart() -> None:
    ends = Ends()
    desk = Desk(observer=ends)  # type: ignore[arg-type]  # as much of one as this needs
    desk.ready(b"w")
    desk.request(b"c", 1)
    [frames] = desk.send(b"w", *error_frames(1, b"[7]"))
    assert (frames[0], heard(frames).body) == (b"c", [TEXT, b"[7]"])
    tally = desk.ledger.services[b"echo"].tally
    assert (tally.declined, tally.failed, ends.outcomes) == (1, 0, ["declined"])


# --- the client ---------------------------------------------------------------------------------------------


def served_desk() -> ClientDesk:
    desk = ClientDesk()
    desk.connect(0, status(ACTIVE, peer=PASSIVE))
    return desk


def outcome_of(desk: ClientDesk, *frames: bytes) -> BstarError:
    call = desk.call()
    desk.hear(0, [b"", native.header(native.ERROR, identity=call.identity, epoch=1, value=1), *frames])
    return desk.error_of(call)


@pytest.mark.requirement("BSN-C-16")
def test_the_caller_gets_code_text_and_data() -> None:
    desk = served_desk()
    error = outcome_of(desk, TEXT, json.dumps({"sku": 7, "near": [6, None]}).encode())
    assert isinstance(error, DeclinedError)
    assert (error.code, error.text) == ("no-such-sku", "we do not sell 7")
    assert error.data == {"sku": 7, "near": [6, None]}
    assert str(error) == "no-such-sku: we do not sell 7"
    assert isinstance(error, HandlerError)
    assert error.may_have_executed
    assert (desk.session.counters.declined, desk.session.counters.failures) == (1, 0)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 60_000, b""])
def test_data_that_is_no_json_is_no_data(data: bytes) -> None:
    error = outcome_of(served_desk(), TEXT, data)
    assert isinstance(error, DeclinedError)
    assert error.data is None


def test_another_failure_is_none() -> None:
    error = outcome_of(served_desk(), b"KeyError: Declined a: b", b"[7]")
    assert type(error) is HandlerError
    assert error.text == "KeyError: Declined a: b"


# --- peers of the release before ----------------------------------------------------------------------------


def old_broker(frames: list[bytes]) -> list[bytes]:
    """What a broker that does not know the form makes of an ERROR: a new one with code and text."""
    message = native.decode(frames)
    asker = NativeAsker(b"c", message.identity)
    return CODEC.failure(asker, message.epoch, message.value, message.body[0])[1:]


def old_client(frames: list[bytes]) -> HandlerError:
    """What a client that does not know the form makes of an ERROR."""
    return HandlerError(native.decode(frames).body[0].decode())


def worker_says(data: bytes = b"[7]") -> list[bytes]:
    return NativeWorker().failure(job_of(NativeBench()), ErrorCode.HANDLER_FAILED, TEXT, data)


def test_an_old_broker_loses_only_the_data() -> None:
    desk = served_desk()
    error = outcome_of(desk, *old_broker(worker_says())[1:])
    assert isinstance(error, DeclinedError)
    assert (error.code, error.text, error.data) == ("no-such-sku", "we do not sell 7", None)


def test_an_old_client_sees_a_failure_that_says_it() -> None:
    assert old_client(worker_says()).text == "Declined no-such-sku: we do not sell 7"
    assert old_client(old_broker(worker_says())).text == "Declined no-such-sku: we do not sell 7"


def test_an_old_worker_never_says_it() -> None:
    """Its text begins with a type's name, and a colon."""
    assert read_declined(b"Declined: no-such-sku: we do not sell 7") is None


# --- durable requests ---------------------------------------------------------------------------------------


def dead(solo: SoloStore) -> Standing:
    solo.submit(ID, attempts_max=5)
    [job] = ready(solo)
    solo.say(*native.encode_error(job.identity, job.epoch, 1, TEXT, b"[7]"), sender=WORKER)
    return solo.status(ID)


def test_a_durable_request_is_dead_at_once_with_its_code() -> None:
    solo = SoloStore()
    standing = dead(solo)
    assert (standing.state, standing.attempts) == (State.DEAD, 1)
    store = solo.node.store
    assert store is not None
    assert store.state(solo.now).attempts["declined"] == 1
    before = len(solo.sent)
    solo.wait(120)
    assert jobs(solo.sent[before:]) == []


def test_its_dead_letter_says_so() -> None:
    solo = SoloStore()
    reply = Reply((durable.encode(dead(solo)),))
    status = read_status(reply, ID.hex())
    assert (status.cause, status.code, status.text) == ("declined", "no-such-sku", "we do not sell 7")
    with pytest.raises(DeadLetterError) as caught:
        Polls(ID.hex(), 0, 0.0).read(reply)
    error = caught.value
    assert (error.cause, error.code, error.text) == ("declined", "no-such-sku", "we do not sell 7")
    assert str(error).endswith("after 1 attempt: declined: no-such-sku: we do not sell 7")


def test_a_declined_one_may_be_tried_again_by_hand() -> None:
    solo = SoloStore()
    dead(solo)
    before = len(solo.sent)
    solo.ask(Service.RETRY, ID)
    assert len(jobs(solo.sent[before:])) == 1
    [answer] = solo.ask(Service.RESULT, durable.encode(Fetch(ID)))
    assert durable.decode(answer.body[0], Standing).text == ""


# --- handlers -----------------------------------------------------------------------------------------------


class Seen(WorkerHooks):
    """What the hooks hear."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def request_declined(self, worker: Any, request: Request, declined: Declined) -> None:
        self.heard.append(declined.code)

    def request_failed(self, worker: Any, request: Request, error: BaseException) -> None:
        self.heard.append(type(error).__name__)


class UnfinishedError(Declined):
    """Its author forgot the base."""

    def __init__(self) -> None:
        pass


def raising(error: Exception) -> Callable[[Request], Any]:
    def handle(request: Request) -> bytes:
        raise error

    return handle


def async_raising(error: Exception) -> Callable[[Request], Any]:
    async def handle(request: Request) -> bytes:
        await asyncio.sleep(0)
        raise error

    return handle


def yielding(error: Exception) -> Callable[[Request], Any]:
    def handle(request: Request) -> Iterator[bytes]:
        yield b"part"
        raise error

    return handle


CASES = [(Worker, raising), (Worker, yielding), (AsyncWorker, async_raising)]


@pytest.mark.loopback
@pytest.mark.parametrize(("kind", "handler_of"), CASES)
def test_what_a_handler_declines_is_no_failure_of_either_worker(
    kind: type, handler_of: Callable[[Exception], Callable[[Request], Any]], caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    with ScriptedBroker() as broker:
        desk = Handled(broker)
        with served(kind, broker.endpoint, handler_of(decline({"sku": 7})), hooks=seen):
            desk.ask(b"bad")
        [end] = desk.ends()
        assert isinstance(end, Failure)
        assert (end.text, end.is_declined, end.data) == (TEXT, True, b'{"sku":7}')
    assert seen.heard == ["no-such-sku"]
    warned = {record.name for record in caplog.records if record.levelname == "WARNING"}
    assert warned <= {_ENDPOINTS}, "of one endpoint, unless a command of this process has silenced that"


@pytest.mark.loopback
@pytest.mark.parametrize(("kind", "handler_of"), CASES)
def test_one_that_was_not_made_right_is_a_failure(
    kind: type, handler_of: Callable[[Exception], Callable[[Request], Any]]
) -> None:
    with ScriptedBroker() as broker:
        desk = Handled(broker)
        with served(kind, broker.endpoint, handler_of(UnfinishedError())):
            desk.ask(b"bad")
        [end] = desk.ends()
        assert isinstance(end, Failure)
        assert not end.is_declined
        assert end.text.startswith(b"UnfinishedError")


@pytest.mark.loopback
def test_a_server_without_a_broker_says_it_as_a_plain_worker_does() -> None:
    with LoopbackHost() as host:
        place = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        with FreelanceServer(raising(decline()), place), LazyPirateClient([place], timeout=30) as client:
            assert client.request(b"x").frames == (b"500", TEXT)


def test_an_error_with_a_code_can_be_caught_as_any_error_of_a_call() -> None:
    with pytest.raises(CallError):
        raise DeclinedError("a", "b")
    assert str(DeclinedError("a", "")) == "a"
    assert data_behind([]) == b""
