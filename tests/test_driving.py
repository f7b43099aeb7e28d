"""Who takes the client's turns: the threads that wait, one at a time, and the watcher when none does."""

from __future__ import annotations

import dis
import errno
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, Self

import pytest
import zmq

from bstar.errors import BstarError, ClosedError, LocalProtocolError, OutcomeUnknownError
from bstar.wire.messages import Request
from bstar_client import Disconnected, Event, HAClient, Reply
from bstar_client.core import nodes
from bstar_client.core.calls import Outcome
from bstar_client.links.link import Link
from bstar_client.sync import client_loop as driving
from support.scripted import WAIT_S, ScriptedBroker, echo, final, partial

pytestmark = pytest.mark.loopback


class Holding:
    """Answers at once, but what is for ``held`` when ``answer`` is called."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.held: dict[bytes, Request] = {}
        broker.on_request = self.take

    def take(self, request: Request) -> list[list[bytes]]:
        if request.service != b"held":
            return echo(request)
        self.held[request.identity] = request
        return []

    def wait_for(self, count: int) -> None:
        self.broker.wait_for(lambda: len(self.held) == count)

    def answer(self, body: bytes) -> None:
        identity = next(key for key, request in self.held.items() if request.body == [body])
        self.broker.send(final(self.held.pop(identity), b"answer to " + body))


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def holding(broker: ScriptedBroker) -> Holding:
    return Holding(broker)


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[HAClient]:
    with HAClient(broker.endpoint, timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def asked(pool: ThreadPoolExecutor, client: HAClient, holding: Holding, body: bytes) -> Future[Reply]:
    """A request for ``held`` of another thread, which the broker has."""
    before = len(holding.held)
    future = pool.submit(client.request, "held", body)
    holding.wait_for(before + 1)
    return future


def test_a_quick_reply_does_not_wait_for_a_slow_one_of_the_thread_that_leads(
    client: HAClient, holding: Holding, pool: ThreadPoolExecutor
) -> None:
    slow = asked(pool, client, holding, b"slow")
    for number in range(20):
        assert client.request("echo", b"%d" % number).body == b"%d" % number
    assert not slow.done()
    holding.answer(b"slow")
    assert slow.result(WAIT_S).body == b"answer to slow"


def test_the_lead_is_passed_on_to_those_who_still_wait(
    client: HAClient, holding: Holding, pool: ThreadPoolExecutor
) -> None:
    for order in itertools.permutations([b"a", b"b", b"c"]):
        waiting = {body: asked(pool, client, holding, body) for body in (b"a", b"b", b"c")}
        for body in order:
            holding.answer(body)
            assert waiting[body].result(WAIT_S).body == b"answer to " + body


def test_a_thread_that_gives_up_takes_nobody_along(
    client: HAClient, holding: Holding, pool: ThreadPoolExecutor
) -> None:
    hasty = pool.submit(client.request, "held", b"hasty", timeout=2.0)
    patient = pool.submit(client.request, "held", b"patient")
    holding.wait_for(2)
    with pytest.raises(BstarError):
        hasty.result(WAIT_S)
    holding.answer(b"patient")
    assert patient.result(WAIT_S).body == b"answer to patient"


def test_a_stream_that_nobody_reads_is_sent_and_collected(client: HAClient, broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [partial(request, 0, b"part"), final(request, b"end", partials=1)]
    replies = client.stream("stream", b"")
    broker.wait_for(lambda: len(broker.requests()) == 1)
    assert [reply.body for reply in replies] == [b"part", b"end"]


def test_a_stream_that_begins_as_the_leader_leaves_is_sent(
    broker: ScriptedBroker, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found a leader, which did not look again, and went out with the next PING."""
    monkeypatch.setattr(nodes, "IDLE_PING_INTERVAL_S", 1e6)
    monkeypatch.setattr(driving, "_LOOK_S", 0.001)
    leading, is_begun = threading.Event(), threading.Event()

    def leave() -> bool:
        leading.set()
        assert is_begun.wait(WAIT_S)
        return False

    with HAClient(broker.endpoint, timeout=WAIT_S) as client:
        loop = client._loop
        assert client.request("echo", b"").body == b""
        asleep = threading.Event()
        for _ in range(int(WAIT_S * 1000)):
            if loop._standby_until:
                break
            asleep.wait(0.001)
        left = pool.submit(loop._lead_while, leave)
        assert leading.wait(WAIT_S)
        client.stream("echo", b"now")
        is_begun.set()
        assert left.result(WAIT_S)
        broker.wait_for(lambda: len(broker.requests()) == 2)


