"""What a node finds wrong with itself: each condition, its windows, and a finding for each alert."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from bstar_broker.core import findings
from bstar_broker.core.findings import ELSEWHERE, FINDINGS_MAX, NODE, SERVICE, Entry, Findings
from bstar_broker.core.snapshot import (
    Finding,
    FrontState,
    JournalState,
    NodeState,
    QuorumState,
    SecurityState,
)
from bstar_cli import exits
from bstar_cli.diagnosis import Reason, Seen, find_troubles, judge
from bstar_client.calls.status import NodeReport
from support.node_states import disk_state, node_state, service_state, store_state

ROOT = Path(__file__).parents[1]
RULES_TEXT = (ROOT / "configs" / "alerts.yml").read_text(encoding="utf-8")
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES_TEXT)["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
ENTRIES: list[Entry[Any]] = [*NODE, *SERVICE]
SERVING: dict[str, Any] = {"role": "primary", "state": "ACTIVE", "is_active": True, "peer_state": "PASSIVE"}


def state(*services: Any, journal: dict[str, int] | None = None, **changes: Any) -> NodeState:
    """An active primary with which nothing is wrong, but for the changes."""
    loop = {
        name: changes.pop(name) for name in list(changes) if name in ("lag_counts", "descriptor_shortages")
    }
    connections = {name: changes.pop(name) for name in list(changes) if name == "networks_held_off"}
    made = node_state(*services, **SERVING | changes)
    assert made.loop is not None
    assert made.loop.connections is not None
    quiet = {"lag_bounds_s": [0.01, 0.1, 0.25], "lag_counts": [9, 0, 0, 0], "descriptor_shortages": 0}
    loop |= {
        "connections": msgspec.structs.replace(
            made.loop.connections, **{"networks_held_off": 0} | connections
        )
    }
    counts = {"records": 1, "octets": 1, "segments": 1, "dropped": 0, "dropped_requests": 0, "errors": 0}
    return msgspec.structs.replace(
        made,
        loop=msgspec.structs.replace(made.loop, **quiet | loop),
        journal=JournalState("/journal", **counts | (journal or {})),
    )


def store(**changes: Any) -> NodeState:
    disk = disk_state(**changes.pop("disk", {}))
    return state(store=store_state(disk=disk, **{"dead": 0, "ended": {}} | changes))


def found(*states: NodeState, apart_s: float = 1.0) -> list[Finding]:
    """What is found at the last of these states."""
    looking = Findings()
    result: list[Finding] = []
    for number, each in enumerate(states):
        result = looking.look(each, 1_000.0 + number * apart_s)
    return result


def names(*states: NodeState, apart_s: float = 1.0) -> list[str]:
    return [each.name for each in found(*states, apart_s=apart_s)]


# --- the table and the alerts -------------------------------------------------------------------------------


def test_each_alert_has_a_finding_or_a_reason_why_a_node_cannot_know_it() -> None:
    ours = {entry.alert for entry in ENTRIES if entry.alert}
    assert ours | set(ELSEWHERE) == set(RULES)
    assert not ours & set(ELSEWHERE)
    assert all(ELSEWHERE.values())


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.alert], ids=lambda entry: entry.alert)
def test_a_finding_is_as_severe_as_its_alert_and_no_later(entry: Entry[Any]) -> None:
    rule = RULES[entry.alert]
    assert entry.severity == rule["labels"]["severity"]
    seconds = {"": 1, "s": 1, "m": 60, "h": 3600}
    number, unit = re.fullmatch(r"(\d+)([smh])", rule.get("for", "0s")).groups()  # type: ignore[union-attr]
    assert entry.after_s <= int(number) * seconds[unit]


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_to_do_as_its_finding_does(name: str) -> None:
    do = {entry.alert: entry.do for entry in ENTRIES}
    assert RULES[name]["annotations"].get("do") == do.get(name)


def test_the_thresholds_are_those_of_the_alerts() -> None:
    assert f"bstar_oldest_running_seconds > {findings.RUNNING_S_MAX:g}\n" in RULES_TEXT
    assert f"bstar_oldest_waiting_seconds > {findings.WAITING_S_MAX:g} " in RULES_TEXT
    assert f"[15m])) > {findings.UNSERVED_MIN - 0.5:g}\n" in RULES_TEXT
    assert f"increase1h > {findings.BAD_MIN - 0.5:g}\n" in RULES_TEXT
    assert "share5m > 14.4 * 0.001\n" in RULES_TEXT
    assert findings.BAD_SHARE_MAX == 14.4 * 0.001


# --- the node -----------------------------------------------------------------------------------------------


def test_nothing_is_found_at_a_node_that_is_well() -> None:
    echo = service_state("echo", workers=2, queued=500, oldest_waiting_s=30.0, oldest_running_s=300.0)
    assert names(state(echo), state(echo)) == []
    assert names(store(), store()) == []


def test_a_drained_node_does_not_miss_the_arbiter_that_it_does_not_ask() -> None:
    drained = state(quorum=UNHEARD, drained_why="root@a: new disk", is_leaving=True)
    assert names(drained, drained) == []


def test_a_peer_whose_handshake_fails_is_not_only_silent() -> None:
    fault = "tcp://10.0.0.2:5003 refuses the key primary: list it there with peer: true"
    [silent] = Findings().look(state(is_peer_fresh=False, peer_fault=fault), 0.0)
    assert fault in silent.why


QUORUM = QuorumState("tcp://c:5010", True, True, True, True)
UNHEARD = QuorumState("tcp://c:5010", True, False, False, True)
FAILING: list[tuple[str, list[NodeState]]] = [
    ("store-damaged", [store(disk={"error": "Input/output error"})]),
    ("store-damaged", [store(disk={"damaged": 1, "damage": "entry 7"})]),
    ("store-damaged", [store(), store(disk={"repairs": 1, "repaired": "entry 7"})]),
    ("store-waits", [store(is_leading=False)]),
    ("store-alone", [store(copies=1)]),
    ("clients-cut-off", [state(clients_cut_off=2)]),
    ("peer-silent", [state(is_peer_fresh=False)]),
    ("arbiter-silent", [state(quorum=UNHEARD)]),
    (
        "majority-lost",
        [state(quorum=QUORUM), state(quorum=msgspec.structs.replace(QUORUM, majorities_lost=1))],
    ),
    ("flapping", [state(epoch_seen=epoch) for epoch in (7, 8, 9, 10, 11)]),
    ("epoch-unsaved", [state(epoch_error="No space left on device")]),
    ("journal-trouble", [state(), state(journal={"errors": 1})]),
    ("journal-trouble", [state(), state(journal={"dropped": 3})]),
    ("security-files-broken", [state(security=SecurityState(is_on=True, error="p.yaml: no entry"))]),
    ("security-files-broken", [state(security=SecurityState(is_on=True, error="no list"))]),
    ("descriptors-short", [state(is_short_of_descriptors=True)]),
    ("descriptors-short", [state(), state(descriptor_shortages=1)]),
    ("held-off", [state(networks_held_off=1), state()]),
    ("front-down", [msgspec.structs.replace(state(), fronts=[FrontState("http", {}, error="it hangs")])]),
    ("fronts-apart", [state(fronts_apart="only the primary has the front ppp")]),
    ("takeovers-paused", [state(paused_for_s=60.0, pause_why="ann@c1: new switch")]),
    ("store-lags", [store(lag_s=31.0)]),
    ("store-nearly-full", [store(octets=91, octets_max=100)]),
    ("store-nearly-full", [store(pending=91, requests_max=100)]),
    ("store-nearly-full", [store(disk={"free_bytes": 2**30 - 1})]),
    ("durable-waits", [store(oldest_pending_s=901.0)]),
    ("dead-letters", [store(), store(dead=1, ended={"dead": 1})]),
]


@pytest.mark.parametrize(("name", "states"), FAILING)
def test_each_condition_of_the_node_is_found(name: str, states: list[NodeState]) -> None:
    [finding] = found(*states)
    assert finding.name == name
    assert finding.why
    assert finding.do
    assert not finding.service


def test_moves_that_an_operator_ordered_do_not_flap() -> None:
    at_the_giver = [
        state(
            is_active=n % 2 == 0, epoch_seen=7 + n, ordered_moves=n, transitions={"PASSIVE->ACTIVE": n // 2}
        )
        for n in range(9)
    ]
    released_first = [
        state(is_active=False, epoch_seen=7 + (n + 1) // 2, ordered_moves=n // 2 + 1) for n in range(12)
    ]
    assert names(*at_the_giver) == names(*released_first) == []
    after_an_order = [state(epoch_seen=epoch, ordered_moves=int(epoch > 7)) for epoch in range(7, 13)]
    assert names(*after_an_order) == ["flapping"]
    assert names(*after_an_order[:-1]) == []


def test_a_dead_letter_that_was_closed_is_not_found() -> None:
    dead = [store(), store(dead=5, ended={"dead": 5})]
    assert found(*dead)[0].why == "5 new dead letters in the last ten minutes"
    assert found(*dead, store(dead=1, ended={"dead": 5}))[0].why.startswith("1 new dead letter in")
    assert names(*dead, store(dead=0, ended={"dead": 5})) == []


def test_a_declined_request_is_no_finding() -> None:
    assert names(store(), store(dead=5, ended={"dead": 0, "declined": 5})) == []


def test_a_silent_peer_may_be_drained() -> None:
    [finding] = found(state(is_peer_fresh=False))
    assert "end its drain (bstar drain --undo)" in finding.do


def test_a_store_full_of_what_waits_needs_workers() -> None:
    [finding] = found(store(pending=91, requests_max=100, answered=0, cancelled=0))
    assert finding.why == "its durable store is 91% full, 91 of its 91 requests are pending"
    assert "start workers for what is pending" in finding.do


def test_what_is_to_be_done_about_a_store_is_said_once() -> None:
    trouble = f"the peer's store is not heard: {findings.START_OR_FORCE}"
    [finding] = found(store(is_leading=False, trouble=trouble))
    assert str(finding).count("start the other node") == 1
    assert str(finding).endswith("bstar store force --give-up-the-other")


@pytest.mark.parametrize("trouble", ["", "this copy takes over what the peer's has: 40% are there"])
def test_to_wait_comes_before_to_give_up_the_other_copy(trouble: str) -> None:
    [finding] = found(store(is_leading=False, trouble=trouble))
    assert finding.do.startswith("wait if it begins or takes over")


def test_a_full_disk_does_not_advise_to_give_up_the_other_copy() -> None:
    full = store(is_leading=False, trouble="the store fails", disk={"error": "no space"})
    assert names(full) == ["store-damaged"]


def test_a_pause_names_the_node_that_has_it() -> None:
    paused = service_state("echo", workers=1, pause_why="ann@c1", queued=1)
    [finding] = found(state(paused, role="backup", is_active=False, state="PASSIVE"))
    assert finding.why == "paused at the backup by ann@c1; 1 request waiting"


def test_each_entry_about_the_node_is_tried_here() -> None:
    lasting = {entry.name for entry in NODE if entry.after_s}
    assert {name for name, _ in FAILING} | lasting == {entry.name for entry in NODE}


def test_a_loop_that_lags_is_found_when_it_has_lagged_for_a_minute() -> None:
    looking = Findings()
    late = [state(lag_counts=[95 * n, 0, 5 * n, 0]) for n in range(1, 14)]
    seen = [[each.name for each in looking.look(each, 5.0 * n)] for n, each in enumerate(late)]
    assert seen == [[]] * 12 + [["loop-lags"]]
    well = state(lag_counts=[95 * 14 + 10_000, 0, 5 * 13, 0])
    assert looking.look(well, 65.0) == []


def test_a_disk_that_syncs_slowly_is_found_when_it_has_for_five_minutes() -> None:
    looking = Findings()
    seen = [
        [each.name for each in looking.look(store(disk={
            "sync_bounds_s": [0.1, 0.25, 1.0], "sync_counts": [9 * n, 0, n, 0]
        }), 100.0 * n)]
        for n in range(1, 5)
    ]  # fmt: skip
    assert seen == [[], [], [], ["store-sync-slow"]]


def test_a_finding_says_since_when_and_begins_anew_after_it_was_gone() -> None:
    looking = Findings()
    sick, well = state(epoch_error="full"), state()
    times = [looking.look(each, at) for each, at in ((sick, 10.0), (sick, 40.0), (well, 50.0), (sick, 60.0))]
    assert [[each.for_s for each in look] for look in times] == [[0.0], [30.0], [], [0.0]]


def test_journal_trouble_is_over_90_s_after_the_last_error() -> None:
    looking = Findings()
    looking.look(state(), 0.0)
    failed = state(journal={"errors": 2})
    seen = {at: bool(looking.look(failed, at)) for at in (1.0, 60.0, 90.0, 91.0, 200.0)}
    assert seen == {1.0: True, 60.0: True, 90.0: True, 91.0: False, 200.0: False}


def test_an_epoch_that_a_new_node_learns_is_no_move_of_the_role() -> None:
    assert names(state(epoch_seen=0), state(epoch_seen=90), state(epoch_seen=91)) == []


# --- services -----------------------------------------------------------------------------------------------


def test_workers_that_were_lost_and_poison_are_found_for_as_long_as_their_windows() -> None:
    looking = Findings()
    looking.look(state(service_state("echo", workers=1)), 0.0)
    lost = state(service_state("echo", workers=1, workers_lost=3, poisoned=1))
    seen = {at: {each.name for each in looking.look(lost, at)} for at in (5.0, 599.0, 700.0, 1_900.0)}
    assert seen == {
        5.0: {"workers-lost", "poison"},
        599.0: {"workers-lost", "poison"},
        700.0: {"workers-lost"},
        1_900.0: set(),
    }


def test_a_rare_service_that_always_fails_is_found_by_its_last_hour() -> None:
    looking = Findings()
    sparse = [service_state("rare", workers=1, failed=n, recent={"failed": 1}) for n in range(1, 6)]
    results = [looking.look(state(each), 240.0 * n) for n, each in enumerate(sparse)]
    [finding] = results[-1]
    assert (finding.name, finding.service) == ("fails", "rare")
    assert finding.why == "5 of 5 requests ended badly or were refused in the last hour"


def test_what_handlers_decline_is_nothing_to_find() -> None:
    looking = Findings()
    sparse = [service_state("s", workers=1, declined=n, recent={"declined": 1}) for n in range(1, 20)]
    results = [looking.look(state(each), 240.0 * n) for n, each in enumerate(sparse)]
    assert results[-1] == []


def test_what_expires_while_a_service_is_paused_is_not_its_workers_fault() -> None:
    paused = service_state("echo", workers=1, pause_why="ann@c1", expired=150, recent={"expired": 150})
    assert names(state(paused)) == ["paused"]
    resumed = msgspec.structs.replace(paused, pause_why="")
    [finding] = found(state(resumed))
    assert "expired ones waited for a worker, or in a pause" in finding.do


def test_the_passive_node_finds_nothing_about_the_workers_of_a_service() -> None:
    passive = state(service_state("echo", queued=3), state="PASSIVE", is_active=False, peer_state="ACTIVE")
    assert names(passive) == []


def test_findings_are_bounded_and_the_worst_come_first() -> None:
    many = [service_state(f"s{n:05}", queued=1) for n in range(FINDINGS_MAX)]
    paused = service_state("a", workers=1, pause_why="ann")
    result = found(state(paused, *many, epoch_error="full", clients_cut_off=1))
    assert len(result) == FINDINGS_MAX
    assert result[0].name == "clients-cut-off"
    assert {each.severity for each in result} == {"critical"}


def test_services_that_are_forgotten_leave_nothing_behind() -> None:
    looking = Findings()
    for n in range(1_000):
        looking.look(state(service_state(f"s{n}", workers=1, failed=9)), float(n))
    known = {key for key in looking._past._last if isinstance(key, tuple)}
    assert {name for _, name in known} == {"s999"}


# --- the command --------------------------------------------------------------------------------------------


def seen(endpoint: str, node: NodeState) -> Seen:
    return Seen.of(NodeReport(endpoint, msgspec.to_builtins(node), None))


def looked(*states: NodeState) -> NodeState:
    return msgspec.structs.replace(states[-1], findings=found(*states))


def test_a_served_pair_whose_journal_has_no_room_is_not_well() -> None:
    full = looked(state(), state(journal={"errors": 3}))
    passive = node_state()
    verdict = judge([seen("tcp://a:5001", full), seen("tcp://b:5002", passive)])
    assert (verdict.code, verdict.reason) == (exits.FAILED, Reason.NODE_TROUBLE)
    assert verdict.why == (
        "the primary serves, but the primary says: its journal has gaps, or will have (3 errors, 0 records "
        "dropped in the last 90 s): make room on the disk of journal.directory, or mend it"
    )


def test_a_broker_alone_is_well_without_a_peer() -> None:
    alone = looked(state(is_peer_fresh=False))
    assert [each.name for each in alone.findings or ()] == ["peer-silent"]
    assert judge([seen("tcp://a:5001", alone)]).code == exits.OK


def test_services_are_those_that_the_nodes_found_each_once() -> None:
    lost = (state(service_state("echo", workers=1)), state(service_state("echo", workers=1, workers_lost=3)))
    active = looked(*lost)
    passive = msgspec.structs.replace(node_state(), findings=active.findings)
    nodes = [seen("tcp://b:5002", passive), seen("tcp://a:5001", active)]
    [trouble] = find_troubles({"bstar": nodes})
    assert (trouble.service, trouble.sign) == ("echo", "workers-lost")


@pytest.mark.loopback
def test_status_loads_nothing_that_it_does_not_need() -> None:
    """Imports are most of what it takes, on a busy machine seconds."""
    code = (
        "import sys; from bstar_cli.main import main; code = main(sys.argv[1:]); "
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "status", "--endpoints", "tcp://127.0.0.1:1", "--timeout", "0.01"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == exits.NONE_ACTIVE, done.stderr
    loaded = set(done.stderr.split())
    assert "bstar_cli.status" in loaded
    assert not loaded & {
        "asyncio",
        "bstar.net.http_endpoint",
        "bstar.settings",
        "bstar_broker.core.node",
        "pydantic",
        "ssl",
        "yaml",
    }
