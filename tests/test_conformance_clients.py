"""Our own client and worker in plain MDP/0.2, heard by a broker that is a TCP socket and a frame table.

The broker's end spells out ZMTP and MDP itself, so it sees what no ZeroMQ socket would show: which socket
type the other end is, when a connection is closed, and when a new one is made. The ids are in
tests/support/requirements.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import pytest

from bstar_client import CallError, HAClient, Handler, LinkSettings, Reply, Request, Worker
from bstar_testing import wait_until
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
# Of intervals; long where a test is not about silence, so that a busy machine is not taken for a dead broker.
LIVENESS = 30
LIVENESS_SHORT = 4


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
@requirement("MDP2-G-02")
def test_the_client_is_a_dealer_and_nothing_stands_before_its_header(
    listener: ZmtpListener, pool: ThreadPoolExecutor
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        assert broker.properties[b"Socket-Type"] == b"DEALER"
        reply = pool.submit(client.request, SERVICE, [b"a", b"", b"b"])
        assert broker.recv() == [b"MDPC02", b"\x01", b"echo", b"a", b"", b"b"]
        broker.send(b"MDPC02", b"\x03", b"echo", b"c", b"")
        assert reply.result().frames == (b"c", b"")


@requirement("MDP2-C-02")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_request_takes_any_number_of_partials_and_ends_with_final(
    listener: ZmtpListener, pool: ThreadPoolExecutor, count: int
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        reply: Future[Reply] = pool.submit(client.request, SERVICE, b"hi")
        assert broker.recv() == request_of(b"hi")
        for number in range(count):
            broker.send(b"MDPC02", b"\x02", SERVICE, b"part %d" % number)
        with pytest.raises(TimeoutError):
            reply.result(0.05)
        broker.send(b"MDPC02", b"\x03", SERVICE, b"end")
        assert reply.result().frames == (b"end",)
        assert reply.result().partials == tuple((b"part %d" % number,) for number in range(count))


@requirement("MDP2-C-02")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_stream_hands_out_each_partial_in_order(
    listener: ZmtpListener, pool: ThreadPoolExecutor, count: int
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        replies = pool.submit(
            lambda: [(reply.is_final, reply.body) for reply in client.stream(SERVICE, b"hi")]
        )
        assert broker.recv() == request_of(b"hi")
        for number in range(count):
            broker.send(b"MDPC02", b"\x02", SERVICE, b"%d" % number)
        broker.send(b"MDPC02", b"\x03", SERVICE, b"end")
        assert replies.result() == [*((False, b"%d" % number) for number in range(count)), (True, b"end")]


@requirement("MDP2-C-03")
def test_the_next_request_waits_for_the_final_of_the_one_before(
    listener: ZmtpListener, pool: ThreadPoolExecutor
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        replies = [pool.submit(client.request, SERVICE, b"same") for _ in range(3)]
        for _ in replies:
            assert broker.recv() == request_of(b"same")
            broker.send(b"MDPC02", b"\x02", SERVICE, b"not yet")
            assert broker.collect(0.1) == []
            broker.send(b"MDPC02", b"\x03", SERVICE, b"now")
        assert [reply.result().frames for reply in replies] == [(b"now",)] * 3


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


@requirement("MDP2-C-04")
def test_with_two_nodes_the_next_attempt_goes_to_the_other(pool: ThreadPoolExecutor) -> None:
    with (
        ZmtpListener() as primary,
        ZmtpListener() as backup,
        client_of(primary, backup, attempt_s=0.2) as client,
    ):
        at_primary, at_backup = primary.accept(), backup.accept()
        reply = pool.submit(client.request, SERVICE, b"hi")
        assert at_primary.recv() == request_of(b"hi")
        assert at_backup.recv() == request_of(b"hi")
        at_backup.send(b"MDPC02", b"\x03", SERVICE, b"there")
        assert reply.result().body == b"there"


@requirement("MDP2-C-04")
def test_the_client_gives_up_at_its_deadline(listener: ZmtpListener, pool: ThreadPoolExecutor) -> None:
    with client_of(listener, attempt_s=0.1) as client:
        broker = listener.accept()
        began = time.monotonic()
        reply = pool.submit(client.request, SERVICE, b"hi", timeout=2.0)
        broker.recv()
        with pytest.raises(CallError) as caught:
            reply.result()
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.may_have_executed
        assert time.monotonic() - began >= 2.0


@requirement("MDP2-R-01")
def test_every_partial_starts_the_timeout_anew(listener: ZmtpListener, pool: ThreadPoolExecutor) -> None:
    with client_of(listener, attempt_s=0.5) as client:
        broker = listener.accept()
        reply = pool.submit(client.request, SERVICE, b"long work")
        assert broker.recv() == request_of(b"long work")
        for number in range(6):
            assert broker.collect(0.25) == []
            broker.send(b"MDPC02", b"\x02", SERVICE, b"%d" % number)
        broker.send(b"MDPC02", b"\x03", SERVICE, b"done")
        assert reply.result().attempts == 1
        assert len(reply.result().partials) == 6


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param([b"MDPC02", b"\x03", b"other service", b"x"], id="another-service"),
        pytest.param([b"MDPC01", b"\x03", SERVICE, b"x"], id="another-header"),
        pytest.param([b"MDPC02", b"\x04", SERVICE, b"x"], id="worker-code-of-FINAL"),
        pytest.param([b"MDPC02", b"\x03", SERVICE], id="no-body"),
        pytest.param([b"MDPC02", b"\x03"], id="no-service"),
        pytest.param([b""], id="empty"),
        pytest.param([b"\xb5\x01" + bytes(39)], id="native"),
    ],
)
@requirement("MDP1-C-03")
def test_what_is_no_answer_is_discarded_and_the_wait_goes_on(
    listener: ZmtpListener, pool: ThreadPoolExecutor, strange: list[bytes]
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        # Before anything was asked, and while something is.
        broker.send(*strange)
        reply = pool.submit(client.request, SERVICE, b"hi")
        assert broker.recv() == request_of(b"hi")
        broker.send(*strange)
        broker.send(b"MDPC02", b"\x03", SERVICE, b"there")
        assert reply.result().body == b"there"


@requirement("MDP1-C-03")
@requirement("MDP2-R-03")
def test_a_final_that_nobody_waits_for_is_not_the_answer_to_the_next_request(
    listener: ZmtpListener, pool: ThreadPoolExecutor
) -> None:
    with client_of(listener) as client:
        broker = listener.accept()
        broker.send(b"MDPC02", b"\x02", SERVICE, b"stray")
        broker.send(b"MDPC02", b"\x03", SERVICE, b"stray")
        # Nothing in MDP tells answers apart, so they have to be read before the question is asked.
        wait_until(lambda: client.counters.replies_unmatched == 2, "the client has read the stray answers")
        for number in (b"1", b"2"):
            reply = pool.submit(client.request, SERVICE, number)
            # The stray answers were there first and have been read: a round trip of its own proves nothing
            # less.
            assert broker.recv() == request_of(number)
            broker.send(b"MDPC02", b"\x03", SERVICE, b"answer to " + number)
            assert reply.result().body == b"answer to " + number


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
        reply = pool.submit(client.request, SERVICE, b"hi", timeout=2.0)
        assert broker.recv() == request_of(b"hi")
        with pytest.raises(TimeoutError):
            reply.result()


# --- the worker ---


def echo(request: Request) -> bytes:
    return request.body


@contextmanager
def worker_of(
    *listeners: ZmtpListener, handler: Handler = echo, liveness: int = LIVENESS
) -> Iterator[Worker]:
    worker = Worker(
        [listener.endpoint for listener in listeners],
        SERVICE,
        handler,
        dialect="mdp02",
        heartbeat_s=INTERVAL_S,
        liveness=liveness,
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


def until_closed(broker: Zmtp) -> list[list[bytes]]:
    """Everything up to the end of the connection, which has to come."""
    messages = []
    try:
        while True:
            messages.append(broker.recv())
    except ConnectionError:
        return messages


@requirement("MDP2-W-01")
@requirement("MDP1-W-01")
@requirement("MDP2-W-02")
@requirement("MDP1-W-02")
def test_the_worker_is_one_dealer_and_opens_with_ready(listener: ZmtpListener) -> None:
    with worker_of(listener):
        broker = listener.accept()
        assert broker.properties[b"Socket-Type"] == b"DEALER"
        assert broker.recv() == [b"MDPW02", b"\x01", b"echo"]
        broker.send(*HEARTBEAT)
        assert not listener.is_called(within_s=INTERVAL_S)


@requirement("MDP2-W-01")
def test_of_two_nodes_each_has_a_dealer_of_its_own() -> None:
    with ZmtpListener() as primary, ZmtpListener() as backup, worker_of(primary, backup):
        brokers = [primary.accept(), backup.accept()]
        for broker in brokers:
            assert broker.recv() == READY
        # The answer goes back where the request came from, and nowhere else.
        call(brokers[1], b"hi")
        assert next_command(brokers[1]) == [b"MDPW02", b"\x04", ADDRESS, b"", b"hi"]
        assert set(map(tuple, brokers[0].collect(INTERVAL_S * 2))) <= {tuple(HEARTBEAT)}


@requirement("MDP2-W-03")
@requirement("MDP1-W-03")
@requirement("MDP2-W-04")
@requirement("MDP1-W-04")
def test_ready_is_sent_once_and_registration_is_assumed(listener: ZmtpListener) -> None:
    with worker_of(listener):
        broker = listener.accept()
        assert broker.recv() == READY
        # Silence of less than the expiry: no second READY, only heartbeats.
        assert set(map(tuple, broker.collect(INTERVAL_S * 4))) == {tuple(HEARTBEAT)}
        for number in (b"1", b"2", b"3"):
            call(broker, number)
            assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", number]


@requirement("MDP2-W-06")
@requirement("MDP1-W-06")
@requirement("MDP1-R-02")
def test_after_disconnect_the_worker_is_silent_closes_pauses_and_comes_back_anew(
    listener: ZmtpListener,
) -> None:
    with worker_of(listener):
        pauses = []
        broker = listener.accept()
        for _ in range(3):
            assert broker.recv() == READY
            broker.send(*DISCONNECT)
            told = time.monotonic()
            # What comes before the end was on its way: a heartbeat, never a second READY or a DISCONNECT.
            assert set(map(tuple, until_closed(broker))) <= {tuple(HEARTBEAT)}
            broker = listener.accept()
            pauses.append(time.monotonic() - told)
        assert broker.recv() == READY
        # Turned away again and again, it comes less often: each pause is at least half of twice the last.
        assert pauses[0] > BACKOFF_S * 0.9
        assert pauses[2] > BACKOFF_S * 2


@requirement("MDP2-W-05")
@requirement("MDP1-W-05")
def test_a_worker_that_stops_says_disconnect(listener: ZmtpListener) -> None:
    with worker_of(listener) as worker:
        broker = listener.accept()
        assert broker.recv() == READY
        worker.stop()
        assert next_command(broker) == DISCONNECT
        assert broker.collect(INTERVAL_S * 2) == []
        assert worker.join(30)


@requirement("MDP2-W-05")
def test_a_worker_that_stops_finishes_its_request_before_it_says_disconnect(listener: ZmtpListener) -> None:
    has_begun, go_on = threading.Event(), threading.Event()

    def wait(request: Request) -> bytes:
        has_begun.set()
        assert go_on.wait(30)
        return b"done"

    with worker_of(listener, handler=wait) as worker:
        broker = listener.accept()
        assert broker.recv() == READY
        call(broker, b"hi")
        assert has_begun.wait(30)
        worker.stop()
        assert set(map(tuple, broker.collect(INTERVAL_S * 2))) <= {tuple(HEARTBEAT)}
        go_on.set()
        assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", b"done"]
        assert next_command(broker) == DISCONNECT


@requirement("MDP2-W-07")
@requirement("MDP2-W-08")
@requirement("MDP1-W-07")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_partials_and_exactly_one_final(listener: ZmtpListener, count: int) -> None:
    def emit(request: Request) -> Generator[bytes, None, list[bytes]]:
        for number in range(count):
            yield b"%d" % number
        return [b"end", b""]

    with worker_of(listener, handler=emit):
        broker = listener.accept()
        assert broker.recv() == READY
        for _ in range(2):
            call(broker, b"hi")
            for number in range(count):
                assert next_command(broker) == [b"MDPW02", b"\x03", ADDRESS, b"", b"%d" % number]
            assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", b"end", b""]


def fails(request: Request) -> bytes:
    raise ValueError("no such thing")


def fails_after_partials(request: Request) -> Generator[bytes, None, None]:
    yield b"so far"
    raise ValueError("no such thing")


@requirement("MDP2-W-07")
@pytest.mark.parametrize(("handler", "partials"), [(fails, 0), (fails_after_partials, 1)])
def test_a_handler_that_fails_still_ends_its_request_with_one_final(
    listener: ZmtpListener, handler: Handler, partials: int
) -> None:
    with worker_of(listener, handler=handler):
        broker = listener.accept()
        assert broker.recv() == READY
        call(broker, b"hi")
        for _ in range(partials):
            assert next_command(broker)[:4] == [b"MDPW02", b"\x03", ADDRESS, b""]
        final = next_command(broker)
        assert final[:4] == [b"MDPW02", b"\x04", ADDRESS, b""]
        assert len(final) > 4
        assert set(map(tuple, broker.collect(INTERVAL_S * 2))) == {tuple(HEARTBEAT)}


@requirement("MDP2-W-08")
@requirement("MDP1-W-07")
@pytest.mark.parametrize(
    "body", [[b""], [b"", b"a", b""], [b"x" * 300_000]], ids=["empty", "empties", "large"]
)
def test_the_client_address_goes_back_untouched_and_bodies_too(
    listener: ZmtpListener, body: list[bytes]
) -> None:
    with worker_of(listener, handler=lambda request: list(request.frames)):
        broker = listener.accept()
        assert broker.recv() == READY
        call(broker, *body)
        assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", *body]


@requirement("MDP2-W-10")
@requirement("MDP1-W-08")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_the_worker_sends_heartbeats_at_its_interval_also_while_its_handler_runs(
    listener: ZmtpListener, *, is_busy: bool
) -> None:
    go_on = threading.Event()

    def wait(request: Request) -> bytes:
        assert go_on.wait(30)
        return b"done"

    with worker_of(listener, handler=wait):
        broker = listener.accept()
        assert broker.recv() == READY
        if is_busy:
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


@requirement("MDP2-W-09")
def test_no_heartbeats_are_sent_while_answers_flow(listener: ZmtpListener) -> None:
    with worker_of(listener):
        broker = listener.accept()
        assert broker.recv() == READY
        beats, lulls, last = 0, 1, time.monotonic()
        until = last + 6 * INTERVAL_S
        while time.monotonic() < until:
            call(broker, b"hi")
            while (frames := broker.recv()) == HEARTBEAT:
                beats += 1
            assert frames[1] == b"\x04"
            now = time.monotonic()
            lulls += now - last > INTERVAL_S / 2
            last = now
        assert beats <= lulls


@requirement("MDP2-W-10")
@requirement("MDP1-W-08")
def test_a_silent_broker_is_given_up_and_a_new_conversation_begins(listener: ZmtpListener) -> None:
    with worker_of(listener, liveness=LIVENESS_SHORT):
        broker = listener.accept()
        began = time.monotonic()
        assert broker.recv() == READY
        assert set(map(tuple, until_closed(broker))) == {tuple(HEARTBEAT)}
        assert time.monotonic() - began > INTERVAL_S * LIVENESS_SHORT * 0.8
        again = listener.accept()
        assert again.recv() == READY
        call(again, b"hi")
        assert next_command(again) == [b"MDPW02", b"\x04", ADDRESS, b"", b"hi"]


@requirement("MDP2-W-10")
def test_any_message_of_the_broker_is_a_sign_of_life(listener: ZmtpListener) -> None:
    liveness = LIVENESS
    with worker_of(listener, liveness=liveness):
        broker = listener.accept()
        assert broker.recv() == READY
        until = time.monotonic() + 1.5 * INTERVAL_S * liveness
        while time.monotonic() < until:
            call(broker, b"hi")
            assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", b"hi"]
            broker.collect(INTERVAL_S)


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


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param([b"MDPW02", b"\x02", ADDRESS, b"body"], id="REQUEST-without-empty-frame"),
        pytest.param([b"MDPW02", b"\x02", ADDRESS, b""], id="REQUEST-without-body"),
        pytest.param([b"MDPW02", b"\x02"], id="REQUEST-without-anything"),
        pytest.param([b"MDPW02", b"\x09"], id="unknown-command"),
        pytest.param([b"", b"MDPW01", b"\x02", ADDRESS, b"", b"x"], id="another-version"),
        pytest.param([b"MDPW02"], id="header-alone"),
        pytest.param([b""], id="empty"),
        pytest.param([b"\xb5\x01" + bytes(39)], id="native"),
    ],
)
@requirement("MDP2-R-04")
def test_what_no_broker_may_say_does_not_end_the_worker(listener: ZmtpListener, strange: list[bytes]) -> None:
    with worker_of(listener):
        broker = listener.accept()
        assert broker.recv() == READY
        broker.send(*strange)
        call(broker, b"hi")
        assert next_command(broker) == [b"MDPW02", b"\x04", ADDRESS, b"", b"hi"]
