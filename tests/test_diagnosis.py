"""What ``bstar status`` makes of what it sees: situation, exit code, reason, sentence. docs/operations.md has
the same table for people, and is compared with it.
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
from support.node_states import disk_state, looked, node_state, service_state, store_state

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
LONE = {"is_peer_fresh": False}
HEARD = QuorumState("tcp://c:5010", True, True, True, True)
UNHEARD = QuorumState("tcp://c:5010", False, False, False, False)
UNLISTED = SecurityState(is_on=True, error="p.yaml does not list this node's own key")
NO_LIST = SecurityState(is_on=True, error="security.principals: cannot be read")
primary = seen(A, **SERVING)
backup = seen(B)

SITUATIONS: list[tuple[str, list[Seen], Reason, str]] = [
    ("a healthy pair", [primary, backup], Reason.SERVED, "the primary serves"),
    (
        "an operator's pause",
        [primary, seen(B, paused_for_s=1800.0, pause_why="ann@c1: new switch")],
        Reason.PAUSED,
        "the backup says: takeovers are paused for 30 min more (ann@c1: new switch): bstar resume ends that",
    ),
    (
        "a drained node",
        [primary, seen(B, drained_why="ann@c1: new disk", is_leaving=True)],
        Reason.DRAINED,
        "the primary serves, and the backup is drained (ann@c1: new disk), so no node stands by; when the",
    ),
    (
        "a node that a pause holds back",
        [gone(A), seen(B, is_held=True, pause_why="ann@c1: new switch", **LONE)],
        Reason.HELD,
        f"takeovers are paused: ann@c1: new switch; {A} does not answer. Start the node that served, or end",
    ),
    ("a broker alone", [seen(A, **SERVING | LONE)], Reason.SERVED, "the primary serves"),
    (
        "the passive node's address is of another network",
        [primary, gone(B)],
        Reason.NODE_UNREACHABLE,
        f"the primary serves and hears its peer PASSIVE, but {B} does not answer this command",
    ),
    (
        "the active node's address is of another network",
        [gone(A), backup],
        Reason.ACTIVE_UNREACHABLE,
        (
            f"the backup hears that its peer serves, but {A} does not answer this command: the pair is "
            "served, and the active node's address cannot be reached from here, or that node lets no new "
            "connections in for want of descriptors"
        ),
    ),
    (
        "only the passive node is asked",
        [backup],
        Reason.ACTIVE_UNREACHABLE,
        "the backup hears that its peer serves, but its endpoint was not asked",
    ),
    (
        "the passive node is down",
        [seen(A, **SERVING | LONE), gone(B)],
        Reason.NODE_DOWN,
        f"the primary serves and does not hear its peer, and {B} does not answer: start that node",
    ),
    (
        "the passive node is down, and the active one cannot write to its state directory",
        [seen(A, epoch_error="No space left on device", **SERVING | LONE), gone(B)],
        Reason.NODE_DOWN,
        "start that node; the primary says: it cannot store its epoch (No space left on device): make room",
    ),
    (
        "the passive node is down, and the store of the active one waits for it",
        [
            seen(A, store=store_state(is_leading=False, trouble="it waits", copies=1), **SERVING | LONE),
            gone(B),
        ],
        Reason.NODE_DOWN,
        "start that node; the primary says: its durable store does not lead: it waits: start the other",
    ),
    (
        "the passive node is down, and nothing is known of its disk",
        [seen(A, store=store_state(copies=1, catch_up=0.0, is_peer_heard=False), **SERVING | LONE), gone(B)],
        Reason.NODE_DOWN,
        "start that node; the primary says: durable requests are on its disk only: start the other",
    ),
    (
        "the link between the nodes is cut",
        [seen(A, **SERVING | LONE), seen(B, **LONE)],
        Reason.PEERS_APART,
        "do not hear each other (deaf: primary and backup)",
    ),
    (
        "the link works in one direction",
        [primary, seen(B, **LONE)],
        Reason.PEERS_APART,
        "do not hear each other (deaf: backup)",
    ),
    (
        "clients reach the passive node only",
        [primary, seen(B, clients_cut_off=2, clients_cut_off_unserved=1, clients_cut_off_s=4.25)],
        Reason.CLIENTS_CUT_OFF,
        "the backup says: 3 clients reached only this passive node for 4 s; 2 of them ask for what",
    ),
    (
        "the disk of a node's journal is full",
        [
            primary,
            seen(
                B, findings=[Finding("journal-trouble", "warning", "BstarJournalTrouble", "full", "mend it")]
            ),
        ],
        Reason.NODE_TROUBLE,
        "the primary serves, but the backup says: full: mend it",
    ),
    (
        "a node has no descriptors left for new connections",
        [seen(A, is_short_of_descriptors=True, **SERVING), backup],
        Reason.DESCRIPTORS_SHORT,
        "the primary serves, but the primary says: it lets no new connections in",
    ),
    (
        "a node does not find itself in its list of principals",
        [primary, seen(B, security=UNLISTED)],
        Reason.SECURITY_FILES_BROKEN,
        (
            "the primary serves, but the backup says: it goes on, and cannot start again as it is: "
            "p.yaml does not list this node's own key: correct that file"
        ),
    ),
    (
        "a node cannot read its list of principals",
        [seen(A, security=NO_LIST, **SERVING), backup],
        Reason.SECURITY_FILES_BROKEN,
        "and cannot start again as it is: security.principals: cannot be read: correct",
    ),
    (
        "the nodes do not hear each other because a list lacks one of them",
        [seen(A, **SERVING | LONE), seen(B, security=UNLISTED, **LONE)],
        Reason.PEERS_APART,
        "endpoints; the backup says: it goes on, and cannot start again as it is: p.yaml",
    ),
    (
        "a front is on one node only",
        [primary, seen(B, fronts_apart="fronts: ppp on the primary only: configure the same on both")],
        Reason.FRONTS_APART,
        "the primary serves, but the backup says: fronts: ppp on the primary only: configure",
    ),
    (
        "a node cannot write to its state directory",
        [seen(A, epoch_error="No space left on device", **SERVING), backup],
        Reason.EPOCH_UNSAVED,
        "the primary serves, but the primary says: it cannot store its epoch (No space left on device)",
    ),
    (
        "the disk of the passive node's store is full",
        [
            seen(A, store=store_state(), **SERVING),
            seen(B, store=store_state(disk=disk_state(error="disk full"))),
        ],
        Reason.STORE_DAMAGED,
        "the backup says: the disk of its store does not work (disk full): mend the disk, and see",
    ),
    (
        "a record of the store has rotted",
        [
            seen(
                A,
                store=store_state(disk=disk_state(damaged=3, damage="record 7 is damaged"), copies=1),
                **SERVING,
            ),
            backup,
        ],
        Reason.STORE_DAMAGED,
        "the primary says: its store is damaged (record 7 is damaged): mend the disk",
    ),
    (
        "the node serves, and its store has not heard the peer's",
        [
            seen(
                A, store=store_state(is_leading=False, trouble="the peer is not heard", copies=1), **SERVING
            ),
            backup,
        ],
        Reason.STORE_WAITS,
        "the primary serves, but the primary says: its durable store does not lead: the peer is not heard",
    ),
    (
        "durable requests are on one disk, and the other copy catches up",
        [seen(A, store=store_state(copies=1, catch_up=0.25), **SERVING), backup],
        Reason.STORE_ALONE,
        "the primary says: durable requests are on its disk only (the other copy has 25% of its way",
    ),
    (
        "the arbiter is down",
        [seen(A, quorum=HEARD, **SERVING), seen(B, quorum=UNHEARD)],
        Reason.ARBITER_SILENT,
        "the backup says: the arbiter does not answer it: start the arbiter",
    ),
    (
        "the active node was killed and nobody asks",
        [gone(A), seen(B, retry_after_s=0.0, **LONE)],
        Reason.VOTE_NEEDED,
        (
            "the backup is PASSIVE: the peer is silent: the next request makes this node active; "
            f"{A} does not answer. The next request of a client makes a node active"
        ),
    ),
    (
        "both have just stepped down",
        [seen(A, role="primary", peer_state="PASSIVE"), seen(B, peer_state="PASSIVE")],
        Reason.CHOOSING,
        "no node serves: the primary is PASSIVE: stands by; the backup is PASSIVE: stands by. The nodes are",
    ),
    (
        "the primary was started alone",
        [seen(A, role="primary", state="PRIMARY", retry_after_s=0.2, **LONE), gone(B)],
        Reason.STARTING,
        "the primary is PRIMARY: waits for the backup",
    ),
    (
        "the backup was started alone",
        [gone(A), seen(B, state="BACKUP", retry_after_s=None, **LONE)],
        Reason.NEVER_MET_PRIMARY,
        (
            "has not met the primary yet, and a backup never starts alone; "
            f"{A} does not answer. Start the primary, or mend its link to the backup"
        ),
    ),
    (
        "peer and arbiter are lost",
        [gone(A), seen(B, quorum=UNHEARD, **LONE)],
        Reason.NO_MAJORITY,
        "neither the peer nor the arbiter answers, and alone this node never serves",
    ),
    (
        "the only node stops",
        [seen(A, role="primary", is_leaving=True, retry_after_s=None, **LONE), gone(B)],
        Reason.DRAINING,
        "the primary is PASSIVE: this node is stopping",
    ),
    (
        "the nodes cannot be a pair",
        [seen(A, role="primary", state="ERROR", retry_after_s=None, **LONE), gone(B)],
        Reason.ERROR,
        "the primary is ERROR: the pair cannot go on: see this node's log",
    ),
    (
        "nothing answers",
        [gone(A), gone(B)],
        Reason.NO_ANSWER,
        f"no node answers at {A} and {B}, so nothing is known of the pair",
    ),
    (
        "the command's key is no operator's",
        [denied(A), denied(B)],
        Reason.NOT_ALLOWED,
        f"nothing is known of {A} and {B}, because this command may not ask there",
    ),
    (
        "the command does not trust the key of one node",
        [primary, denied(B)],
        Reason.NOT_ALLOWED,
        f"the primary serves, but nothing is known of {B}, because",
    ),
    (
        "both serve",
        [seen(A, **SERVING | LONE), seen(B, state="ACTIVE", epoch=2, **LONE)],
        Reason.BOTH_ACTIVE,
        "2 nodes serve: primary, backup; mend the link",
    ),
    (
        "nodes of two pairs are listed as one",
        [seen(A, pair="east", **SERVING), seen(B, pair="west")],
        Reason.WRONG_PAIR,
        f"the nodes are of different pairs: {A} is of east and {B} is of west",
    ),
]


@pytest.mark.parametrize(
    ("nodes", "reason", "sentence"),
    [situation[1:] for situation in SITUATIONS],
    ids=[situation[0] for situation in SITUATIONS],
)
def test_each_situation_has_its_reason_and_its_sentence(
    nodes: list[Seen], reason: Reason, sentence: str
) -> None:
    verdict = judge(nodes)
    assert verdict.reason is reason, verdict.why
    assert sentence in verdict.why
    assert verdict.code == reason.code


def test_every_reason_stands_in_the_table_of_situations() -> None:
    assert {situation[2] for situation in SITUATIONS} | {Reason.STRAYS, Reason.SERVICE_TROUBLE} == set(Reason)


def test_the_documented_table_has_every_reason_with_its_exit_status() -> None:
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    section = page.partition("## What `bstar status` says")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| \S.* \| \S.* \|$", section, re.MULTILINE)
    assert {name: int(code) for name, code in rows} == {reason.value: reason.code for reason in Reason}
    assert len(rows) == len(Reason)


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