def test_while_nobody_waits_the_nodes_are_still_watched(broker: ScriptedBroker) -> None:
    heard = threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, Disconnected) and event.reason == "broken":
            heard.set()

    with HAClient(broker.endpoint, timeout=WAIT_S, on_event=note) as client:
        assert client.request("echo", b"well").body == b"well"
        broker.close()
        assert heard.wait(WAIT_S)


def test_a_watcher_that_has_stopped_looking_comes_back(
    broker: ScriptedBroker, holding: Holding, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "_LOOK_S", 0.001)
    heard = threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, Disconnected) and event.reason == "broken":
            heard.set()

    with HAClient(broker.endpoint, timeout=WAIT_S, on_event=note) as client:
        loop = client._loop
        pause = threading.Event()
        is_parked = False
        while not is_parked:
            long = asked(pool, client, holding, b"long")
            # If the watcher was just at work it leads, for the caller waits; then once more.
            while not (is_parked := loop._lead.is_unwatched) and not client._delivery.waiting:
                pause.wait(0.001)
            holding.answer(b"long")
            assert long.result(WAIT_S).body == b"answer to long"
        broker.close()
        assert heard.wait(WAIT_S)


def test_an_observer_that_waits_for_its_client_is_told_so(broker: ScriptedBroker) -> None:
    raised: list[BaseException] = []
    told = threading.Event()

    made = threading.Event()

    def observe(event: Event) -> None:
        assert made.wait(WAIT_S)
        try:
            its_client.request("echo", b"from within")
        except LocalProtocolError as error:
            raised.append(error)
            told.set()

    with HAClient(broker.endpoint, timeout=WAIT_S, on_event=observe) as its_client:
        made.set()
        assert its_client.request("echo", b"from without").body == b"from without"
        assert told.wait(WAIT_S)
    assert raised


def test_closing_ends_those_who_lead_and_those_who_follow(
    client: HAClient, holding: Holding, pool: ThreadPoolExecutor
) -> None:
    waiting = [asked(pool, client, holding, body) for body in (b"a", b"b", b"c")]
    client.close()
    for future in waiting:
        with pytest.raises(OutcomeUnknownError):
            future.result(WAIT_S)
    with pytest.raises(ClosedError):
        client.request("echo", b"")


def test_an_observer_may_close_the_client(broker: ScriptedBroker) -> None:
    made = threading.Event()

    def close(event: Event) -> None:
        assert made.wait(WAIT_S)
        its_client.close()

    its_client = HAClient(broker.endpoint, timeout=WAIT_S, on_event=close)
    made.set()
    for _ in range(2):
        with pytest.raises((ClosedError, OutcomeUnknownError)):
            its_client.request("echo", b"")
    its_client.close()
    assert not its_client._loop._thread.is_alive()


