"""Workers that are killed within a handler: what is executed again, and what is not. Real processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bstar.errors import CallTimeoutError, OutcomeUnknownError, StreamInterruptedError
from bstar_client import Ask, CallFailed, HAClient, Reply, Request, Worker
from bstar_testing import wait_until
from support.brokers import Broker, lone_broker

pytestmark = pytest.mark.loopback

WAIT_S = 60.0

DOOMED = """
import sys, time
from pathlib import Path
from bstar_client import Worker

endpoint, service, begun = sys.argv[1:]

def handler(request):
    yield b"of the first run"
    with Path(begun).open("ab") as file:
        file.write(request.body + b"\\n")
    time.sleep(600)

def whole(request):
    with Path(begun).open("ab") as file:
        file.write(request.body + b"\\n")
    time.sleep(600)

Worker([endpoint], service, whole if service.startswith("whole") else handler, credit=8).run()
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with lone_broker(tmp_path_factory.mktemp("once")) as broker:
        yield broker


class Doomed:
    """A worker's process. Its handler yields one PARTIAL (not for a ``whole…`` service) and never ends."""

    def __init__(self, process: subprocess.Popen[bytes], begun: Path) -> None:
        self._process = process
        self._begun = begun

    @property
    def begun(self) -> list[bytes]:
        """The bodies that it has begun."""
        return sorted(self._begun.read_bytes().split()) if self._begun.exists() else []

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)


@contextmanager
def doomed(broker: Broker, service: str, folder: Path) -> Iterator[Doomed]:
    begun = folder / "begun"
    process = subprocess.Popen([sys.executable, "-c", DOOMED, broker.endpoint, service, str(begun)])
    worker = Doomed(process, begun)
    try:
        with HAClient(broker.endpoint, timeout=WAIT_S) as client:
            wait_until(lambda: client.discover(service), "the worker's registration")
        yield worker
    finally:
        worker.kill()


class Successor:
    """A worker in this process that takes over; ``bodies`` are what it was given."""

    def __init__(self) -> None:
        self.bodies: list[tuple[bytes, bool]] = []

    def handle(self, request: Request) -> Generator[bytes, None, None]:
        self.bodies.append((request.body, request.is_redelivered))
        yield b"of the second run"
        yield b"its end"


def test_what_must_not_be_executed_twice_is_not_when_its_worker_is_killed(
    broker: Broker, tmp_path: Path
) -> None:
    successor = Successor()
    bodies = [b"a", b"b", b"c"]
    with (
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
        ThreadPoolExecutor(1) as pool,
        doomed(broker, "whole-once", tmp_path) as worker,
    ):
        outcomes = pool.submit(
            lambda: list(client.map("whole-once", bodies, window=3, idempotent=False, errors="return"))
        )
        wait_until(lambda: worker.begun == bodies, "the handlers' begin")
        with Worker(broker.endpoint, "whole-once", successor.handle):
            wait_until(
                lambda: any(
                    each["workers"] == 2 for each in client.services() if each["service"] == "whole-once"
                ),
                "the successor's registration",
            )
            worker.kill()
            errors = [outcome.error for outcome in outcomes.result(WAIT_S) if not isinstance(outcome, Reply)]
            # One that comes later is served.
            assert client.request("whole-once", b"d", idempotent=False).frames
    assert [type(error) for error in errors] == [OutcomeUnknownError] * 3
    assert all(error.may_have_executed for error in errors if isinstance(error, OutcomeUnknownError))
    assert successor.bodies == [(b"d", False)]


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_plain_request_is_repeated_although_parts_of_its_reply_were_sent(
    broker: Broker, tmp_path: Path, is_batched: bool
) -> None:
    successor = Successor()
    service = f"parts-{is_batched}"
    bodies = [b"a", b"b"] if is_batched else [b"a"]
    with (
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
        ThreadPoolExecutor(1) as pool,
        doomed(broker, service, tmp_path) as worker,
    ):
        asks = [Ask(body) for body in bodies]
        replies = pool.submit(lambda: list(client.map(service, asks, window=2)))
        wait_until(lambda: worker.begun == bodies, "the handlers' begin")
        with Worker(broker.endpoint, service, successor.handle):
            worker.kill()
            told = replies.result(WAIT_S)
    assert [(reply.body, reply.partials, reply.attempts) for reply in told] == [
        (b"", ((b"of the second run",), (b"its end",)), 1)
    ] * len(bodies)
    assert sorted(successor.bodies) == [(body, True) for body in bodies]


def test_a_stream_that_has_begun_is_not_repeated(broker: Broker, tmp_path: Path) -> None:
    successor = Successor()
    with (
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
        doomed(broker, "stream", tmp_path) as worker,
        Worker(broker.endpoint, "other", successor.handle),
    ):
        parts = client.stream("stream", b"a")
        assert next(parts).frames == (b"of the first run",)
        worker.kill()
        with pytest.raises(StreamInterruptedError):
            next(parts)
    assert successor.bodies == []


def test_of_ten_workers_that_are_asked_a_dead_and_a_stuck_one_are_two_errors(
    broker: Broker, tmp_path: Path
) -> None:
    service, is_over = "whole-clear", threading.Event()

    def stuck(request: Request) -> None:
        is_over.wait(WAIT_S)

    with (
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
        ThreadPoolExecutor(1) as pool,
        doomed(broker, service, tmp_path) as worker,
        ExitStack() as stack,
    ):
        for handler in (*[lambda request: b"cleared"] * 8, stuck):
            stack.enter_context(Worker(broker.endpoint, service, handler))
        stack.callback(is_over.set)
        wait_until(
            lambda: any((each["service"], each["workers"]) == (service, 10) for each in client.services()),
            "the registration of ten workers",
        )
        asked = pool.submit(lambda: client.ask_all(service, b"x", timeout=10.0))
        wait_until(lambda: worker.begun == [b"x"], "the doomed handler's begin")
        worker.kill()
        outcomes = list(asked.result(WAIT_S).values())
        assert [each.body for each in outcomes if isinstance(each, Reply)] == [b"cleared"] * 8
        errors = [each.error for each in outcomes if isinstance(each, CallFailed)]
        assert {type(error) for error in errors} == {OutcomeUnknownError, CallTimeoutError}
        assert len(errors) == 2
        assert len(client.ask_all(service, b"y", timeout=1.0)) == 9, "the dead one is not registered"
