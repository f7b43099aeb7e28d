"""The journals of clients and workers: each end of a call and of a handler once, and no call pays for it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_type_hints
from zlib import crc32

import pytest

from bstar import records
from bstar.base.sampling import is_sampled, limit_of
from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    DeclinedError,
    HandlerError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    StreamInterruptedError,
)
from bstar.journal import JournalOptions, SegmentName
from bstar.journal.segments import Disk
from bstar.records import Base, Call, Execution, Record
from bstar.wire import native, native_broker
from bstar.wire.messages import ErrorCode, Ready, Request, StaleEpoch
from bstar.wire.native_broker import NativeAsker
from bstar_client import AsyncHAClient, CallFailed, HAClient, JournalSettings, Worker
from bstar_client import Request as Work
from bstar_client.journal import outcome_of
from support.scripted import WAIT_S, ScriptedBroker, final, partial, status
from support.work import asked

R = TypeVar("R", bound=Base)


def read(folder: Path) -> list[Record]:
    """All records of a folder, by process and number."""
    found = [records.decode(line) for line in lines(folder)]
    return sorted(found, key=lambda record: (record.boot, record.seq))


def lines(folder: Path) -> list[bytes]:
    """All lines of a folder."""
    found: list[bytes] = []
    for path in folder.iterdir():
        octets = path.read_bytes()
        found += (gzip.decompress(octets) if path.suffix == ".gz" else octets).splitlines()
    return found


def of(kind: type[R], folder: Path) -> list[R]:
    return [record for record in read(folder) if isinstance(record, kind)]


# --- outcomes -----------------------------------------------------------------------------------------------

ENDS: list[tuple[BstarError, str]] = [
    (DeclinedError("a", "b"), "declined"),
    (HandlerError("no"), "failed"),
    (BusyError("full"), "busy"),
    (RejectedError("bad", code=6), "rejected"),
    (NoActiveNodeError("none"), "no-active"),
    (CallTimeoutError("late", may_have_executed=True), "timeout"),
    (OutcomeUnknownError("lost"), "unknown"),
    (StreamInterruptedError("half"), "interrupted"),
    (ClosedError("closed"), "closed"),
]


@pytest.mark.parametrize(("error", "outcome"), ENDS, ids=[outcome for _, outcome in ENDS])
def test_every_error_of_a_call_has_an_outcome_of_its_own(error: BstarError, outcome: str) -> None:
    assert outcome_of(error) == outcome


def test_there_are_no_outcomes_but_those() -> None:
    told = {outcome for _, outcome in ENDS} | {"answered", "abandoned"}
    assert told == set(get_args(get_type_hints(Call)["outcome"]))


@pytest.mark.parametrize("pair", ["", ".hidden", "a/b", "x" * 65])
def test_a_pair_must_be_called_as_nodes_call_it(pair: str) -> None:
    with pytest.raises(ConfigurationError, match="pair"):
        JournalSettings("journal", pair=pair)


def in_vain(client: HAClient, error: type[BstarError]) -> threading.Thread:
    """A thread that makes a call which nobody answers."""

    def call() -> None:
        with pytest.raises(error):
            client.request("silent", b"")

    thread = threading.Thread(target=call)
    thread.start()
    return thread


# --- clients ------------------------------------------------------------------------------------------------


@pytest.mark.loopback
def test_each_call_is_recorded_once_as_it_ended(tmp_path: Path) -> None:
    def answer(request: Request) -> list[list[bytes]]:
        codec, sender, identity = native_broker.CODEC, request.sender, request.identity
        match request.service:
            case b"echo":
                return [partial(request, 0, b"12"), final(request, *request.body, partials=1, epoch=3)]
            case b"fail":
                return [codec.failure(NativeAsker(sender, identity), 3, ErrorCode.HANDLER_FAILED, b"no")]
            case b"reject":
                return [codec.failure(NativeAsker(sender, identity), 3, ErrorCode.INVALID, b"no")]
            case b"busy":
                return [codec.busy(NativeAsker(sender, identity), 3, 5, b"full")]
            case b"parts":
                return [partial(request, 0, b"12345")]
            case b"mmi.service":
                return [final(request, b"200", epoch=3)]
        return []

    with ScriptedBroker(status(epoch=3), on_request=answer) as broker:
        client = HAClient(
            broker.endpoint, timeout=WAIT_S, journal=JournalSettings(str(tmp_path), pair="shop", name="till")
        )
        with client:
            client.request("mmi.service", b"echo")
            client.request("echo", [b"abc", b"d"])
            with pytest.raises(HandlerError):
                client.request("fail", b"", idempotent=False)
            with pytest.raises(RejectedError):
                client.request("reject", b"")
            with pytest.raises(BusyError):
                client.request("busy", b"", timeout=1.0)
            with pytest.raises(CallTimeoutError):
                client.request("silent", b"", timeout=1.0)
            for _ in client.stream("parts", b""):
                break
            left = in_vain(client, OutcomeUnknownError)
            broker.wait_for(lambda: sum(each.service == b"silent" for each in broker.requests()) == 2)
        left.join(WAIT_S)
        asked = {
            (each.identity[:16].hex(), int.from_bytes(each.identity[16:], "big"))
            for each in broker.requests()
            if not each.service.startswith(b"mmi.")
        }

    calls = of(Call, tmp_path)
    assert {(call.client, call.number) for call in calls} == asked
    assert [(call.service, call.outcome) for call in calls] == [
        ("echo", "answered"),
        ("fail", "failed"),
        ("reject", "rejected"),
        ("busy", "busy"),
        ("silent", "timeout"),
        ("parts", "abandoned"),
        ("silent", "unknown"),
    ]
    answered, failed, _, busy, timed_out, abandoned, _ = calls
    assert (answered.bytes_in, answered.bytes_out, answered.reply_crc) == (4, 6, crc32(b"abcd"))
    assert (answered.epoch, answered.attempts, answered.is_idempotent) == (3, 1, True)
    assert {call.endpoint for call in calls} == {broker.endpoint}
    assert (failed.is_idempotent, failed.reply_crc) == (False, None)
    assert busy.busy >= 1
    assert busy.attempts >= 1
    assert timed_out.total_us >= 1_000_000
    assert abandoned.bytes_out == 5
    assert {(call.pair, call.node, call.boot) for call in calls} == {("shop", "till", calls[0].boot)}


@pytest.mark.loopback
def test_a_client_on_asyncio_keeps_the_same_journal(tmp_path: Path) -> None:
    def answer(request: Request) -> list[list[bytes]]:
        return [final(request, *request.body)] if request.service == b"echo" else []

    async def call(endpoint: str) -> None:
        async with AsyncHAClient(endpoint, timeout=WAIT_S, journal=tmp_path) as client:
            await client.request("echo", b"abc")
            given_up = asyncio.ensure_future(client.request("silent", b""))
            await asyncio.to_thread(broker.wait_for, lambda: len(broker.requests()) == 2)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            with pytest.raises(CallTimeoutError):
                await client.request("silent", b"", timeout=1.0)

    with ScriptedBroker(on_request=answer) as broker:
        asyncio.run(call(broker.endpoint))
    calls = of(Call, tmp_path)
    assert [call.outcome for call in calls] == ["answered", "abandoned", "timeout"]
    assert calls[0].reply_crc == crc32(b"abc")
    # A call that stands for itself alone says nothing of a weight.
    assert not [line for line in lines(tmp_path) if b'"weight"' in line]
    assert [type(record) for record in read(tmp_path)][-2:] == [records.Stopped, records.SegmentClosed]


@pytest.mark.loopback
def test_calls_that_never_left_are_told_apart(tmp_path: Path) -> None:
    """Refused by the client itself: they have numbers of their own, or they would seem to be one request."""
    with ScriptedBroker(on_request=lambda request: []) as broker:
        client = HAClient(broker.endpoint, timeout=WAIT_S, outstanding_max=1, journal=tmp_path)
        with client:
            waiting = in_vain(client, OutcomeUnknownError)
            broker.wait_for(lambda: len(broker.requests()) == 1)
            for _ in range(2):
                with pytest.raises(BusyError):
                    client.request("silent", b"")
        waiting.join(WAIT_S)
    ended = of(Call, tmp_path)
    assert len({(call.client, call.number) for call in ended}) == len(ended), "a call ends once"
    refused = [call for call in ended if call.outcome == "busy"]
    assert len({(call.client, call.number) for call in refused}) == 2
    assert {(call.attempts, call.endpoint) for call in refused} == {(0, "")}


@pytest.mark.loopback
@pytest.mark.parametrize("dialect", ["native", "mdp02"])
def test_a_call_that_waits_in_vain_for_a_full_client_is_recorded(
    tmp_path: Path, dialect: Literal["native", "mdp02"]
) -> None:
    async def work(endpoint: str) -> None:
        client = AsyncHAClient(endpoint, timeout=WAIT_S, outstanding_max=1, dialect=dialect, journal=tmp_path)
        async with client:
            held = asyncio.ensure_future(client.request("silent", b""))
            await asyncio.sleep(0)
            with pytest.raises(BusyError, match="outstanding_max") as caught:
                await client.request("silent", b"", timeout=0.01)
            assert caught.value.reason is None
            [failed] = [each async for each in client.map("silent", [b""], timeout=0.01, errors="return")]
            assert isinstance(failed, CallFailed)
            assert isinstance(failed.error, BusyError)
            held.cancel()
            await asyncio.wait([held])
            with pytest.raises(CallTimeoutError):  # a place is free again
                await client.request("silent", b"", timeout=0.01)

    with ScriptedBroker(on_request=lambda request: []) as broker:
        asyncio.run(work(broker.endpoint))
    ended = of(Call, tmp_path)
    assert [call.outcome for call in ended][:3] == ["busy", "busy", "abandoned"]
    assert len({(call.client, call.number) for call in ended}) == len(ended) == 4


@pytest.mark.loopback
def test_a_client_tells_which_node_it_follows(tmp_path: Path) -> None:
    with ScriptedBroker() as first, ScriptedBroker(status(4, retry_after_ms=0)) as second:
        second.is_promoted_by_votes = True
        with HAClient([first.endpoint, second.endpoint], timeout=WAIT_S, journal=tmp_path) as client:
            assert client.request("echo", b"1").endpoint == first.endpoint
            first.close()
            assert client.request("echo", b"2").endpoint == second.endpoint
    kinds = [type(record) for record in read(tmp_path)]
    assert kinds[0] is records.Started
    assert kinds[-2:] == [records.Stopped, records.SegmentClosed]
    [started] = of(records.Started, tmp_path)
    assert (started.source, started.endpoints) == ("client", f"{first.endpoint},{second.endpoint}")
    assert {each.endpoint for each in of(records.Connected, tmp_path)} == {first.endpoint, second.endpoint}
    [found] = of(records.ActiveFound, tmp_path)
    [lost] = of(records.ActiveLost, tmp_path)
    [over] = of(records.FailedOver, tmp_path)
    assert found.endpoint == lost.endpoint == over.from_endpoint == first.endpoint
    assert over.endpoint == second.endpoint
    assert found.mono < lost.mono < over.mono
    # The gap began no later than its record was made, and ended no later than the next one was.
    assert 0 < over.gap_us <= over.mono - found.mono


@pytest.mark.loopback
def test_a_plain_client_invents_no_identity_that_could_be_anothers(tmp_path: Path) -> None:
    with ScriptedBroker() as broker:
        broker.on_frames = lambda frames: [[frames[0], b"MDPC02", b"\x03", frames[3], *frames[4:]]]
        for _ in range(2):
            with HAClient(broker.endpoint, dialect="mdp02", timeout=WAIT_S, journal=tmp_path) as client:
                for body in (b"1", b"2"):
                    assert client.request("echo", body).body == body
    calls = of(Call, tmp_path)
    assert len({(call.client, call.number) for call in calls}) == len(calls) == 4
    assert all(call.client.startswith("mdp-") and call.outcome == "answered" for call in calls)


@pytest.mark.loopback
def test_several_in_one_process_share_a_directory(tmp_path: Path) -> None:
    with ScriptedBroker() as broker:
        clients = [HAClient(broker.endpoint, timeout=WAIT_S, journal=tmp_path) for _ in range(3)]
        for number, client in enumerate(clients):
            list(client.map("echo", [b"x"] * (number + 1)))
        for client in clients:
            client.close()
    files = [SegmentName.parse(path.name) for path in tmp_path.iterdir()]
    assert len(files) == 3
    assert all(name is not None and name.suffix == ".gz" for name in files)
    calls = of(Call, tmp_path)
    by_client = {call.client: sum(each.client == call.client for each in calls) for call in calls}
    assert sorted(by_client.values()) == [1, 2, 3]
    assert len({call.boot for call in calls}) == 3


@pytest.mark.loopback
def test_a_sample_is_chosen_by_identity(tmp_path: Path) -> None:
    with ScriptedBroker() as broker:
        journal = JournalSettings(str(tmp_path), sample=0.25)
        with HAClient(broker.endpoint, timeout=WAIT_S, journal=journal) as client:
            list(client.map("echo", [b"x"] * 256))
        wanted = {
            int.from_bytes(each.identity[16:], "big")
            for each in broker.requests()
            if is_sampled(each.identity, limit_of(0.25))
        }
    calls = of(Call, tmp_path)
    assert {call.number for call in calls} == wanted
    assert {call.weight for call in calls} == {4.0}


# --- a journal in trouble -----------------------------------------------------------------------------------


@pytest.mark.loopback
def test_a_full_disk_costs_records_and_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedBroker() as broker:
        journal = JournalSettings(str(tmp_path), close_timeout_s=0.1)
        with HAClient(broker.endpoint, timeout=WAIT_S, journal=journal) as client:
            client.request("echo", b"1")

            def write(self: Disk, descriptor: int, data: bytes | memoryview) -> int:
                raise OSError(errno.ENOSPC, "no space left")

            monkeypatch.setattr(Disk, "write", write)
            assert [reply.body for reply in client.map("echo", [b"2"] * 100)] == [b"2"] * 100
    assert not client._loop._thread.is_alive()


@pytest.mark.loopback
def test_a_directory_that_cannot_be_is_told_before_anything_runs(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match="journal"):
        HAClient("tcp://127.0.0.1:9", journal=in_the_way / "journal")
    worker = Worker("tcp://127.0.0.1:9", "echo", lambda request: b"", journal=in_the_way / "journal")
    with pytest.raises(ConfigurationError, match="journal"):
        worker.run()
    assert threading.active_count() == before
    with pytest.raises(ConfigurationError, match="name"):
        HAClient("tcp://127.0.0.1:9", journal=JournalSettings(str(tmp_path), name="with.dots"))


# --- workers ------------------------------------------------------------------------------------------------


def dispatch(
    broker: ScriptedBroker, number: int, body: bytes, *, epoch: int = 1, again: bool = False
) -> None:
    broker.wait_for(lambda: bool(broker.received(Ready)))
    sender = broker.received(Ready)[-1].sender
    identity = native.identity(b"c" * 16, number)
    broker.send(native_broker.CODEC.request(sender, (), asked([body]), identity, 0, epoch, again))


def wait_executed(worker: Worker, count: int) -> None:
    until = time.monotonic() + WAIT_S
    while worker.counters.finished + worker.counters.failed < count:
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.mark.loopback
def test_each_execution_is_recorded_once_as_it_ended(tmp_path: Path) -> None:
    def handle(work: Work) -> object:
        if work.body == b"fail":
            raise ValueError("no")
        if work.body == b"parts":
            return parts()
        return [work.body, b"!"]

    def parts() -> Generator[bytes, None, bytes]:
        yield b"123"
        return b"4"

    journal = JournalSettings(str(tmp_path), name="w1")
    with ScriptedBroker() as broker, Worker(broker.endpoint, "echo", handle, journal=journal) as worker:  # type: ignore[arg-type]  # several types
        for number, body in enumerate((b"plain", b"fail", b"parts"), start=1):
            dispatch(broker, number, body, again=number == 1)
            wait_executed(worker, number)
        dispatch(broker, 4, b"newer", epoch=5)
        wait_executed(worker, 4)
        dispatch(broker, 5, b"stale", epoch=4)
        broker.wait_for(lambda: bool(broker.received(StaleEpoch)))

    executions = of(Execution, tmp_path)
    assert [(each.number, each.outcome, each.is_repeated) for each in executions] == [
        (1, "answered", True),
        (2, "failed", False),
        (3, "answered", False),
        (4, "answered", False),
    ]
    plain, failed, parted, newer = executions
    assert {each.client for each in executions} == {(b"c" * 16).hex()}
    assert (plain.bytes_in, plain.bytes_out, plain.reply_crc) == (5, 6, crc32(b"plain!"))
    assert (failed.bytes_out, failed.reply_crc) == (0, None)
    assert (parted.bytes_out, parted.reply_crc) == (4, crc32(b"4"))
    assert (newer.epoch, newer.endpoint, newer.service) == (5, broker.endpoint, "echo")
    [fenced] = of(records.Fenced, tmp_path)
    assert (fenced.number, fenced.epoch, fenced.epoch_seen) == (5, 4, 5)
    assert [each.endpoint for each in of(records.Registered, tmp_path)] == [broker.endpoint]
    [stopped] = of(records.Stopped, tmp_path)
    assert stopped.reason == "stopped"


@pytest.mark.loopback
def test_a_handler_that_was_given_up_is_recorded_once(tmp_path: Path) -> None:
    """Its thread comes back later, and that is not another execution."""
    may_return = threading.Event()

    def handle(work: Work) -> bytes:
        may_return.wait(WAIT_S)
        return b"late"

    with (
        ScriptedBroker() as broker,
        Worker(broker.endpoint, "slow", handle, handler_timeout_s=0.05, journal=tmp_path) as worker,
    ):
        dispatch(broker, 1, b"x")
        until = time.monotonic() + WAIT_S
        while not worker.counters.timed_out:
            assert time.monotonic() < until
            time.sleep(0.002)
        may_return.set()
        while not worker.counters.results_late:
            assert time.monotonic() < until
            time.sleep(0.002)
    [execution] = of(Execution, tmp_path)
    assert (execution.outcome, execution.reply_crc) == ("stuck", None)
    # Its thread may have started late, and its time counts from then.
    assert execution.busy_us > 0


@pytest.mark.loopback
def test_a_handler_that_the_end_did_not_wait_for_is_recorded(tmp_path: Path) -> None:
    may_return, has_begun = threading.Event(), threading.Event()

    def handle(work: Work) -> bytes:
        has_begun.set()
        may_return.wait(WAIT_S)
        return b""

    try:
        with (
            ScriptedBroker() as broker,
            Worker(broker.endpoint, "slow", handle, drain_timeout_s=0.05, journal=tmp_path),
        ):
            dispatch(broker, 1, b"x")
            assert has_begun.wait(WAIT_S)
    finally:
        may_return.set()
    assert [(each.number, each.outcome) for each in of(Execution, tmp_path)] == [(1, "stuck")]


def test_the_settings_are_those_of_every_journal() -> None:
    settings = JournalSettings("journal", rotate_s=10)
    assert isinstance(settings, JournalOptions)
    assert (settings.directory, settings.rotate_s, settings.pair) == ("journal", 10, "bstar")
