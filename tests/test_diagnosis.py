"""What ``bstar status`` makes of what it sees: situation, exit code, reason, sentence.

The situations are scripts in tests/golden/status.txt (``support.golden``). docs/operations.md has the reasons
for people, and is compared with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.fleet import Fleet
from bstar_broker.core.snapshot import Finding, QuorumState, SecurityState
from bstar_cli.diagnosis import Reason, Seen, Verdict, judge, judge_all, judge_strays, strays
from bstar_client.calls.status import NodeReport
from bstar_client.core.nodes import UNTRUSTED
from support.golden import Scripts
from support.node_states import disk_state, looked, node_state, service_state, store_state

SCRIPTS = Scripts("status.txt")
A, B = "tcp://a:5001", "tcp://b:5002"
REFUSED = "connection refused"


def seen(endpoint: str, *services: Any, **changes: Any) -> Seen:
    """What a node that is as ``changes`` say answers; a passive backup beside a living primary otherwise."""
    changes.setdefault("is_active", changes.get("state") == "ACTIVE")
    findings = changes.pop("findings", None)
    state = looked(node_state(*services, **changes))
    if findings is not None:
        state = msgspec.structs.replace(state, findings=findings)
    return Seen.of(NodeReport(endpoint, msgspec.to_builtins(state), None))


def gone(endpoint: str) -> Seen:
    return Seen.of(NodeReport(endpoint, None, REFUSED))


def denied(endpoint: str) -> Seen:
    return Seen.of(NodeReport(endpoint, None, UNTRUSTED, is_denied=True))


SERVING = {"role": "primary", "state": "ACTIVE", "epoch": 1, "peer_state": "PASSIVE", "retry_after_s": 0.0}
primary = seen(A, **SERVING)
backup = seen(B)


def answer(line: str) -> Seen:
    """What an address answers, as a line of the script has it: address, word, changes of the node's state."""
    address, word, changes = (*line.split(" ", 2), "{}")[:3]
    endpoint = {"A": A, "B": B}[address]
    if word in ("gone", "denied"):
        return gone(endpoint) if word == "gone" else denied(endpoint)
    if word == "hangs":
        return Seen.of(NodeReport(endpoint, None, "connected, but no answer in time"))
    given: dict[str, Any] = msgspec.json.decode(changes)
    store = given.get("store")
    if store is not None:
        given["store"] = store_state(**store | {"disk": disk_state(**store.get("disk", {}))})
    for name, kind in (("quorum", QuorumState), ("security", SecurityState)):
        if name in given:
            given[name] = kind(**given[name])
    if "findings" in given:
        given["findings"] = [Finding(*each) for each in given["findings"]]
    return seen(endpoint, **(SERVING if word == "serves" else {}) | given)


def play(lines: list[str]) -> list[str]:
    verdict = judge([answer(line[2:]) for line in lines])
    return [*lines, f"{verdict.code} {verdict.reason}: {verdict.why}"]


@pytest.mark.parametrize("title", SCRIPTS.titles)
def test_each_situation_has_its_reason_and_its_sentence(title: str) -> None:
    SCRIPTS.check(title, play)


def test_every_reason_stands_in_a_situation() -> None:
    found = set(re.findall(r"^\d ([a-z-]+): ", SCRIPTS.path.read_text("utf-8"), re.MULTILINE))
    assert found | {Reason.STRAYS, Reason.SERVICE_TROUBLE} == set(Reason)


def test_the_documented_table_has_every_reason_with_its_exit_status() -> None:
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    section = page.partition("## What `bstar status` says")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d) \| (`.*?`) \|", section, re.MULTILINE)
    found = [(name, int(code)) for code, names in rows for name in re.findall(r"`([a-z-]+)`", names)]
    assert sorted(found) == sorted((reason.value, reason.code) for reason in Reason)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("speaks HTTP: clients connect elsewhere", f"; correct the list: {A} (speaks HTTP)"),
        ("is a state port (XPUB): connect elsewhere", f"; correct the list: {A} (is a state port (XPUB))"),
        ('name not found: "brokr" (unknown)', f"; correct the list: {A} (name not found)"),
        (REFUSED, ""),
    ],
)
def test_an_address_that_is_no_node_s_is_to_be_corrected(error: str, said: str) -> None:
    wrong = Seen.of(NodeReport(A, None, error))
    for others in ([backup], [seen(B, **SERVING)], [gone(B)]):
        verdict = judge([wrong, *others])
        assert verdict == judge([gone(A), *others]) if not said else verdict.why.endswith(said)
        assert verdict.reason is judge([gone(A), *others]).reason


def test_a_store_that_leads_with_two_copies_beside_its_follower_is_well() -> None:
    follower = store_state(is_leading=False, copies=1)
    assert judge([seen(A, store=store_state(), **SERVING), seen(B, store=follower)]).reason is Reason.SERVED


def test_a_pair_that_is_listed_under_another_name_than_its_own_is_told() -> None:
    assert judge([primary, backup], "bstar").reason is Reason.SERVED
    verdict = judge([primary, backup], "east")
    assert verdict.reason is Reason.WRONG_PAIR
    assert "it is listed as east and calls itself bstar" in verdict.why
    # What is worse is told first.
    assert judge([primary, gone(B)], "east").reason is Reason.NODE_UNREACHABLE


def test_several_pairs_have_the_status_of_the_worst() -> None:
    well = judge([primary, backup])
    half = judge([primary, gone(B)])
    none = judge([gone(A), gone(B)])
    many = judge([seen(A, **SERVING), seen(B, state="ACTIVE")])
    assert judge_all({"a": half}) == half
    assert judge_all({"a": well, "b": well}) == Verdict.of(Reason.SERVED, "all 2 pairs are served")
    verdict = judge_all({"a": well, "b": half, "c": none})
    assert (verdict.code, verdict.reason) == (3, Reason.NO_ANSWER)
    assert verdict.why.startswith("2 of 3 pairs: b: the primary serves and hears")
    assert judge_all({"a": many, "b": none, "c": half}).reason is Reason.BOTH_ACTIVE


def test_workers_and_requests_at_another_pair_than_their_services_own_are_strays() -> None:
    # The name echo belongs to west: see the tests of the hash.
    fleet = Fleet.of({"east": ["tcp://e:1"], "west": ["tcp://w:1"]}, {"pinned": "east"})
    services = [service_state("echo", workers=2), service_state("pinned", workers=1), service_state("gone")]
    found = strays(fleet, {"east": [seen(A, *services, **SERVING), gone(B)], "west": [primary]})
    assert [(each.service, each.pair, each.belongs_to) for each in found] == [("echo", "east", "west")]
    assert str(found[0]) == "echo has workers at east, but clients look for it at west"
    waiting = service_state("pinned", queued=3)
    found = strays(fleet, {"east": [primary], "west": [seen(A, waiting, **SERVING)] * 2})
    assert [str(each) for each in found] == ["pinned has requests at west, but its workers belong to east"]
    served = judge_all({"east": judge([primary, backup]), "west": judge([primary, backup])})
    assert judge_strays(served, []) == served
    verdict = judge_strays(served, found)
    assert (verdict.code, verdict.reason) == (6, Reason.STRAYS)
    assert "pinned" in verdict.why
    broken = judge([gone(A), gone(B)])
    assert judge_strays(broken, found) == broken
