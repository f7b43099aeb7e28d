"""The rules of a history of calls, event by event."""

from __future__ import annotations

import pytest

from bstar_testing.rules import CallHistory


def begun(
    history: CallHistory, worker: str = "w1", *, epoch: int = 1, seen: int = 1, is_redelivered: bool = False
) -> list[str]:
    found = history.begun(
        "a", 1.0, worker=worker, epoch=epoch, epoch_seen=seen, is_redelivered=is_redelivered
    )
    return [violation.rule for violation in found]


def ended(history: CallHistory, *, may_have_executed: bool = True) -> list[str]:
    found = history.ended("a", "an end", may_have_executed=may_have_executed)
    return [violation.rule for violation in found]


@pytest.fixture
def history() -> CallHistory:
    history = CallHistory()
    history.called("a")
    return history


def test_a_call_that_is_executed_once_and_answered_breaks_no_rule(history: CallHistory) -> None:
    assert begun(history) + ended(history) == []
    assert history.begins_of("a") == 1


def test_a_worker_does_not_obey_a_lower_epoch_than_it_has_seen(history: CallHistory) -> None:
    assert begun(history, epoch=1, seen=2) == ["b"]


def test_a_call_ends_once(history: CallHistory) -> None:
    assert ended(history) + ended(history) == ["d"]


@pytest.mark.parametrize("is_before", [True, False])
def test_what_was_said_not_to_be_executed_is_not_begun(history: CallHistory, is_before: bool) -> None:
    found = begun(history) if is_before else []
    found += ended(history, may_have_executed=False)
    found += [] if is_before else begun(history)
    assert found == ["d"]


@pytest.mark.parametrize("marks", [(False, True), (True, False), (False, True, True)])
def test_of_all_executions_one_need_not_be_marked_whichever_it_is(
    history: CallHistory, marks: tuple[bool, ...]
) -> None:
    assert [rule for mark in marks for rule in begun(history, is_redelivered=mark)] == []


def test_a_second_execution_without_a_mark_is_found(history: CallHistory) -> None:
    assert begun(history) + begun(history, "w2") == ["i"]


def test_attempts_of_a_plain_client_need_no_mark() -> None:
    history = CallHistory()
    history.called("a", is_marked=False)
    assert begun(history) + begun(history, "w2") == []


def test_a_call_that_forbids_it_has_no_second_execution_marked_or_not() -> None:
    history = CallHistory()
    history.called("a", is_once=True)
    assert begun(history) + begun(history, "w2", is_redelivered=True) == ["i"]
