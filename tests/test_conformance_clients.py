"""Our own client and worker in plain MDP/0.2, heard by a broker that is a TCP socket and a frame table.

The broker's end spells out ZMTP and MDP itself, so it sees what no ZeroMQ socket would show: which socket
type the other end is, when a connection is closed, and when a new one is made. test_client_scripts.py
and test_worker_scripts.py have the rules in virtual time. The ids are in tests/support/requirements.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import pytest

from bstar_client import HAClient, Handler, LinkSettings, Request, Worker
from support.rawpeers import Zmtp, ZmtpListener

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

SERVICE = b"echo"
ADDRESS = b"\x00\x01\x00\xff!"
HEARTBEAT = [b"MDPW02", b"\x05"]
READY = [b"MDPW02", b"\x01", SERVICE]
DISCONNECT = [b"MDPW02", b"\x06"]

# A worker's timing here, as it would be agreed with its broker.
INTERVAL_S = 0.1
BACKOFF_S = 0.2
# Of intervals: a busy machine is not taken for a dead broker.
LIVENESS = 30


@pytest.fixture
def listener() -> Iterator[ZmtpListener]:
    with ZmtpListener() as listener:
        yield listener


# --- the client ---


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that call, while the test plays the broker."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextmanager
def client_of(*listeners: ZmtpListener, attempt_s: float = 5.0, settle_s: float = 0.1) -> Iterator[HAClient]:
    with HAClient(
        [listener.endpoint for listener in listeners],
        dialect="mdp02",
        timeout=10.0,
        attempt_timeout_s=attempt_s,
        settle_delay_s=settle_s,
        link=LinkSettings(reconnect_min_ms=10, reconnect_max_ms=20),
    ) as client:
        yield client


def request_of(*body: bytes) -> list[bytes]:
    return [b"MDPC02", b"\x01", SERVICE, *body]


@requirement("MDP2-C-01")
@requirement("MDP2-C-02")
@requirement("MDP2-G-02")
def test_the_client_is_a_dealer_and_nothing_stands_before_its_header(
    listener: ZmtpListener, pool: ThreadPoolExecutor
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        assert broker.properties[b"Socket-Type"] == b"DEALER"
        reply = pool.submit(client.request, SERVICE, [b"a", b"", b"b"])
        assert broker.recv() == [b"MDPC02", b"\x01", b"echo", b"a", b"", b"b"]
        broker.send(b"MDPC02", b"\x02", b"echo", b"part")
        broker.send(b"MDPC02", b"\x03", b"echo", b"c", b"")
        assert reply.result().frames == (b"c", b"")
        assert reply.result().partials == ((b"part",),)


@requirement("MDP2-C-04")
@requirement("MDP1-C-02")
def test_after_a_timeout_the_client_closes_and_asks_again_on_a_new_socket(
    listener: ZmtpListener, pool: ThreadPoolExecutor
) -> None:
    with client_of(listener, attempt_s=0.2) as client:
        first = listener.accept()
        reply = pool.submit(client.request, SERVICE, b"hi")
        assert first.recv() == request_of(b"hi")
        with pytest.raises(ConnectionError):
            first.recv()
        second = listener.accept()
        assert second.recv() == request_of(b"hi")
        second.send(b"MDPC02", b"\x03", SERVICE, b"there")
        assert reply.result().body == b"there"
        assert reply.result().attempts == 2


@requirement("MMI-C-01")
def test_200_is_only_a_hint(listener: ZmtpListener, pool: ThreadPoolExecutor) -> None:
    """The service may be gone in the next moment: the answer promises no call anything."""
    with client_of(listener) as client:
        broker = listener.accept()
        for code, expected in ((b"200", True), (b"404", False), (b"501", False)):
            offered = pool.submit(client.discover, SERVICE)
            assert broker.recv() == [b"MDPC02", b"\x01", b"mmi.service", SERVICE]
            broker.send(b"MDPC02", b"\x03", b"mmi.service", code)
            assert offered.result() is expected
        # A request is sent whatever was said before, and its own deadline applies.
        reply = pool.submit(client.request, SERVICE, b"hi", timeout=0.2)
        assert broker.recv() == request_of(b"hi")
        with pytest.raises(TimeoutError):
            reply.result()


def parts_and_echo(request: Request) -> Generator[bytes, None, list[bytes]]:
    yield b"part"
    return list(request.frames)


@contextmanager
def worker_of(listener: ZmtpListener, handler: Handler = parts_and_echo) -> Iterator[Worker]:
    worker = Worker(
        [listener.endpoint],
        SERVICE,
        handler,
        dialect="mdp02",
        heartbeat_s=INTERVAL_S,
        liveness=LIVENESS,
        backoff_min_s=BACKOFF_S,
        backoff_max_s=1.0,
        drain_timeout_s=2.0,
    )
    with worker:
        yield worker


def call(broker: Zmtp, *body: bytes) -> None:
    broker.send(b"MDPW02", b"\x02", ADDRESS, b"", *body)


def next_command(broker: Zmtp) -> list[bytes]:
    """The next message that is no heartbeat."""
    while (frames := broker.recv()) == HEARTBEAT:
        pass
    return frames


@requirement("MDP2-W-01")
@requirement("MDP1-W-01")
@requirement("MDP2-W-02")
@requirement("MDP1-W-02")
@requirement("MDP2-W-08")
@requirement("MDP1-W-07")
def test_the_worker_is_one_dealer_and_opens_with_ready_and_answers(listener: ZmtpListener) -> None:
    with worker_of(listener):
        broker = listener.accept()
        assert broker.properties[b"Socket-Type"] == b"DEALER"
        assert broker.recv() == [b"MDPW02", b"\x01", b"echo"]
        for body in ([b"hi"], [b"", b"a", b""]):
            call(broker, *body)
            assert next_command(broker) == [b"MDPW02", b"\x03", ADDRESS, b"", b"part"]
            assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", *body]
        assert not listener.is_called(within_s=INTERVAL_S)


@requirement("MDP2-W-10")
@requirement("MDP1-W-08")
def test_the_worker_sends_heartbeats_at_its_interval_also_while_its_handler_runs(
    listener: ZmtpListener,
) -> None:
    go_on = threading.Event()

    def wait(request: Request) -> bytes:
        assert go_on.wait(30)
        return b"done"

    with worker_of(listener, handler=wait):
        broker = listener.accept()
        assert broker.recv() == READY
        call(broker, b"hi")
        at = [time.monotonic()]
        for _ in range(8):
            assert broker.recv() == HEARTBEAT
            at.append(time.monotonic())
            # The broker lives as well.
            broker.send(*HEARTBEAT)
        go_on.set()
        # A busy machine makes them late, never early, and not all of them.
        assert at[-1] - at[0] >= 8 * 0.6 * INTERVAL_S
        assert min(later - earlier for earlier, later in pairwise(at)) <= 3 * INTERVAL_S


@pytest.mark.parametrize("how", [Zmtp.close, Zmtp.reset], ids=["close", "reset"])
@requirement("MDP2-W-06")
def test_after_a_broken_connection_the_worker_registers_again(
    listener: ZmtpListener, how: Callable[[Zmtp], None]
) -> None:
    """A silent reconnect without READY leaves a worker alive and without work: seen in the field."""
    with worker_of(listener):
        broker = listener.accept()
        assert broker.recv() == READY
        how(broker)
        again = listener.accept()
        assert again.recv() == READY
