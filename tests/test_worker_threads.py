"""Who runs a worker's handlers, and that nobody waits for one that lasts: over real sockets."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import pytest

from bstar.errors import WorkerError
from bstar.security import Security, new_key
from bstar.wire import native, native_broker
from bstar.wire.messages import Disconnect, ErrorCode, Failure, Final, Heartbeat, Partial, Ready
from bstar_client import HAClient, Request, Worker, WorkerHooks
from bstar_client.core.worker.outputs import Lost, Registered
from bstar_testing import wait_until
from support.brokers import lone_broker
from support.scripted import WAIT_S, ScriptedBroker
from support.work import asked

pytestmark = pytest.mark.loopback


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


class Desk:
    """Gives the worker that registered requests, and knows what came of them."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self._numbers = count(1)

    @property
    def worker(self) -> bytes:
        self.broker.wait_for(lambda: bool(self.broker.received(Ready)))
        return self.broker.received(Ready)[-1].sender

    def give(self, *bodies: bytes, client: bytes = b"c" * 16) -> None:
        worker = self.worker
        for body in bodies:
            identity = native.identity(client, next(self._numbers))
            self.broker.send(native_broker.CODEC.request(worker, (), asked([body]), identity, 0, 1, False))

    def finals(self) -> list[bytes]:
        return [message.body[0] for message in self.broker.messages if isinstance(message, Final)]

    def failures(self) -> list[tuple[int, bytes]]:
        return [(m.code, m.text) for m in self.broker.messages if isinstance(m, Failure)]

    def wait_for(self, *bodies: bytes) -> None:
        """Until exactly these were answered, in any order."""
        self.broker.wait_for(lambda: len(self.finals()) >= len(bodies))
        assert sorted(self.finals()) == sorted(bodies)


@pytest.fixture
def desk(broker: ScriptedBroker) -> Desk:
    return Desk(broker)


