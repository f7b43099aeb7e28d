"""Both clients over real sockets, against scripted brokers. What asyncio adds is in test_aio_client.py."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bstar.errors import (
    BstarError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    ForkedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    StreamInterruptedError,
)
from bstar.wire import native
from bstar.wire.limits import FRAMES_MAX
from bstar.wire.messages import ErrorCode, Ping, Request
from bstar.wire.native_broker import CODEC
from bstar_client import ActiveFound, Ask, CallFailed, Event, FailedOver, HAClient, Reply, node_states
from bstar_client.core.calls import Call
from support.blocking import Blocking
from support.scripted import PASSIVE, WAIT_S, ScriptedBroker, final, partial, status

pytestmark = pytest.mark.loopback


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=[HAClient, Blocking], ids=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> type[HAClient]:
    """Each kind of client; both have the same words."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def client(kind: type[HAClient], broker: ScriptedBroker) -> Iterator[HAClient]:
    with kind(broker.endpoint, timeout=WAIT_S) as client:
        yield client


def silent(request: Request) -> list[list[bytes]]:
    """The broker accepts a request and its worker never answers."""
    return []


# --- request ------------------------------------------------------------------------------------------------


def test_a_request_is_answered(client: HAClient, broker: ScriptedBroker) -> None:
    reply = client.request("echo", b"hello")
    assert (reply.body, reply.endpoint, reply.attempts) == (b"hello", broker.endpoint, 1)


def test_a_body_may_have_several_frames(client: HAClient) -> None:
    reply = client.request(b"echo", [b"a", b"", b"c"])
    assert reply.frames == (b"a", b"", b"c")
    with pytest.raises(ValueError, match="3 frames"):
        _ = reply.body


@pytest.mark.parametrize("body", [[], "text", [b"a", "b"], [b""] * (FRAMES_MAX + 1)])
def test_a_body_that_cannot_be_sent_is_refused_before_it_is_sent(client: HAClient, body: object) -> None:
    with pytest.raises((TypeError, LocalProtocolError)):
        client.request("echo", body)  # type: ignore[call-overload]  # that is the point
    assert client.request("echo", b"still well").body == b"still well"


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e10])
def test_a_timeout_may_be_as_long_as_a_number_can_say(client: HAClient, timeout: float) -> None:
    assert client.request("echo", b"hi", timeout=timeout).body == b"hi"
    assert client.request("echo", b"and another", timeout=5).body == b"and another"


def test_a_service_name_must_be_one(client: HAClient) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(LocalProtocolError):
            client.request(name, b"")


def test_many_threads_share_a_client_and_get_their_own_replies(client: HAClient) -> None:
    wrong: list[object] = []

    def ask(name: int) -> None:
        for number in range(100):
            body = b"%d %d" % (name, number)
            reply = client.request("echo", body)
            if reply.body != body:
                wrong.append(reply)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert wrong == []


def test_without_any_broker_a_call_ends_at_its_deadline_and_says_what_was_tried(kind: type[HAClient]) -> None:
    with ScriptedBroker() as gone:
        endpoint = gone.endpoint
    with kind([endpoint]) as client:
        began = time.monotonic()
        with pytest.raises(NoActiveNodeError, match="refused"):
            client.request("echo", b"", timeout=2.0)
        assert 2.0 <= time.monotonic() - began < WAIT_S


def test_many_large_requests_wait_for_a_broker_that_reads_slowly(
    client: HAClient, broker: ScriptedBroker
) -> None:
    client.request("echo", b"")
    broker.is_paused = True
    body = bytes(200_000)
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.extend(client.map("echo", [body] * 300, window=300)))
    asking.start()
    broker.is_paused = False
    asking.join(WAIT_S)
    assert len(replies) == 300


class Unread(deque[Call]):
    """A queue that nobody may iterate over: an append of another thread would end that with an error."""

    def __iter__(self) -> Iterator[Call]:
        raise AssertionError("callers append to it meanwhile")


def test_calls_are_taken_while_others_are_added(client: HAClient) -> None:
    client._loop._inbox = Unread()
    assert len(list(client.map("echo", [b"x"] * 50))) == 50


