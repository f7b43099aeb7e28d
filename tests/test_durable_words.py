"""What a client says to a store and reads of it, without a socket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from bstar.errors import (
    CallError,
    DeadLetterError,
    DurableError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestCancelledError,
    UnknownRequestError,
)
from bstar.wire import durable
from bstar.wire.durable import Cause, Fetch, Listing, Receipt, Standing, State, Submit
from bstar.wire.extensions import headers_extensions, headers_of
from bstar_client import Reply, RequestStatus, Result, RetryPolicy, Task
from bstar_client.calls.durable import schedule_frame, submit_frame, submit_frames
from bstar_client.calls.durable_answers import (
    Pages,
    Polls,
    read_receipt,
    read_schedule_receipt,
    read_status,
    to_id,
)
from bstar_client.calls.requests import extensions_of

ID = "00112233445566778899aabbccddeeff"
KEY = bytes.fromhex(ID)


def submitted(body: Any = b"x", service: str | bytes = "price", **options: Any) -> Submit:
    return durable.decode(submit_frame(service, Task(body, **options)), Submit)


def reply(message: Any, *more: bytes) -> Reply:
    return Reply((durable.encode(message), *more))


# --- what it says -------------------------------------------------------------------------------------------


def test_what_nobody_says_is_left_to_the_store() -> None:
    submit = submitted(b"body")
    assert submit == Submit(submit.id, b"price", [b"body"])


def test_what_would_expire_before_it_begins_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="expires before it begins"):
        submitted(b"body", delay=30, expires=5)
    with pytest.raises(LocalProtocolError, match="expires before it begins"):
        submitted(b"body", at=4_000_000_000, expires=5)


def test_every_option_is_in_milliseconds_on_the_wire() -> None:
    policy = RetryPolicy(max=7, backoff=0.25, backoff_max=60)
    submit = submitted([b"a", b"b"], delay=1.5, expires=3_600, retries=policy, priority=9)
    assert submit.body == [b"a", b"b"]
    assert (submit.delay_ms, submit.expires_ms, submit.priority) == (1_500, 3_600_000, 9)
    assert (submit.attempts_max, submit.backoff_ms, submit.backoff_max_ms) == (7, 250, 60_000)


@pytest.mark.parametrize(
    "at",
    [
        1_700_000_000.25,
        datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC),
        datetime(2023, 11, 15, 0, 13, 20, 250_000, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_is_a_datetime_or_unix_seconds(at: Any) -> None:
    assert submitted(at=at).at_ms == 1_700_000_000_250


def test_no_backoff_is_not_the_default_of_the_store() -> None:
    assert submitted(retries=RetryPolicy(backoff=0)).backoff_ms == 1


def test_each_submit_is_a_request_of_its_own_and_one_with_a_key_is_the_same() -> None:
    assert submitted().id != submitted().id
    assert submitted(key="order 1").id == submitted(b"y", key=b"order 1").id
    assert submitted(key="order 1").id == durable.keyed_id(b"price", b"order 1")
    assert submitted(key="order 1", service="book").id != submitted(key="order 1").id


def test_ids_made_later_are_greater() -> None:
    assert submitted().id[:6] <= submitted().id[:6]
    assert submitted().id[:6] > (1_700_000_000_000).to_bytes(6, "big")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": 1, "at": 2}, "give one of them"),
        ({"delay": -1}, "delay is 0 to"),
        ({"delay": float("nan")}, "delay is 0 to"),
        ({"at": -1}, "at is 0 to"),
        ({"at": datetime(2030, 1, 1)}, "at has no time zone"),  # noqa: DTZ001 - that is the case
        ({"expires": 0}, "expires is at least 0.001 s, not 0"),
        ({"expires": 1e12}, "expires is 0 to 4398046511 seconds"),
        ({"priority": 10}, "priority is 0 to 9"),
        ({"group": ""}, "a group's name has 1 to 128 characters, not 0"),
        ({"group": "x" * 129}, "a group's name has 1 to 128 characters, not 129"),
        ({"group": "customer\n7"}, "a group's name has printable characters, not"),
        ({"group": "\ud800"}, "a group's name has printable characters, not"),
        ({"retries": RetryPolicy(max=0)}, "max is 1 to 1000000"),
        ({"retries": RetryPolicy(backoff=-1)}, "backoff is 0 to"),
        ({"retries": RetryPolicy(backoff_max=0)}, "backoff_max is at least 0.001 s, not 0"),
        ({"key": ""}, "a key is one byte or more"),
        ({"service": "store.submit"}, "belong to the broker"),
        ({"service": "mmi.state"}, "belong to the broker"),
        ({"service": ""}, "a service name has 1 to 255 bytes"),
        ({"body": []}, "a body has 1 to"),
    ],
)
def test_what_is_out_of_range_is_refused_before_it_is_sent(options: dict[str, Any], text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        submitted(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": "1"}, "delay is a number of seconds, not str"),
        ({"delay": True}, "delay is a number of seconds, not bool"),
        ({"at": "2030-01-01"}, "at is a number of seconds, not str"),
        ({"priority": 1.0}, "priority is a whole number"),
        ({"retries": 5}, "retries is a RetryPolicy or None, not int"),
        ({"body": "text"}, "encode the text first"),
    ],
)
def test_what_is_of_a_wrong_type_is_a_type_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        submitted(**options)


def test_a_body_of_many_that_is_wrong_is_named() -> None:
    bodies: list[Any] = [b"a", Task(b"b", key="k"), "c"]
    with pytest.raises(TypeError) as caught:
        list(submit_frames("price", bodies, extensions_of))
    assert caught.value.__notes__ == ["body 2 of submit_many()"]


def test_headers_are_the_extensions_of_a_plain_request() -> None:
    headers = {"tenant": "blue", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert headers_of(submitted(headers=headers).headers) == headers
    assert submitted().headers == b""
    with pytest.raises(LocalProtocolError, match="visible ASCII"):
        submitted(headers={"a b": "x"})


def test_each_of_many_carries_what_the_client_adds_to_its_headers() -> None:
    bodies: list[bytes | Task] = [b"a", Task(b"b", headers={"tenant": "blue"})]
    frames = submit_frames(
        "price", bodies, lambda headers: headers_extensions({**(headers or {}), "trace": "1"})
    )
    carried = [dict(headers_of(durable.decode(frame, Submit).headers)) for frame in frames]
    assert carried == [{"trace": "1"}, {"tenant": "blue", "trace": "1"}]


@pytest.mark.parametrize("wrong", ["", ID[:-1], ID + "0", f" {ID[1:]}", "g" * 32, f"{ID}\n"])
def test_what_is_no_id_is_said_to_be_none(wrong: str) -> None:
    with pytest.raises(LocalProtocolError, match="32 hexadecimal digits"):
        to_id(wrong)


def test_an_id_is_a_text() -> None:
    with pytest.raises(TypeError, match="text that submit returned, not bytes"):
        to_id(KEY)
    assert to_id(ID.upper()) == KEY


# --- what it reads ------------------------------------------------------------------------------------------


def test_a_receipt_is_the_id() -> None:
    assert read_receipt(reply(Receipt(KEY, True, State.PENDING))) == ID


def test_an_answer_has_its_frames_and_times() -> None:
    standing = Standing(KEY, State.ANSWERED, b"price", 2, submitted_ms=1_500, ended_ms=2_750)
    result = Polls(ID, None, 0.0).read(reply(standing, b"a", b"b"))
    assert result == Result(ID, (b"a", b"b"), 3, 1.5, 2.75), "the store counts the failed attempts"
    assert result is not None
    with pytest.raises(ValueError, match="2 frames"):
        _ = result.body
    single = Polls(ID, None, 0.0).read(reply(standing, b"a"))
    assert single is not None
    assert single.body == b"a"


def test_what_is_pending_has_no_answer_yet() -> None:
    assert Polls(ID, None, 0.0).read(reply(Standing(KEY, State.PENDING))) is None


@pytest.mark.parametrize(
    ("standing", "kind", "may_have_executed"),
    [
        (Standing(KEY, State.DEAD, b"p", 3, cause=Cause.FAILED, text="no"), DeadLetterError, True),
        (Standing(KEY, State.DEAD, b"p", 0, cause=Cause.EXPIRED), DeadLetterError, True),
        (Standing(KEY, State.DEAD, b"p", 0, cause=Cause.REJECTED, text="no"), DeadLetterError, False),
        (Standing(KEY, State.DEAD, b"p", 1, cause=Cause.REJECTED, text="no"), DeadLetterError, True),
        (Standing(KEY, State.CANCELLED, b"p"), RequestCancelledError, True),
        (Standing(KEY, State.UNKNOWN), UnknownRequestError, True),
    ],
)
def test_what_will_have_no_answer_is_an_error_of_its_own(
    standing: Standing, kind: type[DurableError], may_have_executed: bool
) -> None:
    with pytest.raises(kind) as caught:
        Polls(ID, None, 0.0).read(reply(standing))
    assert isinstance(caught.value, CallError)
    assert caught.value.request_id == ID
    assert caught.value.may_have_executed is may_have_executed
    assert ID in str(caught.value)


def test_a_dead_letter_says_why() -> None:
    standing = Standing(KEY, State.DEAD, b"price", 3, cause=Cause.POISON, text="\x1b[31mlost")
    with pytest.raises(DeadLetterError) as caught:
        Polls(ID, None, 0.0).read(reply(standing))
    error = caught.value
    assert (error.cause, error.text, error.attempts) == ("poison", "\x1b[31mlost", 3)
    assert str(error).isprintable()
    assert '"price" is a dead letter after 3 attempts: poison: ' in str(error)


def test_a_status_has_seconds_and_words() -> None:
    standing = Standing(KEY, State.DEAD, b"\xff", 1, 1_000, 2_000, 3_000, 4_000, 5, Cause.EXPIRED, "t", 6, 7)
    status = read_status(reply(standing), ID)
    assert status == RequestStatus(ID, "dead", "\\xff", 1, 1.0, 2.0, 3.0, 4.0, 5, "expired", "t", 6, 7)
    assert read_status(reply(Standing(KEY, State.UNKNOWN)), ID) == RequestStatus(ID, "unknown")


def test_the_attempt_that_answered_counts() -> None:
    standing = Standing(KEY, State.ANSWERED, b"price", 2)
    result = Polls(ID, None, 0.0).read(Reply((durable.encode(standing), b"done")))
    assert result is not None
    assert result.attempts == read_status(reply(standing), ID).attempts == 3


def test_a_schedule_has_no_answer() -> None:
    with pytest.raises(LocalProtocolError, match="is a schedule: its requests have answers"):
        Polls(ID, None, 0.0).read(reply(Standing(KEY, State.SCHEDULED, b"price")))


def test_a_schedule_that_has_ended_is_no_success() -> None:
    assert read_schedule_receipt(reply(Receipt(KEY, False, State.SCHEDULED))) == ID
    with pytest.raises(RequestCancelledError, match="close it, then schedule it again") as caught:
        read_schedule_receipt(reply(Receipt(KEY, False, State.CANCELLED)))
    assert caught.value.request_id == ID


@pytest.mark.parametrize(
    ("every", "cron", "zone", "missed", "text"),
    [
        (0.5, None, "UTC", "skip", "every is at least 1 s, not 0.5"),
        (60.0, None, "Europe/Berlin", "skip", "zone is for cron"),
        (None, None, "UTC", "skip", "either an interval"),
        (60.0, "0 6 * * *", "UTC", "skip", "either an interval"),
        (60.0, None, "UTC", "never", "missed is one of skip, once, each"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_before_it_is_sent(
    every: float | None, cron: str | None, zone: str, missed: str, text: str
) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        schedule_frame("price", Task(b"x"), every=every, cron=cron, zone=zone, missed=missed)


def test_a_state_of_a_later_release_is_its_number() -> None:
    status = read_status(reply(Standing(KEY, 77, cause=88)), ID)
    assert (status.state, status.cause) == ("77", "88")
    with pytest.raises(RemoteProtocolError, match="an unknown state, 77"):
        Polls(ID, None, 0.0).read(reply(Standing(KEY, 77)))


@pytest.mark.parametrize(
    "message",
    [
        Reply((b"",)),
        Reply((b"\xc1",)),
        Reply((durable.encode(Receipt(KEY, True, 1)),)),
        reply(Standing(bytes(16), State.PENDING)),
        reply(Standing(KEY, State.ANSWERED)),
    ],
)
def test_an_answer_that_is_none_is_an_error(message: Reply) -> None:
    with pytest.raises(RemoteProtocolError):
        Polls(ID, None, 0.0).read(message)


# --- how long it waits --------------------------------------------------------------------------------------


def wait_ms(frame: bytes) -> int:
    fetch = durable.decode(frame, Fetch)
    assert fetch.id == KEY
    return fetch.wait_ms


def test_a_long_wait_is_many_questions() -> None:
    polls = Polls(ID, 50.0, 100.0)
    assert [wait_ms(polls.frame(now)) for now in (100.0, 120.0, 140.0)] == [20_000, 20_000, 10_000]
    assert not polls.is_over(149.9)
    assert polls.is_over(150.0)


def test_no_wait_is_one_question() -> None:
    polls = Polls(ID, 0, 100.0)
    assert wait_ms(polls.frame(100.0)) == 0
    assert polls.is_over(100.0)


def test_a_wait_without_an_end_is_never_over() -> None:
    polls = Polls(ID, None, 0.0)
    assert wait_ms(polls.frame(1e6)) == 20_000
    assert not polls.is_over(1e9)


def test_a_node_that_does_not_wait_is_not_asked_at_once() -> None:
    polls = Polls(ID, 60.0, 0.0)
    pauses = []
    for _ in range(7):
        polls.frame(0.0)
        pauses.append(polls.pause_s(0.001))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    polls.frame(1.0)
    assert polls.pause_s(21.0) == 0.0, "it waited"
    polls.frame(59.99)
    assert polls.pause_s(59.99) == pytest.approx(0.01), "not beyond the wait"


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf")])
def test_a_wait_that_is_none_is_refused(wait: float) -> None:
    with pytest.raises(LocalProtocolError, match="wait is 0 to"):
        Polls(ID, wait, 0.0)


# --- lists --------------------------------------------------------------------------------------------------


def test_a_list_is_read_page_by_page() -> None:
    pages = Pages("price", "dead", 60, bodies=False)
    wanted = durable.decode(pages.frame(), durable.Filter)
    assert (wanted.service, wanted.state, wanted.older_ms, wanted.after) == (b"price", State.DEAD, 60_000, 0)
    first = list(pages.read(reply(Listing([Standing(KEY, State.DEAD)], 17))))
    assert ([status.id for status in first], pages.is_over) == ([ID], False)
    assert durable.decode(pages.frame(), durable.Filter).after == 17
    assert list(pages.read(reply(Listing([], 0)))) == []
    assert pages.is_over


def test_a_page_that_leads_back_is_an_error() -> None:
    pages = Pages(None, None, None, bodies=False)
    list(pages.read(reply(Listing([], 17))))
    with pytest.raises(RemoteProtocolError, match="page 17 is followed by 17"):
        pages.read(reply(Listing([], 17)))


def test_bodies_belong_to_their_requests() -> None:
    pages = Pages(None, None, None, bodies=True)
    assert durable.decode(pages.frame(), durable.Filter).with_bodies
    [status] = pages.read(reply(Listing([Standing(KEY, State.PENDING)], 0, [[b"a", b"b"]])))
    assert status.frames == (b"a", b"b")
    with pytest.raises(RemoteProtocolError, match="one body for each"):
        pages.read(reply(Listing([Standing(KEY, State.PENDING)], 0, [[b"a"], [b"b"]])))


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(
        LocalProtocolError, match="one of pending, answered, dead, cancelled, scheduled, not 'gone'"
    ):
        Pages(None, "gone", None, bodies=False)