class Blocking:
    """A handler: quick, but for the bodies that begin with ``slow``, which last until ``go_on`` is set."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.go_on = threading.Event()
        self.threads: list[int] = []

    def __call__(self, request: Request) -> bytes:
        self.threads.append(threading.get_ident())
        if request.body.startswith(b"slow"):
            self.has_begun.set()
            assert self.go_on.wait(WAIT_S)
        return request.body


@pytest.fixture
def handler() -> Iterator[Blocking]:
    handler = Blocking()
    yield handler
    handler.go_on.set()


def heard_of(broker: ScriptedBroker) -> None:
    """Wait until the worker has answered to three heartbeats with heartbeats of its own."""
    for _ in range(3):
        before = len(broker.received(Heartbeat))
        broker.wait_for(lambda before=before: len(broker.received(Heartbeat)) > before)  # type: ignore[misc]


def test_one_thread_runs_all_handlers_however_long_they_take_and_it_is_not_the_caller_of_run(
    desk: Desk, handler: Blocking
) -> None:
    worker = Worker(desk.broker.endpoint, "echo", handler, credit=5, threads=1)

    def drive() -> None:
        desk.give(b"a", b"b")
        desk.wait_for(b"a", b"b")
        desk.give(b"slow", b"c")
        assert handler.has_begun.wait(WAIT_S)
        heard_of(desk.broker)
        handler.go_on.set()
        desk.wait_for(b"a", b"b", b"slow", b"c")
        for number in range(40):
            desk.give(b"%d" % number)
            desk.broker.wait_for(lambda number=number: len(desk.finals()) == 5 + number)  # type: ignore[misc]
        worker.stop()

    driver = threading.Thread(target=drive)
    driver.start()
    worker.run()
    driver.join(WAIT_S)
    assert desk.finals()[:4] == [b"a", b"b", b"slow", b"c"]
    assert len(handler.threads) == 44
    assert len(set(handler.threads)) == 1
    assert threading.get_ident() not in handler.threads


def test_a_node_does_not_give_up_a_worker_whose_handler_lasts(tmp_path: Path, handler: Blocking) -> None:
    """Several times the expiry of the profile, 300 ms, after requests that were quick."""
    lost: list[str] = []

    class Hooks(WorkerHooks):
        def lost(self, worker: Worker, endpoint: str, reason: str) -> None:
            lost.append(reason)

    with (
        lone_broker(tmp_path) as broker,
        Worker(broker.endpoint, "echo", handler, hooks=Hooks()) as worker,
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
    ):
        for _ in range(20):
            client.request("echo", b"quick")
        replies: list[bytes] = []
        caller = threading.Thread(target=lambda: replies.append(client.request("echo", b"slow").body))
        caller.start()
        assert handler.has_begun.wait(WAIT_S)
        for _ in range(8):
            assert client.discover("echo")
            threading.Event().wait(0.25)
        handler.go_on.set()
        caller.join(WAIT_S)
        assert replies == [b"slow"]
        assert worker.counters.registrations == 1
    assert lost == []


def test_replies_of_other_threads_are_sent_while_a_handler_lasts(desk: Desk, handler: Blocking) -> None:
    with Worker(desk.broker.endpoint, "echo", handler, threads=3):
        desk.give(b"a")
        desk.wait_for(b"a")
        desk.give(b"slow", b"b")
        assert handler.has_begun.wait(WAIT_S)
        desk.wait_for(b"a", b"b")
        desk.give(b"c")
        desk.wait_for(b"a", b"b", b"c")
        handler.go_on.set()
        desk.wait_for(b"a", b"b", b"c", b"slow")


@pytest.mark.parametrize("options", [{"threads": 3}, {"credit": 3}, {"credit": 9, "threads": 3}])
def test_as_many_handlers_run_at_once_as_there_are_threads(desk: Desk, options: dict[str, int]) -> None:
    """Even if each waits for all others, and requests were quick until now."""
    all_here = threading.Barrier(3)

    def meet(request: Request) -> bytes:
        if request.body == b"meet":
            all_here.wait(WAIT_S)
        return request.body

    with Worker(desk.broker.endpoint, "echo", meet, **options):  # type: ignore[arg-type]
        desk.give(b"quick")
        desk.wait_for(b"quick")
        for times in (1, 2):
            desk.give(b"meet", b"meet", b"meet")
            desk.wait_for(b"quick", *[b"meet"] * 3 * times)


def test_a_handler_may_ask_its_own_service(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker, HAClient(broker.endpoint, timeout=WAIT_S) as client:

        def ask(request: Request) -> bytes:
            level = int(request.body)
            return b"%d" % level + (client.request("ask", b"%d" % (level - 1)).body if level else b"")

        with Worker(broker.endpoint, "ask", ask, threads=4):
            assert [client.request("ask", b"3").body for _ in range(5)] == [b"3210"] * 5


def test_a_handler_that_is_given_up_is_replaced_and_its_late_end_changes_nothing(
    desk: Desk, handler: Blocking
) -> None:
    with Worker(desk.broker.endpoint, "echo", handler, handler_timeout_s=0.1) as worker:
        desk.give(b"a")
        desk.wait_for(b"a")
        desk.give(b"slow")
        desk.broker.wait_for(lambda: len(desk.failures()) == 1)
        assert desk.failures()[0][0] == ErrorCode.HANDLER_TIMEOUT
        desk.give(b"b")
        desk.wait_for(b"a", b"b")
        handler.go_on.set()
        wait_until(lambda: worker.counters.results_late == 1, "the late end is noticed")
        for number in range(20):
            desk.give(b"%d" % number)
            desk.broker.wait_for(lambda number=number: len(desk.finals()) == 3 + number)  # type: ignore[misc]
    first, given_up, *others = handler.threads
    assert first == given_up
    assert len(set(others)) == 1
    assert others[0] != first


def test_too_many_stuck_handlers_end_a_worker_that_was_quick(desk: Desk, handler: Blocking) -> None:
    worker = Worker(
        desk.broker.endpoint, "echo", handler, threads=2, handler_timeout_s=2.0, stuck_handlers_max=1
    ).start()
    desk.give(b"a")
    desk.wait_for(b"a")
    desk.give(b"slow")
    with pytest.raises(WorkerError, match="stuck"):
        worker.join(WAIT_S)


def test_what_waits_behind_a_handler_that_lasts_is_given_back_by_stop(desk: Desk, handler: Blocking) -> None:
    worker = Worker(desk.broker.endpoint, "echo", handler, credit=20, threads=1).start()
    desk.give(b"a", b"b", b"slow", *[b"later"] * 7)
    assert handler.has_begun.wait(WAIT_S)
    wait_until(lambda: worker.counters.requests == 10, "all are there")
    worker.stop()
    wait_until(lambda: worker.counters.requests_dropped == 7, "they are let go")
    handler.go_on.set()
    assert worker.join(WAIT_S)
    desk.broker.wait_for(lambda: bool(desk.broker.received(Disconnect)))
    kinds = [type(m) for m in desk.broker.messages if isinstance(m, Final | Disconnect)]
    assert kinds == [Final, Final, Final, Disconnect]
    assert desk.finals() == [b"a", b"b", b"slow"]


def test_what_is_yielded_leaves_at_once_even_if_the_rest_takes_long(desk: Desk, handler: Blocking) -> None:
    def pour(request: Request) -> bytes | Generator[bytes, None, None]:
        return request.body if request.body == b"quick" else parts()

    def parts() -> Generator[bytes, None, None]:
        yield b"first"
        assert handler.go_on.wait(WAIT_S)
        yield b"second"

    def partials() -> list[bytes]:
        return [message.body[0] for message in desk.broker.messages if isinstance(message, Partial)]

    with Worker(desk.broker.endpoint, "echo", pour):
        desk.give(b"quick")
        desk.wait_for(b"quick")
        desk.give(b"parts")
        desk.broker.wait_for(lambda: partials() == [b"first"])
        handler.go_on.set()
        desk.wait_for(b"quick", b"")
    assert partials() == [b"first", b"second"]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_handler_that_raises_even_systemexit_is_answered_and_its_thread_goes_on(
    desk: Desk, threads: int
) -> None:
    def leave(request: Request) -> bytes:
        if request.body == b"bad":
            sys.exit("no more")
        return request.body

    with Worker(desk.broker.endpoint, "echo", leave, threads=threads):
        desk.give(b"bad")
        desk.broker.wait_for(lambda: len(desk.failures()) == 1)
        for _ in range(threads):
            desk.give(b"bad")
        desk.broker.wait_for(lambda: len(desk.failures()) == 1 + threads)
        desk.give(b"good")
        desk.wait_for(b"good")
    assert set(desk.failures()) == {(ErrorCode.HANDLER_FAILED, b"SystemExit: no more")}


def test_a_handler_may_stop_its_worker(desk: Desk) -> None:
    def stop(request: Request) -> bytes:
        worker.stop()
        return b"stopped"

    worker = Worker(desk.broker.endpoint, "echo", stop).start()
    desk.give(b"x")
    assert worker.join(WAIT_S)
    desk.wait_for(b"stopped")


def test_a_hook_may_close_its_worker_but_not_wait_for_it(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    class Hooks(WorkerHooks):
        def lost(self, worker: Worker, endpoint: str, reason: str) -> None:
            worker.close()
            closed.append(reason)
            worker.join()

    worker = Worker(desk.broker.endpoint, "echo", lambda request: b"", hooks=Hooks()).start()
    desk.give(b"x")
    desk.wait_for(b"")
    desk.broker.send(native_broker.CODEC.disconnect(desk.worker, (), 0, 1))
    assert worker.join(WAIT_S)
    assert len(closed) == 1
    assert "a hook cannot wait" in caplog.text


def test_a_node_that_refuses_the_worker_is_logged_once_until_it_registers_the_worker(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key("price-worker")
    core = Worker(
        desk.broker.endpoint, "price", lambda request: b"", security=Security(key, servers=[key.public])
    )
    for reason in ("not_allowed", "not_allowed", "silent", "silent", "not_allowed"):
        core._loop.perform([Lost("tcp://node1", reason)])
    core._loop.perform([Lost("tcp://node2", "not_allowed"), Registered("tcp://node2")])
    core._loop.perform([Lost("tcp://node2", "not_allowed")])
    records = [record for record in caplog.records if record.name == "bstar_client"]
    warnings = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    told = [text.partition(" ")[0] for text in warnings]
    assert told == ["tcp://node1", "tcp://node1", "tcp://node2", "tcp://node2"]
    assert warnings[0] == (
        'tcp://node1 does not let key price-worker offer service "price": in its list of principals either '
        '"offers" of the key\'s entry does not match the service, or no entry has the key any more; the '
        "node's log says which"
    )


PROGRAM = """
import sys, threading
from bstar_client import Worker
def block(request):
    if request.body == b"slow":
        print("begun", flush=True)
        threading.Event().wait()
    return b""