def test_bounds_are_told(broker: ScriptedBroker) -> None:
    broker.on_request = silent
    with HAClient(broker.endpoint, outstanding_max=1) as client:
        errors: list[BstarError] = []

        def ask() -> None:
            try:
                client.request("echo", b"")
            except BstarError as error:
                errors.append(error)

        waiting = threading.Thread(target=ask)
        waiting.start()
        broker.wait_for(lambda: len(broker.requests()) == 1)
        with pytest.raises(BusyError, match="outstanding"):
            client.request("echo", b"")
        client.close()
        waiting.join(WAIT_S)
        assert [type(error) for error in errors] == [OutcomeUnknownError]


# --- failover -----------------------------------------------------------------------------------------------


def test_outstanding_requests_move_to_the_node_that_takes_over(kind: type[HAClient]) -> None:
    events: list[Event] = []
    with (
        ScriptedBroker(on_request=silent) as primary,
        ScriptedBroker(status(PASSIVE, peer=3, retry_after_ms=100)) as backup,
        kind([primary.endpoint, backup.endpoint], on_event=events.append) as client,
    ):
        replies: list[Reply] = []
        asking = threading.Thread(
            target=lambda: replies.extend(client.map("echo", [b"%d" % n for n in range(20)]))
        )
        asking.start()
        primary.wait_for(lambda: len(primary.requests()) == 20)
        backup.is_promoted_by_votes = True
        primary.close()
        asking.join(WAIT_S)
        assert [reply.body for reply in replies] == [b"%d" % n for n in range(20)]
        assert {reply.endpoint for reply in replies} == {backup.endpoint}
        # The same identities: a node may know that it has seen a request before.
        assert [r.identity for r in primary.requests()] == [r.identity for r in backup.requests()]
        [failover] = [event for event in events if isinstance(event, FailedOver)]
        assert (failover.from_endpoint, failover.to_endpoint) == (primary.endpoint, backup.endpoint)
        assert failover.outstanding == 20


def test_a_node_that_hangs_is_left_after_the_silence_limit(kind: type[HAClient]) -> None:
    with (
        ScriptedBroker() as primary,
        ScriptedBroker(status(PASSIVE, peer=3, retry_after_ms=100)) as backup,
        kind([primary.endpoint, backup.endpoint], timeout=WAIT_S) as client,
    ):
        client.request("echo", b"")
        backup.is_promoted_by_votes = True
        primary.is_paused = True
        assert client.request("echo", b"x").endpoint == backup.endpoint


def test_a_broker_that_restarts_is_found_again(client: HAClient, broker: ScriptedBroker) -> None:
    client.request("echo", b"before")
    broker.close()
    broker.open()
    assert client.request("echo", b"after").body == b"after"


