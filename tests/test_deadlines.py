"""Deadlines, against a list that is looked through."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bstar.base.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("extend"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.integers(1, 5)),
        st.tuples(st.just("tidy"), st.just(0)),
    ),
    max_size=100,
)


class Item(msgspec.Struct, eq=False):
    """Something with a deadline; inf: it has ended."""

    deadline: float


def deadlines_of(*times: float) -> Deadlines[Item]:
    deadlines = empty()
    for time in times:
        deadlines.add(Item(time), time)
    return deadlines


def empty() -> Deadlines[Item]:
    return Deadlines(lambda item, deadline: item.deadline == deadline)


@given(STEPS)
def test_each_item_is_due_once_in_order_and_only_if_it_has_not_ended(steps: list[tuple[str, int]]) -> None:
    deadlines = empty()
    pending: list[Item] = []
    times: list[float] = []
    now = 0.0
    for verb, number in steps:
        if verb == "add":
            pending.append(Item(now + number))
            deadlines.add(pending[-1], now + number)
        elif verb == "pass":
            now += number
            due = []
            for item in deadlines.pop_due(now):
                due.append(item.deadline)
                item.deadline = math.inf
            assert due == sorted(time for time in times if time <= now)
        elif verb == "tidy":
            deadlines.tidy(len(pending))
        elif pending:
            item = pending[number % len(pending)]
            if verb == "end":
                item.deadline = math.inf
            else:
                item.deadline += number
                deadlines.add(item, item.deadline)
        pending = [item for item in pending if item.deadline != math.inf]
        times = [item.deadline for item in pending]
        assert deadlines.next_deadline() <= min(times, default=math.inf)
        assert {id(item) for item in pending} <= {id(item) for item in deadlines}


def test_what_is_done_with_one_may_end_others_and_add_new_ones() -> None:
    deadlines = deadlines_of(1.0, 2.0, 3.0)
    taken = []
    for item in deadlines.pop_due(5.0):
        taken.append(item.deadline)
        if item.deadline == 1.0:
            for other in deadlines:
                other.deadline = math.inf
            deadlines.add(Item(4.0), 4.0)
            deadlines.add(Item(6.0), 6.0)
    assert taken == [1.0, 4.0]
    assert deadlines.next_deadline() == 6.0


def test_ended_items_leave_though_one_before_them_goes_on() -> None:
    deadlines = empty()
    first = Item(30.0)
    deadlines.add(first, 30.0)
    for number in range(5_000):
        # In order, and out of it.
        for until in (31.0 + number, 29.0):
            deadlines.add(Item(math.inf), until)
        deadlines.tidy(1)
    assert len(deadlines) < 1_100
    assert list(deadlines.pop_due(30.0)) == [first]


def test_ended_items_behind_one_that_is_due_leave_with_it() -> None:
    deadlines = deadlines_of(*map(float, range(100)))
    for item in deadlines:
        item.deadline = math.inf
    deadlines.add(Item(100.0), 100.0)
    assert list(deadlines.pop_due(0.0)) == []
    assert (len(deadlines), deadlines.next_deadline()) == (1, 100.0)


def test_ended_items_in_order_leave_with_the_next_that_comes() -> None:
    deadlines = empty()
    pending: list[Item] = []
    for number in range(10_000):
        if len(pending) == 50:
            pending.pop(0).deadline = math.inf
        pending.append(Item(100.0 + number))
        deadlines.add(pending[-1], 100.0 + number)
        assert len(deadlines) <= 58
