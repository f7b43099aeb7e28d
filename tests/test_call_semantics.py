"""What a call may end with: the same in a pair in memory and in a real one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest

from bstar.errors import BstarError
from bstar.wire import durable
from bstar_client import (
    Ask,
    BusyError,
    CallFailed,
    CallTimeoutError,
    ClosedError,
    DeadLetterError,
    Declined,
    DeclinedError,
    HandlerError,
    OutcomeUnknownError,
    Progress,
    Reply,
    Request,
    RequestCancelledError,
    RetryPolicy,
    UnknownRequestError,
)
from bstar_testing import Pair, pair
from support.call_stages import QUEUE_LENGTH_MAX, AsyncFake, Fake, Handler, Real, Stage
from support.timeouts import timeout_of_node

PRICES = {b"apple": b"3", b"pear": b"4"}
# So does the identity of a durable request's attempts begin: with its id.
ID_DIGITS = 2 * durable.ID_BYTES


@pytest.fixture(scope="module")
def real_pair() -> Iterator[Pair]:
    settings = {"limits.queue_length_max": QUEUE_LENGTH_MAX}
    with pair(workers=0, profile="guide", has_store=True, settings=settings) as made:
        yield made


@pytest.fixture(params=["fake", "fake asyncio", pytest.param("real", marks=pytest.mark.loopback)])
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "real":
        return Real(request.getfixturevalue("real_pair"))
    return Fake() if request.param == "fake" else AsyncFake()


def quote(request: Request) -> bytes:
    return PRICES[request.body]


class Runs:
    """A handler that keeps what it was asked. ``fault`` comes in its first run."""

    def __init__(self, fault: object = None) -> None:
        self.requests: list[Request] = []
        self._fault = fault

    def __call__(self, request: Request) -> bytes:
        self.requests.append(request)
        if len(self.requests) == 1 and callable(self._fault):
            self._fault()
        return b"done"


# --- requests -----------------------------------------------------------------------------------------------


def test_a_request_is_answered_by_the_handler_of_its_service(stage: Stage) -> None:
    with stage.enter({"price": quote, "shout": lambda request: request.body.upper()}):
        assert stage.client.request("price", b"apple").body == b"3"
        assert stage.client.request("shout", b"hello").body == b"HELLO"
        assert stage.client.discover("price")
        assert not stage.client.discover("nobody")
        assert {each["service"] for each in stage.client.services()} >= {"price", "shout"}


def test_a_handler_that_raises_is_a_handler_error(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        with pytest.raises(HandlerError, match="KeyError: b'brick'") as caught:
            stage.client.request("price", b"brick")
        assert caught.value.may_have_executed
        assert stage.client.request("price", b"pear").body == b"4"


def test_a_handler_that_declines_is_a_declined_error_with_its_code(stage: Stage) -> None:
    def decline(request: Request) -> bytes:
        raise Declined("no-such-sku", "we do not sell 7", data={"sku": 7})

    with stage.enter({"price": decline}):
        with pytest.raises(DeclinedError) as caught:
            stage.client.request("price", b"7")
        error = caught.value
        assert (error.code, error.text, error.data) == ("no-such-sku", "we do not sell 7", {"sku": 7})
        request = stage.client.submit("price", b"7")
        with pytest.raises(DeadLetterError) as dead:
            stage.client.result(request, wait=120)
        assert (dead.value.cause, dead.value.attempts) == ("declined", 1)


def test_frames_headers_and_time_reach_the_handler(stage: Stage) -> None:
    runs = Runs()
    with stage.enter({"work": runs}):
        stage.client.request("work", [b"a", b"b"], headers={"tenant": "7"}, timeout=120)
    [request] = runs.requests
    assert (request.service, request.frames) == (b"work", (b"a", b"b"))
    assert dict(request.headers) == {"tenant": "7"}
    remaining_s = request.remaining()
    assert remaining_s is not None
    assert 0 < remaining_s <= 120
    assert not request.is_redelivered


def test_a_service_that_nobody_offers_is_a_timeout_that_was_not_executed(stage: Stage) -> None:
    with stage.enter({}):
        error = timeout_of_node(lambda: stage.client.request("nobody", b"", timeout=10))
        assert 'no worker offers service "nobody"' in str(error)
        assert not error.may_have_executed


def test_a_handler_that_is_too_slow_is_a_timeout_that_may_have_been_executed(stage: Stage) -> None:
    with stage.enter({"slow": stage.slow(30)}):
        with pytest.raises(CallTimeoutError) as caught:
            stage.client.request("slow", b"", timeout=1)
        assert caught.value.may_have_executed


def test_a_closed_client_sends_nothing(stage: Stage) -> None:
    runs = Runs()
    with stage.enter({"work": runs}):
        stage.client.close()
        with pytest.raises(ClosedError):
            stage.client.request("work", b"")
    assert not runs.requests


# --- faults -------------------------------------------------------------------------------------------------


def test_a_request_whose_reply_was_lost_is_executed_again(stage: Stage) -> None:
    runs = Runs(stage.lose_reply)
    with stage.enter({"work": runs}):
        assert stage.client.request("work", b"x").body == b"done"
    first, second = runs.requests
    assert first.identity == second.identity
    assert (first.is_redelivered, second.is_redelivered) == (False, True)


def test_a_request_that_must_run_once_and_whose_reply_was_lost_has_no_known_outcome(stage: Stage) -> None:
    runs = Runs(stage.lose_reply)
    with stage.enter({"work": runs}):
        with pytest.raises(OutcomeUnknownError) as caught:
            stage.client.request("work", b"x", idempotent=False)
        assert caught.value.may_have_executed
        assert len(runs.requests) == 1


def test_a_request_is_redelivered_by_the_node_that_takes_over(stage: Stage) -> None:
    runs = Runs(stage.fail_over)
    with stage.enter({"work": runs}):
        stage.client.request("work", b"before", key="other")
        before = stage.client.active
        assert len(runs.requests) == 2
        assert runs.requests[1].is_redelivered
        assert runs.requests[1].epoch > runs.requests[0].epoch
        stage.client.request("work", b"after")
        assert stage.client.active == before


def test_a_call_after_a_failover_goes_to_the_other_node(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        stage.client.request("price", b"apple")
        before = stage.client.active
        stage.fail_over()
        assert stage.client.request("price", b"apple").body == b"3"
        assert stage.client.active != before


def test_a_full_queue_is_busy_until_the_deadline_and_nothing_is_executed(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        with stage.busy():
            with pytest.raises(BusyError) as caught:
                stage.client.request("full", b"apple", timeout=1)
            assert not caught.value.may_have_executed
            assert caught.value.retry_after_s
        assert stage.client.request("price", b"apple").body == b"3"


# --- many, and streams --------------------------------------------------------------------------------------


def test_map_yields_replies_in_order_and_failures_in_their_place(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        bodies = [b"apple", b"brick", Ask(b"x", service="nobody", timeout=1), b"pear"]
        outcomes = list(stage.client.map("price", bodies, errors="return"))
        assert [each.index for each in outcomes] == [0, 1, 2, 3]
        errors = [each.error for each in outcomes if isinstance(each, CallFailed)]
        assert list(map(type, errors)) == [HandlerError, CallTimeoutError]
        assert [each.body for each in (outcomes[0], outcomes[3])] == [b"3", b"4"]
        with pytest.raises(HandlerError):
            list(stage.client.map("price", [b"apple", b"brick"]))


@pytest.mark.parametrize("kind", [Fake, AsyncFake])
def test_map_yields_a_body_that_cannot_be_sent_before_a_reply_arrives(kind: type[Stage]) -> None:
    stage, runs = kind(), Runs()
    with stage.enter({"work": runs}):
        outcomes = stage.client.map("work", [Ask(b"late", timeout=0.0), b"x"], errors="return")
        assert isinstance(next(outcomes).error, CallTimeoutError)
        assert not runs.requests
        assert [each.body for each in outcomes] == [b"done"]


def test_a_stream_has_the_parts_of_its_handler_and_what_it_returns(stage: Stage) -> None:
    def three(request: Request) -> Generator[bytes, None, bytes]:
        for number in range(3):
            yield b"%d" % number
        return b"over"

    with stage.enter({"count": three}):
        parts = list(stage.client.stream("count", b""))
        assert [part.body for part in parts] == [b"0", b"1", b"2", b"over"]
        assert [part.is_final for part in parts] == [False, False, False, True]
        assert stage.client.request("count", b"").body == b"over"


def test_a_stream_may_be_left_early(stage: Stage) -> None:
    def endless(request: Request) -> Iterator[bytes]:
        for number in count():
            if is_over:
                return
            yield b"%d" % number
            stage.slow(0.0)(request) if isinstance(stage, Real) else None

    is_over: list[bool] = []
    with stage.enter({"count": endless, "price": quote}):
        stream = stage.client.stream("count", b"", timeout=120)
        assert next(stream).body == b"0"
        assert next(stream).body == b"1"
        stream.close()
        assert stage.client.request("price", b"apple").body == b"3"
        is_over.append(True)


# --- callers that give up -----------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_is_cancelled_at_its_handler(stage: Stage) -> None:
    calls: SimpleQueue[Any] = SimpleQueue()
    seen: list[bool] = []
    with stage.enter({"work": stage.left(lambda *_: calls.get().cancel(), seen), "price": quote}):
        call = stage.client.begin("work", b"")
        calls.put(call)
        stage.wait_until(lambda: seen)
        assert seen == [True]
        assert call.cancelled()
        assert stage.client.request("price", b"apple").body == b"3"


def test_a_call_whose_deadline_passes_is_cancelled_at_its_handler(stage: Stage) -> None:
    seen: list[bool] = []
    with stage.enter({"work": stage.left(lambda *_: None, seen), "price": quote}):
        with pytest.raises(CallTimeoutError):
            stage.client.request("work", b"", timeout=1)
        stage.wait_until(lambda: seen)
        assert seen == [True]
        assert stage.client.request("price", b"apple").body == b"3"


def test_a_stream_that_is_left_is_cancelled_at_its_handler(stage: Stage) -> None:
    seen: list[bool] = []

    def endless(request: Request) -> Iterator[bytes]:
        try:
            while True:
                yield b"more"
                if isinstance(stage, Real):
                    stage.pass_time(0.01)
        finally:
            seen.append(request.is_cancelled)

    with stage.enter({"count": endless, "price": quote}):
        stream = stage.client.stream("count", b"", timeout=120)
        assert next(stream).body == b"more"
        stream.close()
        stage.wait_until(lambda: seen)
        assert seen == [True]
        assert stage.client.request("price", b"apple").body == b"3"


def test_a_durable_request_that_is_cancelled_is_cancelled_at_its_handler(stage: Stage) -> None:
    seen: list[bool] = []

    def cancel(client: Any, request: Request) -> Any:
        return client.cancel(request.identity.hex()[:ID_DIGITS])

    with stage.enter({"work": stage.left(cancel, seen), "price": quote}):
        request = stage.client.submit("work", b"")
        stage.wait_until(lambda: seen)
        assert seen == [True]
        with pytest.raises(RequestCancelledError):
            stage.client.result(request, wait=120)
        assert stage.client.request("price", b"apple").body == b"3"


def test_a_key_that_another_caller_has_is_not_cancelled(stage: Stage) -> None:
    calls: SimpleQueue[Any] = SimpleQueue()
    runs = Runs(lambda: calls.get().cancel())
    with stage.enter({"work": runs}):
        first = stage.client.begin("work", b"", key=f"cancel {type(stage)}")
        calls.put(first)
        second = stage.client.begin("work", b"", key=f"cancel {type(stage)}")
        assert second.result().body == b"done"
        assert first.cancelled()
        assert not any(request.is_cancelled for request in runs.requests)


# --- progress -----------------------------------------------------------------------------------------------


def test_progress_reaches_the_caller_that_asks_and_the_last_comes_before_the_reply(stage: Stage) -> None:
    def work(request: Request) -> Iterator[bytes]:
        request.progress(1, 2, "begun")
        yield b"part"
        request.progress(2, 2)

    told = [Progress(1, 2, "begun"), Progress(2, 2)]
    seen: list[Progress] = []
    with stage.enter({"work": work}):
        stage.client.request("work", b"", on_progress=seen.append)
        assert seen in (told, told[-1:]), "a value that another follows at once may be left out"
        seen.clear()
        parts = [part.body for part in stage.client.stream("work", b"", on_progress=seen.append)]
        assert parts == [b"part", b""]
        assert seen in (told, told[-1:])
        seen.clear()
        stage.client.request("work", b"")
        assert seen == []


def test_progress_that_cannot_be_sent_is_an_error_of_its_handler(stage: Stage) -> None:
    def work(request: Request) -> None:
        request.progress(-1)

    with stage.enter({"work": work}), pytest.raises(HandlerError, match="done of a progress is a number"):
        stage.client.request("work", b"")


def test_after_a_failover_progress_is_that_of_the_second_execution_from_its_beginning(stage: Stage) -> None:
    runs: list[Request] = []

    def work(request: Request) -> bytes:
        runs.append(request)
        run = f"run {len(runs)}"
        request.progress(0, 2, run)
        if len(runs) == 1:
            stage.fail_over()
        request.progress(2, 2, run)
        return b"done"

    seen: list[Progress] = []
    with stage.enter({"work": work}):
        assert stage.client.request("work", b"x", on_progress=seen.append).body == b"done"
    assert seen[-1] == Progress(2, 2, "run 2")
    told = [Progress(done, 2, f"run {run}") for run, done in ((1, 0), (1, 2), (2, 0), (2, 2))]
    assert seen == [progress for progress in told if progress in seen], "in this order, each once"


# --- all workers --------------------------------------------------------------------------------------------


class Cache:
    """The handlers of one service's workers: each keeps what it was asked."""

    def __init__(self, count: int) -> None:
        self.asked: list[list[Request]] = [[] for _ in range(count)]
        self.handlers = [self._handler(number) for number in range(count)]

    def _handler(self, number: int) -> Handler:
        def clear(request: Request) -> bytes:
            self.asked[number].append(request)
            return b"%d" % number

        return clear