try:
    Worker(sys.argv[1], "echo", block).run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_second_signal_ends_a_process_whose_handler_lasts(desk: Desk) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, desk.broker.endpoint], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        desk.give(b"quick")
        desk.wait_for(b"")
        desk.give(b"slow")
        assert process.stdout.readline() == b"begun\n"
        heard_of(desk.broker)
        process.send_signal(signal.SIGTERM)
        # Now it drains: a request is not taken any more, but it lives.
        heard_of(desk.broker)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stdout.read() == b"interrupted\n"


HOOKED = """
import os, signal, sys, threading
from bstar_client import Worker, WorkerHooks
class Hooks(WorkerHooks):
    def lost(self, worker, endpoint, reason):
        print(threading.current_thread() is threading.main_thread(), flush=True)
        threading.Event().wait()
try:
    Worker(sys.argv[1], "echo", lambda request: b"", hooks=Hooks()).run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)  # what a program does whose own hook never returns
"""


def test_a_second_signal_ends_a_worker_whose_hook_never_returns(desk: Desk) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOOKED, desk.broker.endpoint], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        desk.give(b"x")
        desk.wait_for(b"")
        desk.broker.send(native_broker.CODEC.disconnect(desk.worker, (), 0, 1))
        assert process.stdout.readline() == b"False\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert process.stdout.read() == b"interrupted\n"


