"""What the client tells of its attempts: that they are repetitions, how long is left, what became of them."""

from __future__ import annotations

import pytest

from bstar.errors import CallTimeoutError, OutcomeUnknownError
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_client.core.calls import Call
from support.client_desk import ACTIVE, Desk, status


def sent_to(desk: Desk, node: int) -> list[native.Message]:
    return [message for to, message in desk.sent if to == node and message.command == native.REQUEST]


@pytest.mark.requirement("BSN-C-02")
@pytest.mark.requirement("BSN-G-16")
def test_repetitions_and_new_requests_travel_in_different_batches(served: Desk) -> None:
    calls = [Call(b"echo", [b"%d" % number]) for number in range(4)]
    served.take(served.session.submit_all(calls[:2], served.now))
    served.disconnect(0)
    served.take(served.session.submit_all(calls[2:], served.now))
    before = served.batches
    served.pong(1, status(ACTIVE, epoch=2))
    again = native.FLAG_REDELIVERED | native.FLAG_WHOLE
    assert [message.flags for message in sent_to(served, 1)] == [again] * 2 + [native.FLAG_WHOLE] * 2
    assert served.batches == before + 2


@pytest.mark.requirement("BSN-C-02")
@pytest.mark.parametrize("count", [1, 3])
def test_a_repetition_has_the_time_that_is_left(served: Desk, count: int) -> None:
    calls = [Call(b"echo", [b"x"], served.now + 10.0, begun_at=served.now) for _ in range(count)]
    served.take(served.session.submit_all(calls, served.now))
    served.wait(0.5)
    served.pong(0, status(ACTIVE))
    served.wait(0.5)
    served.fail_over()
    # All but the quarter of a second that an answer about its end may take.
    assert [message.value for message in sent_to(served, 0)] == [9750] * count
    assert [message.value for message in sent_to(served, 1)] == [8750] * count


@pytest.mark.requirement("BSN-C-09")
@pytest.mark.parametrize(("timeout_s", "ttl_ms"), [(0.2, 190), (1.0, 950), (5.0, 4750), (60.0, 59_750)])
def test_a_request_expires_at_its_node_long_enough_before_the_callers_deadline(
    served: Desk, timeout_s: float, ttl_ms: int
) -> None:
    """The word that no worker began it came 20 ms before the end of a second: too late on a busy machine."""
    served.call(timeout=timeout_s)
    assert served.sent[-1][1].value in (ttl_ms, ttl_ms + 1)  # rounded up


@pytest.mark.requirement("BSN-C-09")
def test_an_attempt_that_lost_its_worker_may_have_been_executed_whatever_becomes_of_the_next(
    served: Desk,
) -> None:
    call = served.call()
    served.pong(1, status(ACTIVE, epoch=2))  # it is sent there as well
    served.error(0, call, ErrorCode.WORKER_LOST)
    assert served.errors == []
    served.error(1, call, ErrorCode.EXPIRED)
    error = served.error_of(call)
    assert isinstance(error, CallTimeoutError)
    assert error.may_have_executed


@pytest.mark.requirement("BSN-C-09")
def test_an_attempt_that_expired_was_not_executed_whatever_became_of_the_one_before(served: Desk) -> None:
    call = served.call()
    served.pong(1, status(ACTIVE, epoch=2))
    served.error(0, call, ErrorCode.EXPIRED)
    served.error(1, call, ErrorCode.EXPIRED)
    error = served.error_of(call)
    assert isinstance(error, CallTimeoutError)
    assert not error.may_have_executed


@pytest.mark.requirement("BSN-C-11")
@pytest.mark.parametrize("count", [1, 2])
def test_beginning_anew_does_not_repeat_what_must_not_be_executed_twice(served: Desk, count: int) -> None:
    calls = [Call(b"echo", [b"x"], is_idempotent=False) for _ in range(count)]
    served.take(served.session.submit_all(calls, served.now))
    served.take(served.session.restart(calls, served.now))
    served.connect(0, status(ACTIVE))
    assert [type(served.error_of(call)) for call in calls] == [OutcomeUnknownError] * count
    assert len(sent_to(served, 0)) == count
