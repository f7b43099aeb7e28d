"""The rules for histories of durable requests, on hand-made histories, good and bad."""

from __future__ import annotations

from chaos.durable_rules import Histories, read_histories
from chaos.history import Asked, Begin, Line, Operation, Told

SUBMIT, RESULT, CLOSE, CANCEL = Operation.SUBMIT, Operation.RESULT, Operation.CLOSE, Operation.CANCEL


def called(*calls: tuple[Operation, str, str], body: str = "b") -> list[Line]:
    """Calls one after the other, one a second: what was asked, what was told, its text."""
    lines: list[Line] = []
    for number, (operation, outcome, text) in enumerate(calls):
        lines.append(Asked(at=float(number), id=number, operation=operation, body=body))
        if outcome:
            lines.append(Told(at=number + 0.5, id=number, outcome=outcome, text=text))
    return lines


def begin(at: float, number: int = 1, body: str = "b") -> Begin:
    return Begin(at=at, number=number, identity="", epoch=1, endpoint="", body=body, is_redelivered=False)


def judged(lines: list[Line], *begins: Begin) -> list[str]:
    workers: dict[str, list[Line]] = {"worker1": list(begins)}
    return [violation.rule for violation in read_histories([lines], workers).violations(workers)]


def test_a_request_that_was_answered_and_closed_breaks_no_rule() -> None:
    lines = called(
        (SUBMIT, "failed", ""), (SUBMIT, "stored", ""), (RESULT, "pending", ""), (RESULT, "failed", ""),
        (RESULT, "answer", "b|worker1|1"), (RESULT, "answer", "b|worker1|1"), (CLOSE, "failed", ""),
        (CLOSE, "unknown", ""),
    )  # fmt: skip
    assert judged(lines, begin(1.2)) == []


def test_a_request_that_was_never_acknowledged_may_be_gone() -> None:
    assert judged(called((SUBMIT, "failed", ""), (RESULT, "unknown", ""))) == []


def test_an_acknowledged_request_that_is_unknown_was_lost() -> None:
    assert judged(called((SUBMIT, "stored", ""), (RESULT, "unknown", ""))) == ["kept", "ended"]


def test_a_close_that_was_asked_for_and_not_answered_may_have_been_done() -> None:
    assert judged(called((SUBMIT, "stored", ""), (CLOSE, "", ""), (RESULT, "unknown", ""))) == []


def test_an_acknowledged_request_must_end() -> None:
    assert judged(called((SUBMIT, "stored", ""))) == ["ended"]
    assert judged(called((SUBMIT, "stored", ""), (RESULT, "pending", ""))) == ["ended"]
    assert judged(called((SUBMIT, "stored", ""), (RESULT, "failed", ""))) == ["ended"]


def test_an_answer_stays_and_is_the_same_for_all() -> None:
    first, second = (RESULT, "answer", "b|worker1|1"), (RESULT, "answer", "b|worker1|2")
    begins = begin(0.7), begin(0.8, number=2)
    assert judged(called((SUBMIT, "stored", ""), first, second), *begins) == ["answered"]
    assert judged(called((SUBMIT, "stored", ""), first, (RESULT, "pending", ""), first), *begins) == [
        "answered"
    ]
    assert judged(called((SUBMIT, "stored", ""), first, (CANCEL, "cancelled", "")), *begins) == ["answered"]
    assert judged(called((SUBMIT, "stored", ""), first, (CANCEL, "answered", "")), *begins) == []


def test_an_answer_was_made_by_an_execution_of_its_request() -> None:
    lines = called((SUBMIT, "stored", ""), (RESULT, "answer", "b|worker1|2"))
    assert judged(lines, begin(0.7, number=1)) == ["answered"]
    assert judged(lines, begin(0.7, number=2, body="c")) == ["answered"]


def test_nothing_is_begun_after_a_close_or_a_cancel() -> None:
    closed = called((SUBMIT, "stored", ""), (CLOSE, "pending", ""))
    assert judged(closed, begin(2.4)) == []
    assert judged(closed, begin(2.6)) == ["withdrawn"]
    cancelled = called((SUBMIT, "stored", ""), (CANCEL, "cancelled", ""), (RESULT, "cancelled", ""))
    assert judged(cancelled, begin(2.4)) == []
    assert judged(cancelled, begin(2.6)) == ["withdrawn"]


def test_what_was_cancelled_has_no_answer() -> None:
    lines = called((SUBMIT, "stored", ""), (CANCEL, "cancelled", ""), (RESULT, "answer", "b|worker1|1"))
    assert judged(lines, begin(1.0)) == ["answered"]


def test_a_dead_letter_is_told() -> None:
    assert judged(called((SUBMIT, "stored", ""), (RESULT, "dead", "poison"))) == ["alive"]


def test_the_counts_are_those_of_requests() -> None:
    lines = called(
        (SUBMIT, "failed", ""), (SUBMIT, "stored", ""), (RESULT, "answer", "b|worker1|1"),
        (CLOSE, "answered", ""),
    )  # fmt: skip
    other = called((SUBMIT, "stored", ""), (CANCEL, "cancelled", ""), body="c")
    found: Histories = read_histories([lines, other], {"worker1": [begin(1.0), begin(1.1, number=2)]})
    assert found.counts() == {
        "submitted": 2, "acknowledged": 2, "answered": 1, "closed": 1, "cancelled": 1, "executions": 2,
        "executed again": 1, "calls that failed": 1,
    }  # fmt: skip
