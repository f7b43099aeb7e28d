"""Services in trouble, as ``bstar status`` tells them: each sign, its sentence, and what is no trouble."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar_broker.core.findings import SERVICE
from bstar_cli import exits
from bstar_cli.diagnosis import Reason, Seen, Trouble, find_troubles, judge, judge_services
from bstar_client.calls.status import NodeReport
from support.node_states import looked, node_state, service_state

ROOT = Path(__file__).parents[1]
SIGNS = ["no-worker", "stuck", "waits", "fails", "paused", "workers-lost", "poison"]
SERVING: dict[str, Any] = {
    "role": "primary",
    "state": "ACTIVE",
    "is_active": True,
    "epoch": 1,
    "peer_state": "PASSIVE",
}


def seen(*services: Any, past: tuple[Any, ...] = (), **changes: Any) -> Seen:
    document = msgspec.to_builtins(looked(node_state(*services, past=past, **SERVING | changes)))
    return Seen.of(NodeReport("tcp://a:5001", document, None))


def signs(*nodes: Seen) -> list[Trouble]:
    return find_troubles({"bstar": list(nodes)})


@pytest.mark.parametrize(
    ("changes", "sign", "sentence"),
    [
        ({"queued": 1}, "no-worker", "it has no worker; 1 request waiting: start one"),
        (
            {"recent": {"expired": 2, "refused": 1}},
            "no-worker",
            "it has no worker; 0 requests waiting, 2 expired, 1 refused in the last five minutes: start one",
        ),
        (
            {"workers": 4, "in_flight": 1, "oldest_running_s": 301.0},
            "stuck",
            "a worker has held a request for 301 s: does its handler hang?",
        ),
        (
            {"workers": 4, "oldest_running_s": 7_200.0},
            "stuck",
            "a worker has held a request for 120 min: does its handler hang?",
        ),
        (
            {"workers": 2, "queued": 7, "oldest_waiting_s": 31.0},
            "waits",
            "the oldest of 7 requests has waited for 31 s; 0 of 2 workers can take one: start more workers",
        ),
        (
            {"workers": 1, "recent": {"answered": 100, "failed": 4, "expired": 1, "returned": 50}},
            "fails",
            (
                "5 of 105 requests ended badly or were refused in the last five minutes (1 expired, 4 "
                "failed): "
                "look at its workers' logs; of refused ones at bstar_drops_total; "
                "expired ones waited for a worker, or in a pause"
            ),
        ),
        (
            {"workers": 1, "recent": {"answered": 100_000, "poisoned": 1}},
            "fails",
            (
                "1 of 100001 requests ended badly or were refused in the last five minutes (1 poisoned): "
                "look at its workers' logs; of refused ones at bstar_drops_total; "
                "expired ones waited for a worker, or in a pause"
            ),
        ),
    ],
)
def test_each_sign_has_its_sentence(changes: dict[str, Any], sign: str, sentence: str) -> None:
    [found] = signs(seen(service_state("echo", **changes)))
    assert (found.service, found.pair, found.sign, found.why) == ("echo", "bstar", sign, sentence)
    assert str(found) == f"echo: {sentence}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 1, "queued": 500, "oldest_waiting_s": 30.0, "oldest_running_s": 300.0},
        {"recent": {"expired": 2}},
        {"workers": 1, "recent": {"declined": 500, "answered": 1}},
        {"workers": 1, "recent": {"failed": 4}},
        {"workers": 1, "recent": {"answered": 1_000, "failed": 14}},
        {"workers": 1, "recent": {"returned": 1_000, "answered": 1}},
    ],
)
def test_a_service_without_a_sign_is_not_told(changes: dict[str, Any]) -> None:
    assert signs(seen(service_state("echo", **changes))) == []


def test_a_forgotten_service_that_was_called_in_vain_is_told() -> None:
    [found] = signs(seen(past=(service_state("nobody", recent={"expired": 3}),)))
    assert (found.service, found.sign) == ("nobody", "no-worker")


def test_a_service_is_judged_at_the_node_that_serves_it_only() -> None:
    passive = seen(service_state("echo", queued=3), state="PASSIVE", is_active=False)
    assert signs(passive, Seen("tcp://b:5002", None, "no answer")) == []


def test_trouble_is_the_status_of_a_pair_that_is_well_and_of_no_other() -> None:
    well = seen(service_state("echo", queued=1))
    found = signs(well)
    verdict = judge_services(judge([well]), found)
    assert (
        (verdict.code, verdict.reason)
        == (exits.SERVICE_TROUBLE, Reason.SERVICE_TROUBLE)
        == (5, "service-trouble")
    )
    assert verdict.why == "the primary serves, but not all is well with echo"
    broken = judge([well, Seen("tcp://b:5002", None, "no answer")])
    assert judge_services(broken, found) == broken
    assert judge_services(judge([well]), []) == judge([well])


def test_the_documented_signs_are_those_that_are_told() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("### Services in trouble\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == SIGNS
    assert {entry.name for entry in SERVICE} == set(SIGNS)
