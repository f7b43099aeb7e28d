"""Deadlines of calls, against a list that is looked through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bstar_client.core.calls import Call
from bstar_client.core.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0, 50)),
        st.tuples(st.just("end"), st.integers(0, 200)),
        st.tuples(st.just("pass"), st.floats(0, 5)),
        st.tuples(st.just("tidy"), st.just(0)),
    ),
    max_size=200,
)


@given(STEPS)
def test_each_call_is_told_of_once_and_in_time(steps: list[tuple[str, float]]) -> None:
    deadlines = Deadlines()
    calls: list[tuple[float, Call]] = []
    now = 0.0
    for step, value in steps:
        if step == "add":
            call = Call(b"echo", [b""], now + value)
            deadlines.add(call, now + value)
            calls.append((now + value, call))
        elif step == "end" and calls:
            calls[int(value) % len(calls)][1].is_done = True
        elif step == "pass":
            now += value
            overdue = deadlines.take(now)
            assert len({id(call) for call in overdue}) == len(overdue)
            assert {id(call) for call in overdue} == {
                id(call) for until, call in calls if until <= now and not call.is_done
            }
            for call in overdue:
                call.is_done = True
        elif step == "tidy":
            deadlines.tidy(sum(not call.is_done for _, call in calls))
        live = [until for until, call in calls if not call.is_done]
        assert deadlines.due() <= min(live, default=float("inf"))
        assert all(call in deadlines for _, call in calls if not call.is_done)


def test_ended_calls_leave_though_one_before_them_goes_on() -> None:
    deadlines = Deadlines()
    first = Call(b"echo", [b""], 30.0)
    deadlines.add(first, 30.0)
    for number in range(5_000):
        # In order, and out of it.
        for until in (31.0 + number, 29.0):
            call = Call(b"echo", [b""], until, is_done=True)
            deadlines.add(call, until)
        deadlines.tidy(1)
    assert len(deadlines) < 1_100
    assert first in deadlines
    assert deadlines.take(30.0) == [first]


def test_calls_in_order_leave_with_the_next_look() -> None:
    deadlines = Deadlines()
    for number in range(100):
        deadlines.add(Call(b"echo", [b""], float(number), is_done=True), float(number))
    assert (deadlines.due(), len(deadlines)) == (float("inf"), 0)
