"""The window of a map: what is in flight, what is begun next, what is given out, and less of it at BUSY."""

from __future__ import annotations

import pytest

from bstar.errors import BstarError, HandlerError, LocalProtocolError
from bstar_client.core.calls import Asked, Call, CallFailed, Reply
from bstar_client.core.counters import Counters
from bstar_client.core.window import Pace, Window


def make_call(body: Asked, index: int) -> Call:
    if body == b"unsendable":
        raise LocalProtocolError("it cannot be sent")
    assert isinstance(body, bytes)
    return Call(b"echo", [body], index=index)


def window(size: int, *, is_ordered: bool = True, is_returning: bool = True) -> Window:
    return Window(size, Counters(), is_ordered=is_ordered, is_returning=is_returning)


def answered(call: Call) -> tuple[Call, Reply | BstarError]:
    return call, Reply((call.body[0],), index=call.index)


def given(sliding: Window) -> list[int]:
    return [outcome.index for outcome in sliding.ready()]


def test_it_is_refilled_in_bursts_of_a_quarter() -> None:
    sliding = window(8)
    assert sliding.room == 8
    calls = sliding.begin([b"x"] * 8, make_call)
    assert sliding.room == 0
    sliding.take([answered(calls[0])])
    assert given(sliding) == [0]
    assert sliding.room == 0, "an eighth is free"
    sliding.take([answered(calls[1])])
    assert given(sliding) == [1]
    assert sliding.room == 2
    sliding.is_exhausted = True
    assert sliding.room == 0


def test_in_order_a_reply_waits_for_earlier_ones_and_counts_against_the_window() -> None:
    sliding = window(4)
    calls = sliding.begin([b"x"] * 4, make_call)
    sliding.take([answered(call) for call in calls[1:]])
    assert not sliding.ready()
    assert sliding.room == 0
    sliding.take([answered(calls[0])])
    assert given(sliding) == [0, 1, 2, 3]
    assert sliding.room == 4


def test_in_any_order_a_reply_is_given_out_as_it_comes() -> None:
    sliding = window(4, is_ordered=False)
    calls = sliding.begin([b"x"] * 4, make_call)
    sliding.take([answered(calls[2]), answered(calls[0])])
    assert given(sliding) == [2, 0]
    assert sliding.room == 2


def test_an_outcome_that_comes_twice_counts_once() -> None:
    sliding = window(4)
    calls = sliding.begin([b"x"] * 2, make_call)
    for _ in range(2):
        sliding.take([answered(calls[0])])
    assert given(sliding) == [0]
    assert list(sliding.in_flight) == [1]


def test_failures_take_the_places_of_their_replies() -> None:
    sliding = window(4)
    calls = sliding.begin([b"x", b"unsendable", b"x"], make_call)
    sliding.is_exhausted = True
    assert [call.index for call in calls] == [0, 2]
    calls[1].attempts = 3
    sliding.take([answered(calls[0]), (calls[1], HandlerError("it failed"))])
    reply, unsendable, failed = sliding.ready()
    assert isinstance(reply, Reply)
    assert isinstance(unsendable, CallFailed)
    assert isinstance(unsendable.error, LocalProtocolError)
    assert isinstance(failed, CallFailed)
    assert (failed.index, failed.attempts) == (2, 3)
    assert sliding.is_over


def test_the_first_failure_is_raised_with_its_position_if_so_asked() -> None:
    sliding = window(4, is_returning=False)
    calls = sliding.begin([b"x"] * 3, make_call)
    with pytest.raises(HandlerError) as caught:
        sliding.take([answered(calls[0]), (calls[1], HandlerError("it failed")), answered(calls[2])])
    assert caught.value.__notes__ == ["body 1 of map()"]
    assert list(sliding.in_flight) == [2]
    with pytest.raises(LocalProtocolError):
        sliding.begin([b"unsendable"], make_call)


def test_a_window_shrinks_at_busy_once_in_as_many_replies_and_grows_back_without_it() -> None:
    counters = Counters()
    pace = Pace(100, counters)
    counters.busy += 40
    pace.take(10)
    assert pace.limit == 75
    counters.busy += 1
    pace.take(30)
    assert pace.limit == 75, "these were sent before it shrank"
    counters.busy += 1
    pace.take(40)
    assert pace.limit == 75
    counters.busy += 1
    pace.take(1)
    assert pace.limit == 75 * 0.75
    for _ in range(10_000):
        pace.take(1)
    assert pace.limit == 100


def test_a_window_never_falls_below_one() -> None:
    counters = Counters()
    pace = Pace(2, counters)
    for _ in range(50):
        counters.busy += 1
        pace.take(5)
    assert pace.limit == 1