def test_a_signal_ends_a_process_while_a_handlers_thread_leads(desk: Desk) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, desk.broker.endpoint], stdout=subprocess.PIPE
    ) as process:
        desk.give(*[b"quick"])
        desk.wait_for(b"")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    desk.broker.wait_for(lambda: len(desk.broker.received(Disconnect)) == 1)


def test_a_request_does_not_wait_for_all_that_another_client_has_waiting(
    broker: ScriptedBroker, desk: Desk
) -> None:
    handler = Blocking()
    greedy = [b"g%d" % number for number in range(50)]
    with Worker([broker.endpoint], b"echo", handler, credit=100, threads=1) as worker:
        desk.give(b"slow")
        assert handler.has_begun.wait(WAIT_S)
        desk.give(*greedy)
        desk.give(b"quiet", client=b"q" * 16)
        wait_until(lambda: worker.counters.requests == 52, "all requests at the worker")
        handler.go_on.set()
        desk.wait_for(b"slow", b"quiet", *greedy)
    assert desk.finals().index(b"quiet") <= 2


def test_a_worker_without_its_threads_leaves_none(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, handlers = threading.Thread.start, list[threading.Thread]()

    def perhaps(thread: threading.Thread) -> None:
        if thread.name == "bstar-handler":
            if handlers:
                raise RuntimeError("can't start new thread")
            handlers.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", perhaps)
    with pytest.raises(RuntimeError, match="new thread"):
        Worker(broker.endpoint, "echo", lambda request: request.body, threads=2).run()
    handlers[0].join(WAIT_S)
    assert not handlers[0].is_alive()