def by_outcome(outcomes: dict[str, Reply | CallFailed]) -> tuple[list[bytes], list[BstarError]]:
    """The bodies of the replies, sorted, and the errors. Workers register in any order."""
    bodies = sorted(each.body for each in outcomes.values() if isinstance(each, Reply))
    return bodies, [each.error for each in outcomes.values() if isinstance(each, CallFailed)]


def test_each_worker_is_asked_once_and_has_an_outcome(stage: Stage) -> None:
    def decline(request: Request) -> bytes:
        raise Declined("no-cache", "there is none")

    cache = Cache(8)
    with stage.enter({"clear": [*cache.handlers, decline, quote]}):
        answered, failed = by_outcome(stage.client.ask_all("clear", b"x"))
        assert answered == [b"%d" % number for number in range(8)]
        assert set(map(type, failed)) == {DeclinedError, HandlerError}
        assert len(failed) == 2
        assert stage.client.ask_all("nobody", b"x") == {}
    assert [len(each) for each in cache.asked] == [1] * 8


def test_a_worker_that_is_stuck_is_one_outcome_of_many(stage: Stage) -> None:
    cache = Cache(3)
    with stage.enter({"clear": [*cache.handlers, stage.slow(30)]}):
        answered, [error] = by_outcome(stage.client.ask_all("clear", b"x", timeout=2))
        assert answered == [b"0", b"1", b"2"]
        assert type(error) is CallTimeoutError
        assert error.may_have_executed


