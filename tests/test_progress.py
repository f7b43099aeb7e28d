"""A handler says how far it is: what is sent of it, how often, and who learns it."""

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
from bstar.wire.messages import ALL_FEATURES, READS_PROGRESS, NodeStatus, Reason
from bstar.wire.native_broker import CODEC
from bstar.wire.progress import Progress, pack_progress, progress_of, unpack_progress
from bstar_broker.store.core.runner import identity_of
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, HandlerError, Request, Worker
from bstar_client.core.outputs import Report
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.progress import INTERVAL_S, Latest
from bstar_testing import Pair, fake
from support.client_desk import Desk as ClientDesk
from support.desk import Desk, heard, ident
from support.solo_store import SoloStore
from support.waiting import LIMIT_S
from support.work import asked
from support.worker_bench import ONE, NativeBench

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


class Studio(NativeBench):
    """A worker's core whose handler reports. ``told`` are the jobs that the shell would hand to the core."""

    def begin(self, node: int = 0, identity: bytes = ONE) -> Job:
        told = asked([b"body"], extensions=PROGRESS_EXTENSION)
        self.hear(node, CODEC.request(b"", (), told, identity, 0, 1, False))
        job = self.begun()[-1]
        job.latest = Latest(lambda job: self.take(self.core.progress(job, self.now)))
        return job

    def report(self, job: Job, done: float) -> None:
        assert job.latest is not None
        job.latest.put(job, Progress(done))

    def said(self, node: int = 0) -> list[float | str]:
        """The progress that was sent, and the commands of what ended requests."""
        said: list[float | str] = []
        for frames in self.frames(node):
            if frames[0][2] == native.PROGRESS:
                said.append(unpack_progress(frames[1:]).done)
            elif frames[0][2] in (native.FINAL, native.FINALS, native.ERROR):
                said.append("end")
        return said


@pytest.fixture
def studio() -> Studio:
    made = Studio(WorkerLimits(credit=4))
    made.connect(0, 1, expiry_ms=100_000)
    return made


@pytest.mark.requirement("BSN-W-22")
def test_the_first_value_leaves_at_once_and_the_last_of_a_flood_a_tenth_of_a_second_later(
    studio: Studio,
) -> None:
    job = studio.begin()
    for done in range(1_000):
        studio.report(job, done)
    assert studio.said() == [0]
    studio.wait(INTERVAL_S)
    assert studio.said() == [0, 999]
    studio.wait(10.0)
    assert studio.said() == [0, 999], "nothing is sent twice"


@pytest.mark.requirement("BSN-W-22")
def test_ten_a_second_leave_of_a_handler_that_reports_all_the_time(studio: Studio) -> None:
    job = studio.begin()
    for done in range(500):
        studio.report(job, done)
        studio.wait(0.01)
    assert 45 <= len(studio.said()) <= 51
    assert studio.said() == sorted(studio.said(), key=float)


@pytest.mark.requirement("BSN-W-22")
def test_a_handler_that_reports_seldom_is_heard_at_once_each_time(studio: Studio) -> None:
    job = studio.begin()
    for done in range(3):
        studio.report(job, done)
        assert studio.said() == list(range(done + 1))
        studio.wait(1.0)


@pytest.mark.requirement("BSN-W-22")
@pytest.mark.parametrize("end", ["finished", "finished together", "failed", "given up"])
def test_the_last_value_leaves_before_the_end(end: str) -> None:
    studio = Studio(WorkerLimits(credit=4, handler_timeout_s=0.05))
    studio.connect(0, expiry_ms=100_000)
    job = studio.begin()
    studio.report(job, 1)
    studio.report(job, 2)
    if end == "finished":
        studio.finish(job)
    elif end == "finished together":
        studio.take(studio.core.finished_all([(job, [b"done"])], studio.now))
    elif end == "failed":
        studio.take(studio.core.failed(job, [b"KeyError"], studio.now))
    else:
        studio.wait(0.06)
    assert studio.said() == [1, 2, "end"]
    studio.report(job, 3)
    studio.wait(1.0)
    assert studio.said() == [1, 2, "end"]


@pytest.mark.requirement("BSN-W-22")
def test_progress_goes_only_where_its_request_came_from(studio: Studio) -> None:
    job = studio.begin(node=1)
    studio.report(job, 1)
    studio.take(studio.core.disconnected(1, studio.now))
    studio.connect(1, expiry_ms=100_000)
    studio.wait(INTERVAL_S)
    studio.report(job, 2)
    studio.wait(INTERVAL_S)
    assert (studio.said(0), studio.said(1)) == ([], [1])


@pytest.mark.requirement("BSN-W-22")
def test_a_node_of_an_earlier_release_gets_no_progress() -> None:
    studio = Studio()
    studio.take(studio.core.connected(0, studio.now))
    told = NodeStatus(3, 1, 0, 0, 0, 100, 300, ALL_FEATURES & ~READS_PROGRESS)
    studio.hear(0, CODEC.welcome(b"", (), told, 25_000, 100_000))
    job = studio.begin()
    studio.report(job, 1)
    studio.wait(1.0)
    studio.finish(job)
    assert studio.said() == ["end"]


def test_nothing_more_is_sent_of_a_request_that_was_cancelled(studio: Studio) -> None:
    job = studio.begin()
    studio.hear(0, CODEC.cancel(b"", ONE, 1))
    studio.report(job, 1)
    assert studio.said() == []


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


