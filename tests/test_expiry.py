"""Which queued request's time ends next, whatever the order in which they came, left and were queued anew."""

from hypothesis import given
from hypothesis import strategies as st

from bstar.wire.mdp02 import CODEC
from bstar_broker.core.expiry import Expiries
from bstar_broker.core.records import Accepted, ServiceRecord

SERVICE = ServiceRecord(b"echo", 0.0)


def request(expires_at: float) -> Accepted:
    return Accepted(b"c", (), CODEC, b"c", SERVICE, [b"x"], 1, b"", b"", 0.0, expires_at, expires_at)


def wait(expiries: Expiries, each: Accepted, queued: int = 1) -> Accepted:
    each.is_queued = True
    expiries.push(each, queued)
    return each


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(0, 20)),
            st.tuples(st.just("leave"), st.integers(0, 50)),
            st.tuples(st.just("extend"), st.integers(0, 50)),
            st.tuples(st.just("pass"), st.integers(1, 5)),
        ),
        max_size=60,
    )
)
def test_the_time_of_each_ends_once_in_order_and_not_of_those_that_have_left(
    steps: list[tuple[str, int]],
) -> None:
    expiries = Expiries()
    waiting: list[Accepted] = []
    now = 0.0
    for verb, number in steps:
        if verb == "wait":
            waiting.append(wait(expiries, request(now + number), len(waiting) + 1))
        elif verb == "pass":
            now += number
        elif waiting:
            each = waiting[number % len(waiting)]
            if verb == "leave":
                waiting.remove(each)
                each.is_queued = False
            else:
                each.expires_at += number
                expiries.push(each, len(waiting))
        soonest = min((each.expires_at for each in waiting), default=None)
        told = expiries.next()
        assert soonest is None or (told is not None and told <= soonest)
        if verb == "pass":
            due = expiries.pop_due(now)
            assert [each.expires_at for each in due] == sorted(
                each.expires_at for each in waiting if each.expires_at <= now
            )
            assert not any(each.is_queued for each in due)
            waiting = [each for each in waiting if each.is_queued]


def test_those_that_left_in_the_order_in_which_they_came_are_not_remembered() -> None:
    expiries = Expiries()
    waiting = [wait(expiries, request(100.0 + number)) for number in range(50)]
    for number in range(50, 10_000):
        waiting.pop(0).is_queued = False
        waiting.append(wait(expiries, request(100.0 + number), 50))
        assert len(expiries) <= 51


def test_those_that_left_behind_one_that_waits_are_not_remembered_for_ever() -> None:
    expiries = Expiries()
    wait(expiries, request(1.0))
    for number in range(10_000):
        wait(expiries, request(2.0 + number % 7), 2).is_queued = False
    assert len(expiries) < 2_000
    assert len(expiries.pop_due(1.5)) == 1