def test_an_observer_that_raises_does_no_harm(
    kind: type[HAClient], broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("observer")

    with kind(broker.endpoint, on_event=fail) as client:
        client.observe(seen.append)
        assert client.request("echo", b"x").body == b"x"
        assert any(isinstance(event, ActiveFound) for event in seen)
    assert "an observer failed" in caplog.text


# --- map and stream -----------------------------------------------------------------------------------------


def test_map_keeps_the_order_of_the_bodies_whatever_the_order_of_the_replies(
    client: HAClient, broker: ScriptedBroker
) -> None:
    held: dict[bytes, list[bytes]] = {}
    answered: set[bytes] = set()

    def in_reverse(request: Request) -> list[list[bytes]]:
        reply = final(request, *request.body)
        if request.identity in answered:
            return [reply]  # on a busy machine the client may come again, on a new connection
        held[request.identity] = reply
        if len(held) < 5:  # map may keep one or two places of its window empty
            return []
        answered.update(held)
        ready = list(held.values())[::-1]
        held.clear()
        return ready

    broker.on_request = in_reverse
    bodies = [b"%d" % number for number in range(50)]
    replies = list(client.map("echo", bodies, window=10))
    assert [reply.body for reply in replies] == bodies
    assert [reply.index for reply in replies] == list(range(50))
    unordered = list(client.map("echo", bodies, window=10, ordered=False))
    assert sorted(reply.index for reply in unordered) == list(range(50))
    assert all(reply.body == b"%d" % reply.index for reply in unordered)


def test_map_never_has_more_than_its_window_in_flight_and_reads_bodies_as_it_goes(
    client: HAClient, broker: ScriptedBroker
) -> None:
    given = 0

    def bodies() -> Iterator[bytes]:
        nonlocal given
        for number in range(200):
            given += 1
            yield b"%d" % number

    for taken, _ in enumerate(client.map("echo", bodies(), window=7)):
        assert given - taken <= 8


def test_map_of_nothing_is_nothing(client: HAClient) -> None:
    assert list(client.map("echo", [])) == []


def test_map_raises_the_first_failure_and_gives_the_rest_up(client: HAClient, broker: ScriptedBroker) -> None:
    def fail_at_three(request: Request) -> list[list[bytes]]:
        if request.body != [b"3"]:
            return [final(request, *request.body)]
        return [CODEC.failure(request, 1, ErrorCode.HANDLER_FAILED, b"three")]

    broker.on_request = fail_at_three
    with pytest.raises(HandlerError) as caught:
        list(client.map("echo", (b"%d" % number for number in range(1_000)), window=4))
    assert caught.value.__notes__ == ["body 3 of map()"]


@pytest.mark.parametrize("ordered", [True, False])
def test_map_that_returns_errors_goes_on_after_each(
    client: HAClient, broker: ScriptedBroker, ordered: bool
) -> None:
    """Every third fails at the service, 7 is too large to be sent, and 8's own time is over at once."""

    def fail_every_third(request: Request) -> list[list[bytes]]:
        if int(request.body[0]) % 3:
            return [final(request, *request.body)]
        failure = CODEC.failure(request, 1, ErrorCode.HANDLER_FAILED, b"three")
        return [failure]

    broker.on_request = fail_every_third
    bodies: list[bytes | Ask] = [b"%d" % number for number in range(100)]
    bodies[7] = Ask(bytes(65 * 1024 * 1024))
    bodies[8] = Ask(b"8", timeout=0.0)
    outcomes = list(client.map("echo", bodies, window=8, ordered=ordered, errors="return"))
    if ordered:
        assert [outcome.index for outcome in outcomes] == list(range(100))
    told = {outcome.index: outcome for outcome in outcomes}
    assert sorted(told) == list(range(100))
    for number, outcome in told.items():
        if isinstance(outcome, Reply):
            assert (number % 3, number in (7, 8), outcome.body) == (number % 3 or -1, False, b"%d" % number)
        else:
            kind = {7: LocalProtocolError, 8: CallTimeoutError}.get(number, HandlerError)
            assert type(outcome.error) is kind
            assert outcome.attempts == (number not in (7, 8))
    assert sum(isinstance(outcome, CallFailed) for outcome in outcomes) == 34 + 2


def test_map_waits_as_a_busy_broker_says_and_every_body_is_answered(
    client: HAClient, broker: ScriptedBroker
) -> None:
    """The queue takes each request at its fourth attempt only."""
    turns: Counter[bytes] = Counter()

    def mostly_busy(request: Request) -> list[list[bytes]]:
        turns[request.identity] += 1
        if turns[request.identity] % 4:
            return [CODEC.busy(request, 1, 1, b"full")]
        return [final(request, *request.body)]

    broker.on_request = mostly_busy
    replies = list(client.map("echo", (b"%d" % number for number in range(200)), window=20, errors="return"))
    assert [isinstance(reply, Reply) and reply.body for reply in replies] == [b"%d" % n for n in range(200)]
    assert client.counters.busy == 600


def test_bodies_with_one_key_in_one_window_are_one_request(client: HAClient, broker: ScriptedBroker) -> None:
    held: list[Request] = []

    def hold(request: Request) -> list[list[bytes]]:
        held.append(request)
        return [final(request, b"done")]

    broker.on_request = hold
    asks = [Ask(b"x", key=b"k%d" % (number % 5)) for number in range(50)]
    replies = list(client.map("echo", asks, window=50))
    assert [(reply.index, reply.body) for reply in replies] == [(number, b"done") for number in range(50)]
    assert {request.identity for request in held} == {
        native.keyed_identity(b"echo", b"k%d" % number) for number in range(5)
    }
    assert client.request("echo", b"x", key="k1").body == b"done"


def test_a_key_has_an_octet_and_a_dialect_that_can_carry_it(client: HAClient, broker: ScriptedBroker) -> None:
    with pytest.raises(LocalProtocolError, match="one byte"):
        client.request("echo", b"x", key=b"")
    with (
        HAClient(broker.endpoint, dialect="mdp02") as plain,
        pytest.raises(LocalProtocolError, match="no identities"),
    ):
        plain.request("echo", b"x", key=b"k")


def test_a_caller_is_answered_although_the_call_that_sent_its_key_was_left(
    client: HAClient, broker: ScriptedBroker
) -> None:
    """Its own request is due at once then, while its thread waits."""
    requests: dict[bytes, list[Request]] = {b"x": [], b"y": []}

    def answer(request: Request) -> list[list[bytes]]:
        listed = requests[request.body[0]]
        listed.append(request)
        return [final(request, b"done")] if request.body[0] == b"x" and len(listed) == 2 else []

    broker.on_request = answer
    left = threading.Thread(target=_map_until_a_failure, args=(client,))
    left.start()
    broker.wait_for(lambda: bool(requests[b"x"] and requests[b"y"]))
    asked: list[bytes] = []
    caller = threading.Thread(
        target=lambda: asked.append(client.request("echo", b"x", key=b"k", timeout=WAIT_S).body)
    )
    caller.start()
    while not client.counters.joined:
        time.sleep(0.001)
    (failing,) = requests[b"y"]
    broker.send(CODEC.failure(failing, 1, ErrorCode.INVALID, b"no"))
    left.join(WAIT_S)
    caller.join(WAIT_S)
    assert asked == [b"done"]


def _map_until_a_failure(client: HAClient) -> None:
    with pytest.raises(RejectedError):
        list(client.map("echo", [Ask(b"x", key=b"k"), Ask(b"y")], ordered=False, timeout=WAIT_S))


def test_what_is_urgent_says_so_and_travels_alone(client: HAClient, broker: ScriptedBroker) -> None:
    seen: list[tuple[bytes, bool]] = []

    def note(request: Request) -> list[list[bytes]]:
        seen.append((request.body[0], request.is_urgent))
        return [final(request, *request.body)]

    broker.on_request = note
    client.request("echo", b"1", urgent=True)
    client.request("echo", b"2")
    list(client.stream("echo", b"3", urgent=True))
    list(client.map("echo", [Ask(b"4", urgent=True), Ask(b"5"), b"6"]))
    assert sorted(seen) == [(b"%d" % n, n in (1, 3, 4)) for n in range(1, 7)]
    with (
        HAClient(broker.endpoint, dialect="mdp02") as plain,
        pytest.raises(LocalProtocolError, match="no urgent requests"),
    ):
        plain.request("echo", b"x", urgent=True)


def test_a_stream_yields_partials_and_then_the_final(client: HAClient, broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [
        partial(request, 0, b"a"),
        partial(request, 1, b"b"),
        final(request, b"c", partials=2),
    ]
    replies = list(client.stream("echo", b""))
    assert [(reply.body, reply.is_final) for reply in replies] == [(b"a", False), (b"b", False), (b"c", True)]


def test_a_stream_that_is_left_early_frees_its_record(client: HAClient, broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [partial(request, 0, b"a")]
    for _ in client.stream("echo", b""):
        break
    broker.on_request = lambda request: [final(request, b"x")]
    client.request("echo", b"")
    assert client._core.outstanding == 0


def test_a_reader_that_is_too_slow_is_told(kind: type[HAClient], broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [partial(request, index, b"x") for index in range(100)]
    with kind(broker.endpoint, partials_max=10, timeout=WAIT_S) as client:
        stream = client.stream("echo", b"")
        next(stream)
        broker.on_request = lambda request: [final(request, b"x")]
        client.request("echo", b"")
        with pytest.raises(StreamInterruptedError, match="too slow"):
            list(stream)


# --- looking ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("MMI-C-01")
def test_discover_is_a_hint_and_a_request_for_a_lost_worker_still_has_its_deadline(
    client: HAClient, broker: ScriptedBroker
) -> None:
    def manage(request: Request) -> list[list[bytes]]:
        if request.service == b"mmi.service":
            return [final(request, b"200" if request.body == [b"echo"] else b"404")]
        return []

    broker.on_request = manage
    assert client.discover("echo")
    assert not client.discover("nobody")
    with pytest.raises(CallError):
        client.request("echo", b"", timeout=0.2)


def test_services_are_listed(client: HAClient, broker: ScriptedBroker) -> None:
    listing = b'[{"service":"echo","workers":2,"queued":0}]'
    broker.on_request = lambda request: [final(request, b"200", listing)]
    assert client.services() == [{"service": "echo", "workers": 2, "queued": 0}]


def test_every_node_is_looked_at_whichever_is_active() -> None:
    with ScriptedBroker() as gone:
        endpoint = gone.endpoint
    with ScriptedBroker() as broker:
        broker.on_request = lambda request: [final(request, b"200", b'{"is_active":true}')]
        reports = node_states([broker.endpoint, endpoint], timeout=WAIT_S)
    assert (reports[0].state, reports[0].error) == ({"is_active": True}, None)
    assert (reports[1].state, reports[1].error) == (None, "connection refused: no process listens there")
    assert [message.service for message in broker.requests()] == [b"mmi.state"]
    assert broker.received(Ping) == []


def test_a_node_that_is_slow_to_shake_hands_is_not_taken_for_one_that_is_down() -> None:
    """A busy machine: the kernel accepts the connection, but the node has not been given the CPU yet."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoint = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
        began = time.monotonic()
        [report] = node_states(endpoint, timeout=1.5)
        waited_s = time.monotonic() - began
        busy.accept()[0].close()
        busy.accept()[0].close()  # that of the look at what is there
        busy.setblocking(False)
        with pytest.raises(BlockingIOError):
            busy.accept()  # it waited on one connection, and made no other
    assert report.state is None
    assert "no handshake in time: the node may not list this key" in str(report.error)
    assert waited_s >= 1.5


def test_a_connection_that_broke_is_made_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as front:
        front.settimeout(WAIT_S)
        endpoint = f"tcp://127.0.0.1:{front.getsockname()[1]}"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(node_states, endpoint, WAIT_S)
            front.accept()[0].close()
            front.accept()[0].close()
            assert not asked.done(), "somebody is there: that is no refusal"
            front.close()
            [report] = asked.result()
    assert (report.state, report.error) == (None, "connection refused: no process listens there")


# --- the end ------------------------------------------------------------------------------------------------


def test_closing_ends_outstanding_calls_in_bounded_time(client: HAClient, broker: ScriptedBroker) -> None:
    broker.on_request = silent
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            client.request("echo", b"", timeout=None)
        except BstarError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    broker.wait_for(lambda: len(broker.requests()) == 1)
    began = time.monotonic()
    client.close()
    client.close()
    asking.join(WAIT_S)
    assert time.monotonic() - began < WAIT_S
    assert [type(error) for error in errors] == [OutcomeUnknownError]
    with pytest.raises(ClosedError):
        client.request("echo", b"")


def test_closing_without_any_broker_is_quick(kind: type[HAClient]) -> None:
    with ScriptedBroker() as gone:
        endpoint = gone.endpoint
    client = kind([endpoint])
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < WAIT_S, "a call's own timeout is longer"


@pytest.mark.parametrize("kind", [HAClient], indirect=True)
def test_in_a_forked_child_every_call_says_so(client: HAClient) -> None:
    client.request("echo", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tried here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            client.request("echo", b"")
        except ForkedError:
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.request("echo", b"still well").body == b"still well"


@pytest.mark.parametrize("endpoints", [[], ["tcp://127.0.0.1:1"] * 2, ["nonsense"]])
def test_endpoints_that_cannot_be_used_are_told(kind: type[HAClient], endpoints: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        kind(endpoints)


# --- plain MDP/0.2 ------------------------------------------------------------------------------------------


def mdp_echo(frames: list[bytes]) -> list[list[bytes]]:
    """[id] [MDPC02] [01] [service] [body…] → one PARTIAL and the FINAL."""
    return [[frames[0], b"MDPC02", b"\x02", frames[3], b"part"], [frames[0], b"MDPC02", b"\x03", *frames[3:]]]


@pytest.mark.requirement("MDP2-C-01")
@pytest.mark.requirement("MDP1-C-01")
def test_a_plain_client_is_a_dealer_that_puts_no_frame_before_the_header(
    kind: type[HAClient], broker: ScriptedBroker
) -> None:
    broker.on_frames = mdp_echo
    with kind(broker.endpoint, dialect="mdp02", timeout=WAIT_S) as client:
        reply = client.request("echo", b"hi")
        # A REQ socket would have lost the second message.
        assert (reply.partials, reply.body) == (((b"part",),), b"hi")
        assert [frames[1:] for frames in broker.frames] == [[b"MDPC02", b"\x01", b"echo", b"hi"]]
        assert [r.is_final for r in client.stream("echo", b"hi")] == [False, True]
        assert [r.body for r in client.map("echo", [b"a", b"b", b"c"])] == [b"a", b"b", b"c"]