def report(desk: Desk, worker: bytes, number: int, done: float) -> list[list[bytes]]:
    return desk.send(worker, *native.encode_progress(ident(number), 7, Progress(done, 10, "rows")))


@pytest.mark.requirement("BSN-B-30")
def test_progress_reaches_a_native_client_as_it_was_sent() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    told = native.encode_progress(ident(1), 7, Progress(3, 10, "rows"))
    assert desk.send(b"w", *told) == [[b"c", *told]]
    assert len(desk.final(b"w", 1)) == 1


@pytest.mark.requirement("BSN-B-30")
def test_progress_of_one_request_of_a_batch_reaches_its_client() -> None:
    desk = Desk()
    desk.ready(b"w", credit=4, takes_batches=True)
    desk.requests(b"c", [1, 2, 3])
    [told] = report(desk, b"w", 2, 1)
    assert (told[0], heard(told).identity) == (b"c", ident(2))


@pytest.mark.requirement("BSN-B-30")
def test_all_who_share_a_key_see_its_progress() -> None:
    desk = Desk(b"w")
    keyed = native.keyed_identity(b"echo", b"order 7")
    for client in (b"c", b"d"):
        desk.send(client, *native.encode_request(keyed, b"echo", [b"hi"]))
    told = desk.send(b"w", *native.encode_progress(keyed, 7, Progress(1)))
    assert sorted(frames[0] for frames in told) == [b"c", b"d"]


@pytest.mark.requirement("BSN-B-30")
def test_a_client_of_plain_mdp_gets_its_reply_alone() -> None:
    desk = Desk(b"w")
    [given] = desk.request02(b"c")
    told = native.encode_progress(heard(given).identity, 7, Progress(1))
    assert desk.send(b"w", *told) == []


@pytest.mark.requirement("BSN-B-30")
def test_progress_keeps_a_worker_and_extends_no_time_to_live() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1, ttl_ms=20_000)
    worker = desk.ledger.workers[b"w"]
    for _ in range(8):
        desk.wait(worker.lease.expiry_s * 0.9)
        report(desk, b"w", 1, 1)
    assert desk.ledger.workers == {b"w": worker}
    request = worker.in_flight[ident(1)]
    assert request.deadline == pytest.approx(20.0)


@pytest.mark.requirement("BSN-B-30")
def test_progress_of_what_its_client_gave_up_is_dropped_and_counted() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    desk.send(b"c", *native.encode_cancel(ident(1), 7))
    assert report(desk, b"w", 1, 1) == []
    assert desk.ledger.drops["late-progress"] == 1


def test_progress_of_a_request_that_the_worker_does_not_hold_ends_its_registration() -> None:
    desk = Desk()
    [told] = report(desk, b"w", 1, 1)
    assert (heard(told).command, heard(told).value) == (native.DISCONNECT, Reason.UNKNOWN)
    desk.ready(b"v")
    [told] = report(desk, b"v", 1, 1)
    assert (heard(told).command, heard(told).value) == (native.DISCONNECT, Reason.UNEXPECTED)


def test_progress_that_cannot_be_read_ends_the_registration_of_its_worker() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    head = native.header(native.PROGRESS, identity=ident(1), epoch=7)
    told = desk.send(b"w", head, b"?")
    assert heard(told[0]).value == Reason.INVALID


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


def told(desk: ClientDesk, node: int, identity: bytes, done: float = 1) -> list[Report]:
    frames = native.encode_progress(identity, 1, Progress(done))
    outputs = desk.session.receive(node, frames, desk.now)
    desk.take(outputs)
    return [output for output in outputs if isinstance(output, Report)]


@pytest.mark.requirement("BSN-C-17")
def test_a_caller_that_asked_is_told_and_no_other(served: ClientDesk) -> None:
    asker, other = served.call(), served.call()
    asker.on_progress = print
    assert told(served, 0, asker.identity) == [Report(asker, Progress(1))]
    assert told(served, 0, other.identity) == []
    served.final(0, asker)
    assert told(served, 0, asker.identity) == []


@pytest.mark.requirement("BSN-C-17")
def test_progress_counts_only_from_the_node_that_has_the_request_now(served: ClientDesk) -> None:
    call = served.call()
    call.on_progress = print
    assert told(served, 1, call.identity) == []
    served.fail_over()
    assert call.node == 1
    assert told(served, 0, call.identity) == []
    assert told(served, 1, call.identity) == [Report(call, Progress(1))]


@pytest.mark.requirement("BSN-C-17")
def test_callers_with_one_key_are_told_what_each_asked_for(served: ClientDesk) -> None:
    first, second, third = (served.call(key=b"order 7") for _ in range(3))
    first.on_progress = third.on_progress = print
    assert [output.call for output in told(served, 0, first.identity)] == [first, third]
    assert second.on_progress is None


def test_progress_that_cannot_be_read_is_counted(served: ClientDesk) -> None:
    call = served.call()
    head = native.header(native.PROGRESS, identity=call.identity, epoch=1)
    for body in ([], [b"?"]):
        served.take(served.session.receive(0, [head, *body], served.now))
    assert served.session.counters.messages_invalid == 2
    assert served.session.outstanding == 1


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
