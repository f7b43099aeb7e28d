"""Reasons for refusal: one table of the product. The page for operators is made from it."""

from __future__ import annotations

import ast
from pathlib import Path

from bstar.wire import refusals
from bstar.wire.messages import ErrorCode
from bstar.wire.refusals import OF_SERVICE, QUEUE_FULL, QUOTAS, REFUSALS, Refusal
from bstar_pipeline import slo

BROKER = Path(__file__).parents[1] / "broker" / "bstar_broker"


def test_each_entry_is_one_that_a_rule_of_the_broker_returns() -> None:
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path in BROKER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    entries = {name for name, value in vars(refusals).items() if isinstance(value, Refusal)}
    assert len(entries) == len(REFUSALS)
    assert entries <= used


def test_each_entry_says_what_to_do_and_only_a_lost_attempt_may_have_run() -> None:
    assert all(each.text and each.do for each in REFUSALS)
    assert {each.reason for each in REFUSALS if each.may_have_run} == {"once-repeated", "order-repeated"}
    assert not any(each.is_of_service and each.code for each in REFUSALS), "the caller's mistake"


def test_a_refusal_of_this_case_keeps_all_but_its_text() -> None:
    said = QUEUE_FULL.saying("full of cats")
    assert (said.text, said.saying(QUEUE_FULL.text)) == ("full of cats", QUEUE_FULL)


def test_objectives_count_every_reason_that_a_service_counts() -> None:
    assert ("failed", "expired", "poison", "lost", *OF_SERVICE) == slo.ERRORS
    assert "queue-full" in OF_SERVICE
    assert not QUOTAS & set(OF_SERVICE)


def test_a_client_may_send_again_what_has_no_code() -> None:
    codes = {each.reason: each.code for each in REFUSALS}
    assert {reason for reason, code in codes.items() if code} == {
        *("other-body", "once-repeated", "call-not-allowed", "no-store", "invalid-durable", "record-damaged"),
        *("worker-gone", "order-not-allowed", "order-stale", "order-repeated", "order-invalid"),
    }
    assert codes["call-not-allowed"] is ErrorCode.NOT_ALLOWED
    assert all(each.retry_after_ms > 0 for each in REFUSALS)