def test_at_a_failover_the_other_node_asks_the_same_workers(stage: Stage) -> None:
    cache = Cache(4)
    failing = iter([stage.fail_over])

    def fail_over(request: Request) -> bytes:
        for act in failing:
            act()
        return b"failed over"

    with stage.enter({"clear": [*cache.handlers, fail_over]}):
        outcomes = stage.client.ask_all("clear", b"x")
        assert by_outcome(outcomes) == ([b"0", b"1", b"2", b"3", b"failed over"], [])
        assert outcomes.keys() == stage.client.ask_all("clear", b"y").keys()
    assert all({each.body for each in asked} == {b"x", b"y"} for asked in cache.asked)


def test_at_a_failover_what_must_not_run_twice_and_was_begun_has_no_known_outcome(stage: Stage) -> None:
    runs = Runs(stage.fail_over)
    with stage.enter({"clear": [runs]}):
        [outcome] = stage.client.ask_all("clear", b"x", idempotent=False).values()
        assert type(outcome.error) is OutcomeUnknownError
    assert len(runs.requests) == 1


# --- durable requests ---------------------------------------------------------------------------------------


def test_a_durable_request_is_executed_and_its_answer_is_kept(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        request = stage.client.submit("price", b"apple", headers={"tenant": "7"})
        assert stage.client.result(request, wait=120).body == b"3"
        assert stage.client.result(request).body == b"3"
        status = stage.client.status_of(request)
        assert (status.state, status.attempts) == ("answered", 1)
        stage.client.close_result(request)
        with pytest.raises(UnknownRequestError):
            stage.client.result(request)


def test_one_key_is_one_durable_request(stage: Stage) -> None:
    runs = Runs()
    with stage.enter({"order": runs}):
        key = f"key of {type(stage).__name__}"
        first = stage.client.submit("order", b"x", key=key)
        assert stage.client.submit("order", b"x", key=key) == first
        stage.client.result(first, wait=120)
        assert stage.client.submit("order", b"x", key=key) == first
    assert len(runs.requests) == 1


def test_a_durable_request_that_always_fails_becomes_a_dead_letter(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        retries = RetryPolicy(max=2, backoff=0.2)
        request = stage.client.submit("price", b"brick", retries=retries)
        with pytest.raises(DeadLetterError, match="KeyError: b'brick'") as caught:
            stage.client.result(request, wait=120)
        assert (caught.value.cause, caught.value.attempts) == ("failed", 2)
        assert request in [each.id for each in stage.client.dead_letters("price")]


def test_a_durable_request_waits_for_its_time_and_may_be_cancelled(stage: Stage) -> None:
    runs = Runs()
    with stage.enter({"order": runs}):
        soon = stage.client.submit("order", b"soon", delay=1)
        late = stage.client.submit("order", b"late", delay=1)
        assert stage.client.result(soon, wait=0) is None
        assert stage.client.cancel(late).state == "cancelled"
        stage.pass_time(1)
        assert stage.client.result(soon, wait=120).body == b"done"
        with pytest.raises(RequestCancelledError):
            stage.client.result(late)
    assert [request.body for request in runs.requests] == [b"soon"]


# What each method returns of a request that was in this state (docs/durable.md).
AFTER = {
    "pending": {"cancel": "cancelled", "retry": "pending", "close_result": "pending"},
    "answered": {"cancel": "answered", "retry": "answered", "close_result": "answered"},
    "dead": {"cancel": "dead", "retry": "pending", "close_result": "dead"},
    "cancelled": {"cancel": "cancelled", "retry": "pending", "close_result": "cancelled"},
    "scheduled": {"cancel": "cancelled", "retry": "scheduled", "close_result": "scheduled"},
    "unknown": {"cancel": "unknown", "retry": "unknown", "close_result": "unknown"},
}


def test_cancel_retry_and_close_return_a_state_whatever_it_was(stage: Stage) -> None:
    with stage.enter({"price": quote}):
        client = stage.client

        def make(state: str) -> str:
            if state == "scheduled":
                return str(client.schedule("price", b"apple", every=86_400))
            body = b"brick" if state == "dead" else b"apple"
            delay = 0 if state in ("answered", "dead") else 86_400
            request = str(client.submit("price", body, delay=delay, retries=RetryPolicy(max=1)))
            if state == "dead":
                with pytest.raises(DeadLetterError):
                    client.result(request, wait=120)
            elif state == "answered":
                client.result(request, wait=120)
            elif state == "cancelled":
                client.cancel(request)
            elif state == "unknown":
                client.close_result(request)
            assert client.status_of(request).state == state
            return request

        for state, after in AFTER.items():
            requests = {verb: make(state) for verb in after}
            assert {verb: getattr(client, verb)(each).state for verb, each in requests.items()} == after
            assert client.status_of(requests["close_result"]).state == "unknown"
            for each in requests.values():
                client.close_result(each)


def test_a_durable_request_survives_the_death_of_a_node(stage: Stage) -> None:
    runs = Runs(stage.fail_over)
    with stage.enter({"order": runs}):
        request = stage.client.submit("order", b"x")
        assert stage.client.result(request, wait=120).body == b"done"
    assert len(runs.requests) == 2
    assert runs.requests[1].is_redelivered
