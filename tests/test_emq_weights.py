"""Which job manager gets the next job of a queue: the weights of their INFORMs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bstar.wire import emq
from support.emq import EmqStage, requests


def takers(stage: EmqStage, count: int, queue: str = "default", first: int = 1) -> list[bytes]:
    """Who gets so many requests, one after the other."""
    told = [stage.asks(b"q%d" % number, queue=queue) for number in range(first, first + count)]
    return [peer for each in told for peer, _ in requests(each)]


def test_the_manager_with_the_higher_weight_goes_first_and_the_other_one_has_the_rest() -> None:
    stage = EmqStage()
    stage.manager(b"light", (10, "default"), slots=3)
    stage.manager(b"heavy", (20, "default"), slots=2)

    assert takers(stage, 6) == [b"heavy", b"heavy", b"light", b"light", b"light"]
    assert requests(stage.ready(b"light")) == [(b"light", b"q6")]


def test_a_free_slot_of_the_heavier_manager_closes_the_lighter_one() -> None:
    stage = EmqStage()
    stage.manager(b"heavy", (20, "default"), slots=1)
    stage.manager(b"light", (10, "default"), slots=5)

    assert takers(stage, 2) == [b"heavy", b"light"]
    stage.ends(b"q1", name=b"heavy")
    assert takers(stage, 1, first=3) == [b"light"]
    stage.ready(b"heavy")
    assert takers(stage, 2, first=4) == [b"heavy", b"light"]


def test_managers_of_one_weight_take_turns_whatever_a_heavier_one_does() -> None:
    stage = EmqStage()
    for name in (b"one", b"two", b"three"):
        stage.manager(name, (10, "default"), slots=9)
    stage.manager(b"heavy", (20, "default"))

    turns = []
    for number in range(6):
        stage.ready(b"heavy")
        assert takers(stage, 1, first=10 + 2 * number) == [b"heavy"]
        turns += takers(stage, 1, first=11 + 2 * number)

    assert sorted(turns[:3]) == [b"one", b"three", b"two"]
    assert turns[3:] == turns[:3]


def test_each_queue_has_its_own_order_of_managers() -> None:
    stage = EmqStage()
    stage.manager(b"m1", (20, "a"), (10, "b"), slots=2)
    stage.manager(b"m2", (10, "a"), (20, "b"), slots=2)

    assert takers(stage, 1, "a") + takers(stage, 1, "b", 2) == [b"m1", b"m2"]
    # The last slots of both go to one queue.
    assert takers(stage, 2, "a", 3) == [b"m1", b"m2"]


def test_waiting_jobs_go_to_the_lighter_manager_when_the_heavier_one_leaves() -> None:
    stage = EmqStage()
    stage.manager(b"heavy", (20, "default"), slots=2)
    stage.manager(b"light", (10, "default"), slots=3)
    assert takers(stage, 1) == [b"heavy"]

    assert requests(stage.says("workers", b"heavy", emq.Goodbye(b"k"))) == [(b"light", b"q1")]
    assert takers(stage, 2, first=2) == [b"light", b"light"]


def test_a_queue_that_stands_twice_in_an_inform_has_its_higher_weight() -> None:
    stage = EmqStage()
    stage.manager(b"twice", (5, "default"), (30, "default"), slots=1)
    stage.manager(b"once", (20, "default"), slots=1)

    assert takers(stage, 2) == [b"twice", b"once"]


STEPS = st.lists(st.tuples(st.sampled_from("raekd"), st.integers(0, 3), st.sampled_from("xy")), max_size=60)
INFORMS = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("xy")), min_size=1, max_size=2),
    min_size=2,
    max_size=4,
)


@given(INFORMS, STEPS)
def test_no_job_passes_a_free_slot_of_a_higher_weight_and_none_waits_beside_one(
    informs: list[list[tuple[int, str]]], steps: list[tuple[str, int, str]]
) -> None:
    stage = EmqStage()
    weights = [{queue: weight for weight, queue in sorted(inform)} for inform in informs]
    free = [0] * len(informs)
    waiting = {"x": 0, "y": 0}
    for number, inform in enumerate(informs):
        stage.manager(b"%d" % number, *inform)
    held: list[list[bytes]] = [[] for _ in informs]
    for turn, (step, index, queue) in enumerate(steps):
        number = index % len(informs)
        name = b"%d" % number
        if step == "a":
            waiting[queue] += 1
            told = stage.asks(b"q%d" % turn, queue=queue)
        elif step == "r":
            free[number] += 1
            told = stage.ready(name)
        elif step == "e" and held[number]:
            told = stage.ends(held[number].pop(), name=name)
        elif step == "d" and not held[number]:
            free[number] = 0
            told = stage.manager(name, *informs[number])
        else:
            continue
        for message in [(int(peer), each) for peer, each in told if isinstance(each, emq.Request)]:
            taker, request = message
            best = max(weights[each].get(request.queue, 0) for each in range(len(free)) if free[each])
            assert weights[taker][request.queue] == best, (message, free)
            free[taker] -= 1
            waiting[request.queue] -= 1
            held[taker].append(request.msgid)
        for each, has_waiting in waiting.items():
            assert not (has_waiting and any(free[n] and each in weights[n] for n in range(len(free))))
        assert all(count >= 0 for count in free)
