"""The broker's queue: fair between clients, urgent before the rest, and nobody starves."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.wire.limits import FRESH_IN_A_ROW_MAX
from bstar_broker.core.queues import URGENT_IN_A_ROW_MAX, FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    items = []
    while queue.length:
        head = queue.head()
        items.append(queue.pop())
        assert items[-1] == head
    return items


def test_lanes_take_turns_and_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.push(item[:1].encode(), item)
    assert drained(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_what_is_urgent_goes_first_and_is_fair_in_itself() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "A1", "A2", "B1"):
        queue.push(item[:1].encode(), item, is_urgent=item[0].isupper())
    assert drained(queue) == ["A1", "B1", "A2", "a1", "b1"]


def test_the_others_are_not_starved_by_urgent_ones() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.push(b"a", f"U{number}", is_urgent=True)
    for number in range(3):
        queue.push(b"b", f"n{number}")
    kinds = [(kind, len(list(run))) for kind, run in groupby(item[0] for item in drained(queue))]
    bound = URGENT_IN_A_ROW_MAX
    assert kinds == [("U", bound), ("n", 1)] * 3 + [("U", 100 - 3 * bound)]


def test_urgent_items_alone_are_not_counted_against_anybody() -> None:
    """A debt to others begins to count while others wait, and one of them is next at most."""
    queue: FairQueue[str] = FairQueue()
    for number in range(URGENT_IN_A_ROW_MAX + 5):
        queue.push(b"a", f"U{number}", is_urgent=True)
        queue.pop()
    queue.push(b"b", "n")
    queue.push(b"a", "U", is_urgent=True)
    assert sorted(drained(queue)) == ["U", "n"]


def test_an_item_that_had_its_turn_is_next_again() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "B2"):
        queue.push(item[:1].lower().encode(), item, is_urgent=item[0].isupper())
    queue.push_front(b"c", "c0")
    queue.push_front(b"b", "B0", is_urgent=True)
    assert drained(queue) == ["B0", "B2", "c0", "a1", "b1"]


def test_a_lane_that_was_empty_for_a_round_has_its_first_turn_at_once() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"):
        queue.push(item[:1].encode(), item)
    assert [queue.pop(), queue.pop()] == ["a1", "b1"]
    queue.push(b"q", "q1")
    assert queue.pop() == "q1"
    # It comes back within the round, and waits for its turn in it.
    queue.push(b"q", "q2")
    assert [queue.pop() for _ in range(3)] == ["a2", "b2", "q2"]
    assert [queue.pop() for _ in range(3)] == ["a3", "b3", "a4"]
    # The round has gone past it.
    queue.push(b"q", "q3")
    assert drained(queue) == ["q3", "b4"]


def test_coming_back_at_once_each_time_brings_no_more_than_a_fair_share() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(90):
        for greedy in "abc":
            queue.push(greedy.encode(), f"{greedy}{number}")
    served = []
    queue.push(b"q", "q")
    for _ in range(100):
        served.append(queue.pop()[0])
        if served[-1] == "q":
            queue.push(b"q", f"q{len(served)}")
    assert served.count("q") <= 100 // 4 + 1


def test_a_stream_of_newcomers_does_not_starve_those_who_wait() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5):
        queue.push(b"a", f"a{number}")
    queue.pop()
    queue.pop()
    bound = FRESH_IN_A_ROW_MAX
    for number in range(4 * bound):
        queue.push(b"n%d" % number, f"n{number}")
    kinds = [(kind, len(list(run))) for kind, run in groupby(item[0] for item in drained(queue))]
    assert kinds == [("n", bound), ("a", 1)] * 3 + [("n", bound)]


def test_lanes_that_were_served_leave_nothing_behind() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(1_000):
        queue.push(b"a", f"a{number}")
    for number in range(500):
        queue.push(b"n%d" % number, f"n{number}")
        queue.pop()
        queue.pop()
    assert len(queue._round) <= 2
    drained(queue)
    assert len(queue._round) == 0


@pytest.mark.parametrize("is_urgent", [False, True])
def test_anything_can_be_taken_out_from_anywhere(is_urgent: bool) -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3"):
        queue.push(b"a", item, is_urgent=is_urgent)
    queue.remove(b"a", "a2", is_urgent=is_urgent)
    assert (queue.length, list(queue)) == (2, ["a1", "a3"])
    assert queue.clear() == ["a1", "a3"]
    with pytest.raises(IndexError):
        queue.head()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 2)), max_size=60))
def test_everything_comes_out_once_and_in_the_order_of_its_client(steps: list[tuple[str, bool, int]]) -> None:
    queue: FairQueue[tuple[str, bool, int]] = FairQueue()
    out = []
    pushed = []
    for number, (client, is_urgent, pops) in enumerate(steps):
        item = (client, is_urgent, number)
        queue.push(client.encode(), item, is_urgent=is_urgent)
        pushed.append(item)
        out += [queue.pop() for _ in range(min(pops, queue.length))]
    out += [queue.pop() for _ in range(queue.length)]
    assert sorted(out, key=lambda item: item[2]) == pushed
    for kind in {(client, is_urgent) for client, is_urgent, _ in pushed}:
        numbers = [number for *same, number in out if tuple(same) == kind]
        assert numbers == sorted(numbers)