def test_sockets_that_fail_are_made_anew(client: HAClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.request("echo", b"before").body == b"before"
    send = Link.send

    def fail_once(link: Link, frames: list[bytes]) -> None:
        monkeypatch.setattr(Link, "send", send)
        raise zmq.ZMQError(24)

    monkeypatch.setattr(Link, "send", fail_once)
    assert client.request("echo", b"after").body == b"after"


def test_sockets_that_fail_for_ever_end_the_client(
    client: HAClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.request("echo", b"before").body == b"before"

    def fail(*_: object) -> None:
        raise zmq.ZMQError(24)

    monkeypatch.setattr(Link, "send", fail)
    monkeypatch.setattr(Link, "open", fail)
    with pytest.raises((ClosedError, OutcomeUnknownError)):
        client.request("echo", b"after")
    with pytest.raises(ClosedError):
        client.request("echo", b"and once more")
    assert "defect" in caplog.text


def test_map_takes_what_is_told_twice_for_one(client: HAClient) -> None:
    put = client._delivery._put

    def put_twice(sink: driving.Sink, *outcomes: Outcome) -> None:
        put(sink, *outcomes)
        put(sink, *outcomes)

    client._delivery._put = put_twice  # type: ignore[method-assign]  # that is the point
    bodies = [b"%d" % number for number in range(50)]
    assert [reply.body for reply in client.map("echo", bodies, window=7)] == bodies


# --- the end ------------------------------------------------------------------------------------------------


def test_a_leader_that_is_interrupted_to_close_the_client_does_not_wait_for_itself(
    broker: ScriptedBroker,
    client: HAClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a handler of SIGTERM: it waited for five seconds, and the log blamed an observer."""
    links = client._loop._delivery.links
    broker.on_request = lambda request: []
    wait = links.wait

    def interrupted(timeout_ms: int) -> None:
        if broker.requests() and client._loop._lead.is_here():
            client.close()
        wait(timeout_ms)

    monkeypatch.setattr(links, "wait", interrupted)
    with pytest.raises(OutcomeUnknownError, match="closed"):
        client.request("held", b"")
    client._loop._thread.join(WAIT_S)
    assert not client._loop._thread.is_alive()
    assert "did not end" not in caplog.text


def test_a_signal_handler_may_close_a_client_that_is_being_closed(
    client: HAClient, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a lock that its own thread held."""
    stop, interrupts = client._loop.stop, [client.close]

    def interrupted() -> None:
        stop()
        if interrupts:
            interrupts.pop()()

    monkeypatch.setattr(client._loop, "stop", interrupted)
    pool.submit(client.close).result(WAIT_S)
    assert not client._loop._thread.is_alive()


def test_a_fleet_whose_sockets_cannot_be_opened_ends_its_calls(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end began with new sockets, and its callers waited for ever."""

    def refuse(link: Link) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(Link, "open", refuse)
    with HAClient([[f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"] for port in (1, 3)]) as client:
        asked = pool.submit(client.request, "echo", b"", timeout=None)
        with pytest.raises(ClosedError):
            asked.result(WAIT_S)


# --- interruptions ------------------------------------------------------------------------------------------

# After these the interpreter looks for signals; nowhere else.
_SIGNAL_POINTS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


class Interruption:
    """Raises KeyboardInterrupt in this thread at the ``number``-th point where Ctrl-C could."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.passed = 0
        self._before: dict[FrameType, int] = {}

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:  # as sys.settrace has it
        if not frame.f_globals.get("__name__", "").startswith("bstar"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            if before is not None and _opname(frame, before) in _SIGNAL_POINTS:
                self.passed += 1
                if self.passed == self.number:
                    raise KeyboardInterrupt
        elif event == "return":
            self._before.pop(frame, None)
        return self._trace


def _opname(frame: FrameType, offset: int) -> str:
    return dis.opname[frame.f_code.co_code[offset]]


def test_an_interruption_anywhere_costs_nobody_else_a_reply(
    broker: ScriptedBroker, client: HAClient, pool: ThreadPoolExecutor
) -> None:
    """The main thread leads, another one waits for its reply, and Ctrl-C comes at any point of a turn."""
    held: list[Request] = []
    comes = threading.Semaphore(0)

    def answer(request: Request) -> list[list[bytes]]:
        if request.service == b"led":
            held.append(request)
            comes.release()
            return []
        answers = echo(request) + [final(each, *each.body) for each in held]
        held.clear()
        return answers

    broker.on_request = answer

    def follow(number: int) -> Reply:
        assert comes.acquire(timeout=WAIT_S)
        return client.request("echo", b"%d" % number)

    interrupted = shorter = 0
    for number in itertools.count(1):
        follower = pool.submit(follow, number)
        interruption = Interruption(number)
        try:
            with interruption:
                assert client.request("led", b"mine").body == b"mine"
        except KeyboardInterrupt:
            interrupted += 1
            comes.release()  # it may not have been sent
        assert follower.result(WAIT_S).body == b"%d" % number
        comes = threading.Semaphore(0)
        # Once alone the standby may have led, so that the main thread passed few points.
        shorter = shorter + 1 if interruption.passed < number else 0
        if shorter == 3:
            break
    assert interrupted > 100
    assert client.request("echo", b"and after all").body == b"and after all"
    settled = threading.Event()
    until = time.monotonic() + WAIT_S
    while client._delivery.open and time.monotonic() < until:
        settled.wait(0.001)
    assert not client._delivery.open
