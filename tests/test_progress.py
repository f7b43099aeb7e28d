"""A handler says how far it is, and who learns it.

The scripts of client, broker and worker have what is sent of it, and how often.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire import durable, native
from bstar.wire.durable import Service
from bstar.wire.extensions import PROGRESS_EXTENSION, headers_extensions, headers_of, wants_progress
from bstar.wire.progress import Progress, pack_progress, progress_of, unpack_progress
from bstar_broker.store.core.runner import identity_of
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, HandlerError, Request, Worker
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.progress import INTERVAL_S, Latest
from bstar_testing import Pair, fake
from support.solo_store import SoloStore
from support.waiting import LIMIT_S
from support.worker_bench import ONE

ID = bytes(range(16))

# --- what a handler may say ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ((3,), "3"),
        ((3, 10), "3 of 10"),
        ((0, 0), "0 of 0"),
        ((11, 10), "11 of 10"),
        ((0.5, 1, "half"), "0.5 of 1: half"),
        ((1_500_000, 3_000_000, "rows"), "1,500,000 of 3,000,000: rows"),
    ],
)
def test_a_progress_is_a_line_for_people_and_the_same_after_its_way(said: tuple[Any, ...], line: str) -> None:
    progress = progress_of(*said, *(None, "")[len(said) - 1 :])
    assert str(progress) == line
    assert unpack_progress(pack_progress(progress)) == progress


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ((-1,), LocalProtocolError, "done of a progress is a number of 0 or more, not -1"),
        ((math.nan,), LocalProtocolError, "not nan"),
        ((10**400,), LocalProtocolError, "not inf"),
        ((1, math.inf), LocalProtocolError, "total of a progress is a number of 0 or more, not inf"),
        ((1, -0.5), LocalProtocolError, "total"),
        ((True,), TypeError, "done of a progress is a number, not bool"),
        (("1",), TypeError, "not str"),
        ((1, "2"), TypeError, "total of a progress is a number, not str"),
        ((1, 2, b"row"), TypeError, "the text of a progress is a str, not bytes"),
        ((1, 2, "é" * 501), LocalProtocolError, "has 1002 bytes, more than 1000: shorten it"),
        ((1, 2, "\ud800"), LocalProtocolError, "cannot be written as UTF-8"),
    ],
)
def test_what_cannot_be_sent_is_an_error_in_the_handler_whoever_asks(
    said: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Request.of(b"").progress(*said)


@pytest.mark.requirement("BSN-G-21")
@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [bytes(7)],
        [bytes(12)],
        [bytes(24)],
        [bytes.fromhex("7ff8000000000000")],
        [bytes.fromhex("7ff0000000000000")],
        [bytes.fromhex("bff0000000000000")],
        [bytes(8) + bytes.fromhex("fff0000000000000")],
        [bytes(8), b"x" * 1_001],
    ],
)
def test_numbers_that_are_none_and_long_texts_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_progress(frames)


@pytest.mark.requirement("BSN-G-21")
def test_a_text_that_is_no_utf_8_is_read_as_far_as_it_goes_and_more_frames_are_ignored() -> None:
    assert unpack_progress([bytes(8), b"a\xff", b"more"]) == Progress(0, None, "a\ufffd")


@pytest.mark.requirement("BSN-C-17")
def test_who_wants_progress_says_so_beside_its_headers() -> None:
    extensions = headers_extensions({"tenant": "7"}) + PROGRESS_EXTENSION
    assert wants_progress(extensions)
    assert dict(headers_of(extensions)) == {"tenant": "7"}
    assert not wants_progress(headers_extensions({"tenant": "7"}))


# --- the worker ---------------------------------------------------------------------------------------------


def test_the_last_value_of_many_threads_is_never_left_behind() -> None:
    """The core clears its mark and takes the value while other threads report."""
    told: list[Job] = []
    job = Job(0, 1, ONE, [])
    job.latest = latest = Latest(told.append)
    for round_ in range(200):
        latest.is_told = False
        threads = [threading.Thread(target=latest.put, args=(job, Progress(round_))) for _ in range(4)]
        for thread in threads:
            thread.start()
        told.clear()
        while latest.take() is None and any(thread.is_alive() for thread in threads):
            pass
        latest.is_told = False
        for thread in threads:
            thread.join()
        assert not latest.values or latest.is_told, "a value is there and nobody was told"


# --- the node -----------------------------------------------------------------------------------------------


def work_on(solo: SoloStore, worker: bytes = b"w") -> native.Message:
    *_, given = solo.say(*native.encode_ready(b"work"), sender=worker)
    return native.decode(given[1:])


@pytest.mark.requirement("BSN-B-30")
def test_the_status_of_a_durable_request_has_the_last_progress_while_it_runs() -> None:
    solo = SoloStore()
    solo.submit(ID)
    given = work_on(solo)
    assert wants_progress(given.extensions)
    assert solo.status(ID).progress is None
    for done in (1, 2):
        solo.say(*native.encode_progress(given.identity, given.epoch, Progress(done, 3, "rows")), sender=b"w")
    assert solo.status(ID).progress == Progress(2, 3, "rows")
    solo.say(*native.encode_final(given.identity, given.epoch, 0, [b"done"]), sender=b"w")
    assert solo.status(ID).progress is None


@pytest.mark.requirement("BSN-B-30")
def test_the_next_execution_of_a_durable_request_reports_from_its_beginning() -> None:
    solo = SoloStore()
    solo.submit(ID)
    given = work_on(solo)
    solo.say(*native.encode_progress(given.identity, given.epoch, Progress(2)), sender=b"w")
    solo.say(*native.encode_disconnect(), sender=b"w")
    assert solo.status(ID).progress is None
    given = work_on(solo, b"v")
    solo.say(*native.encode_progress(given.identity, given.epoch, Progress(1)), sender=b"v")
    assert solo.status(ID).progress == Progress(1)


def test_the_status_page_has_the_progress_of_the_first_requests_that_report() -> None:
    solo = SoloStore()
    ids = [bytes(15) + bytes([number]) for number in range(1, 26)]
    for request in ids:
        solo.submit(request)
    *_, given = solo.say(*native.encode_ready(b"work", credit=30), sender=b"w")
    epoch = native.decode(given[1:]).epoch
    for request in ids[1:]:
        solo.say(*native.encode_progress(identity_of(request), epoch, Progress(1, 3, "rows")), sender=b"w")
    state = solo.node.state(solo.now).store
    assert state is not None
    assert [each.id for each in state.progress] == [request.hex() for request in ids[1:21]]
    assert (state.progress[0].service, state.progress[0].progress) == ("work", Progress(1, 3, "rows"))


def test_listed_requests_have_their_progress() -> None:
    solo = SoloStore()
    solo.submit(ID)
    given = work_on(solo)
    solo.say(*native.encode_progress(given.identity, given.epoch, Progress(2)), sender=b"w")
    [answer] = solo.ask(Service.LIST, durable.encode(durable.Filter()))
    listing = durable.decode(answer.body[0], durable.Listing)
    assert [standing.progress for standing in listing.standings] == [Progress(2)]


# --- the client ---------------------------------------------------------------------------------------------


def test_on_progress_is_a_plain_function_of_a_native_client() -> None:
    async def later(progress: Progress) -> None:
        """Nobody awaits it."""

    with fake({"work": lambda request: b""}) as client:
        with pytest.raises(TypeError, match="on_progress is a function, not int"):
            client.request("work", b"", on_progress=3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="a plain function, not an async one"):
            client.request("work", b"", on_progress=later)
    with (
        HAClient(["tcp://127.0.0.1:1"], dialect="mdp02") as plain,
        pytest.raises(LocalProtocolError, match=r"plain MDP has no progress"),
    ):
        plain.request("work", b"", on_progress=print)


def test_a_function_that_fails_ends_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def work(request: Request) -> bytes:
        request.progress(1, 2)
        return b"done"

    with fake({"work": work}) as client:
        assert client.request("work", b"", on_progress=lambda progress: 1 / 0).body == b"done"
    assert "an observer failed on Progress(done=1.0, total=2.0, text='')" in caplog.text


# --- all of them --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


@pytest.mark.loopback
def test_a_future_and_a_stream_tell_progress_while_the_handler_waits(pair: Pair) -> None:
    goes_on = threading.Event()

    def work(request: Request) -> Iterator[bytes]:
        yield b"first"
        helper = threading.Thread(target=request.progress, args=(1, 2, "from a thread of its own"))
        helper.start()
        helper.join()
        assert goes_on.wait(LIMIT_S)
        request.progress(2, 2)

    seen: list[Progress] = []

    def see(progress: Progress) -> None:
        seen.append(progress)
        goes_on.set()

    with Worker(pair.endpoints, "work", work), HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        for ask in (
            lambda: client.begin("work", b"", on_progress=see).result(),
            lambda: list(client.stream("work", b"", on_progress=see)),
        ):
            goes_on.clear()
            seen.clear()
            ask()
            assert seen == [Progress(1, 2, "from a thread of its own"), Progress(2, 2)]


@pytest.mark.loopback
async def test_an_async_handler_reports_from_its_loop_and_from_its_threads(pair: Pair) -> None:
    loop_seen, thread_seen, seen = asyncio.Event(), asyncio.Event(), []

    async def work(request: Request) -> bytes:
        request.progress(1, 3)
        await loop_seen.wait()
        await asyncio.to_thread(request.progress, 2, 3)
        await thread_seen.wait()
        request.progress(3, 3)
        raise ValueError("after all")

    def see(progress: Progress) -> None:
        seen.append(progress)
        (loop_seen if len(seen) == 1 else thread_seen).set()

    async with AsyncWorker(pair.endpoints, "later", work), AsyncHAClient(pair.endpoints) as client:
        with pytest.raises(HandlerError, match="after all"):
            await client.request("later", b"", timeout=LIMIT_S, on_progress=see)
    assert seen == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]


@pytest.mark.loopback
def test_a_handler_that_floods_its_caller_is_as_quick_as_one_that_reports_nothing(pair: Pair) -> None:
    """A hundred thousand reports are a few messages, and the reply comes."""
    seen: list[Progress] = []

    def work(request: Request) -> bytes:
        for done in range(100_000):
            request.progress(done, 100_000)
        return b"done"

    with Worker(pair.endpoints, "flood", work), HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        began_at = time.monotonic()
        client.request("flood", b"", on_progress=seen.append)
        took_s = time.monotonic() - began_at
    assert seen[-1] == Progress(99_999, 100_000)
    assert len(seen) <= took_s / INTERVAL_S + 2
