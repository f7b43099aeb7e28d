"""The metrics page: names, labels and bounds that alerts and dashboards rely on."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from bstar_broker.core.snapshot import FrontState, JournalState, NodeState, QuorumState, SecurityState
from bstar_broker.fronts.ppp.machine import EVENTS
from bstar_broker.operate.metrics import SERVICES_MAX, NodeCollector, make_registry
from support.node_states import disk_state, node_state, service_state, store_state
from support.pirates import Harbour

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(*states: NodeState, services_max: int = 200) -> Samples:
    """What the last of several scrapes says, one scrape for each state."""
    registry = CollectorRegistry()
    upcoming = iter(states)
    registry.register(NodeCollector(lambda: next(upcoming), services_max=services_max))
    page = ""
    for _ in states:
        page = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_the_state_is_one_of_a_set_whose_label_is_the_metrics_name() -> None:
    found = samples(node_state(state="ACTIVE", is_active=True, epoch=3))
    assert value(found, "bstar_state", bstar_state="ACTIVE") == 1
    assert value(found, "bstar_state", bstar_state="PASSIVE") == 0
    assert sum(number for (name, _), number in found.items() if name == "bstar_state") == 1
    assert value(found, "bstar_active") == 1
    assert value(found, "bstar_epoch") == 3


def test_a_passive_node_is_not_active() -> None:
    assert value(samples(node_state()), "bstar_active") == 0


def test_a_peer_that_was_heard_has_a_state_and_an_age() -> None:
    found = samples(node_state())
    assert value(found, "bstar_peer_state", bstar_peer_state="ACTIVE") == 1
    assert value(found, "bstar_peer_age_seconds") == 0.05
    assert value(found, "bstar_peer_fresh") == 1


def test_a_peer_that_was_never_heard_has_no_age_and_an_unknown_state() -> None:
    found = samples(node_state(peer_state=None, peer_age_s=None, is_peer_fresh=False))
    assert ("bstar_peer_age_seconds", ()) not in found
    assert value(found, "bstar_peer_state", bstar_peer_state="UNKNOWN") == 1
    assert value(found, "bstar_peer_fresh") == 0


def test_transitions_votes_and_stalls_are_counters() -> None:
    found = samples(
        node_state(transitions={"PASSIVE->ACTIVE": 2}, votes=4, stalls=1, peer_ignored={"stale": 7})
    )
    assert value(found, "bstar_transitions_total", **{"from": "PASSIVE", "to": "ACTIVE"}) == 2
    assert value(found, "bstar_votes_total") == 4
    assert value(found, "bstar_stalls_total") == 1
    assert value(found, "bstar_peer_messages_ignored_total", reason="stale") == 7


def test_activations_are_there_from_the_start_and_counted_whatever_came_before() -> None:
    assert value(samples(node_state(transitions={})), "bstar_activations_total") == 0
    moved = {"PRIMARY->ACTIVE": 1, "ACTIVE->PASSIVE": 3, "PASSIVE->ACTIVE": 2}
    assert value(samples(node_state(transitions=moved)), "bstar_activations_total") == 3


def test_the_three_voters_are_gauges_where_there_is_an_arbiter_and_absent_elsewhere() -> None:
    quorum = QuorumState("tcp://arbiter:5010", True, True, False, True, 2)
    found = samples(node_state(quorum=quorum))
    assert value(found, "bstar_majority") == 1
    assert value(found, "bstar_arbiter_fresh") == 1
    assert value(found, "bstar_grant_fresh", voter="arbiter") == 0
    assert value(found, "bstar_grant_fresh", voter="peer") == 1
    assert value(found, "bstar_majorities_lost_total") == 2
    assert not {name for name, _ in samples(node_state()) if "majorit" in name or "arbiter" in name}


def test_requests_are_counted_by_service_and_outcome() -> None:
    echo = service_state("echo", accepted=9, answered=5, failed=1, expired=2, redelivered=3, duplicates=4)
    found = samples(node_state(echo))
    assert value(found, "bstar_requests_accepted_total", service="echo") == 9
    assert value(found, "bstar_requests_total", service="echo", outcome="answered") == 5
    assert value(found, "bstar_requests_total", service="echo", outcome="failed") == 1
    assert value(found, "bstar_requests_total", service="echo", outcome="expired") == 2
    assert value(found, "bstar_requests_total", service="echo", outcome="poisoned") == 0
    assert value(found, "bstar_redeliveries_total", service="echo") == 3
    assert value(found, "bstar_duplicates_total", service="echo") == 4


def test_queues_and_workers_are_gauges_by_service() -> None:
    found = samples(node_state(service_state("echo", queued=3, workers=2, idle=1, in_flight=1)))
    assert value(found, "bstar_queue_length", service="echo") == 3
    assert value(found, "bstar_workers", service="echo") == 2
    assert value(found, "bstar_workers_idle") == 1
    assert value(found, "bstar_requests_in_flight", service="echo") == 1
    assert value(found, "bstar_queue_bytes") == 123


def test_latency_buckets_are_cumulated() -> None:
    counts = [0] * 16
    counts[0], counts[3], counts[15] = 2, 3, 1
    found = samples(node_state(service_state("echo", latency_counts=counts, latency_sum_s=31.5)))
    assert value(found, "bstar_request_latency_seconds_bucket", service="echo", le="0.0005") == 2
    assert value(found, "bstar_request_latency_seconds_bucket", service="echo", le="0.005") == 5
    assert value(found, "bstar_request_latency_seconds_bucket", service="echo", le="30.0") == 5
    assert value(found, "bstar_request_latency_seconds_bucket", service="echo", le="+Inf") == 6
    assert value(found, "bstar_request_latency_seconds_count", service="echo") == 6
    assert value(found, "bstar_request_latency_seconds_sum", service="echo") == 31.5


def test_the_loops_lag_is_a_histogram_with_its_maximum() -> None:
    found = samples(node_state())
    assert value(found, "bstar_loop_lag_seconds_bucket", le="0.01") == 8
    assert value(found, "bstar_loop_lag_seconds_count") == 10
    assert value(found, "bstar_loop_lag_max_seconds") == 0.25
    assert value(found, "bstar_loop_turns_total") == 99


def test_a_shortage_of_descriptors_is_shown_and_counted() -> None:
    for is_short in (False, True):
        found = samples(node_state(is_short_of_descriptors=is_short))
        assert value(found, "bstar_descriptors_short") == is_short
        assert value(found, "bstar_descriptors_max") == 1024
        assert value(found, "bstar_descriptor_shortages_total") == 3


def test_who_connects_is_shown_and_counted() -> None:
    found = samples(node_state())
    assert value(found, "bstar_connections") == 8
    assert value(found, "bstar_connections_accepted_total") == 50
    assert value(found, "bstar_connections_hung_up_total") == 2
    assert value(found, "bstar_connection_attempts_dropped_total") == 7
    assert value(found, "bstar_networks_held_off") == 1
    assert value(found, "bstar_all_held_off") == 0


def test_a_node_without_a_loop_has_no_lag() -> None:
    assert not any(name.startswith("bstar_loop") for name, _ in samples(node_state(loop=False)))


def test_a_node_with_a_journal_tells_how_it_does() -> None:
    state = JournalState("/j", records=9, octets=3_000, segments=2, dropped=5, dropped_requests=4, errors=1)
    found = samples(msgspec.structs.replace(node_state(), journal=state))
    assert value(found, "bstar_journal_records_total") == 9
    assert value(found, "bstar_journal_bytes_total") == 3_000
    assert value(found, "bstar_journal_files_total") == 2
    assert value(found, "bstar_journal_dropped_total", about="requests") == 4
    assert value(found, "bstar_journal_dropped_total", about="events") == 1
    assert value(found, "bstar_journal_errors_total") == 1
    assert not any(name.startswith("bstar_journal") for name, _ in samples(node_state()))


def test_a_node_with_a_durable_store_tells_what_it_holds_and_what_its_disk_does() -> None:
    found = samples(node_state(store=store_state(lag_s=2.5, lag_entries=9, catch_up=0.25, copies=1)))
    states = {"pending": 4, "answered": 3, "dead": 2, "cancelled": 1}
    assert {state: value(found, "bstar_store_requests", state=state) for state in states} == states
    assert value(found, "bstar_store_leading") == 1
    assert value(found, "bstar_store_trouble") == 0
    assert value(found, "bstar_store_copies") == 1
    assert value(found, "bstar_store_lag_entries") == 9
    assert value(found, "bstar_store_lag_seconds") == 2.5
    assert value(found, "bstar_store_catch_up_ratio") == 0.25
    assert value(found, "bstar_store_acknowledged_total") == 12
    assert value(found, "bstar_store_attempts_total", end="failed") == 5
    assert value(found, "bstar_store_disk_free_bytes") == 1 << 36
    assert value(found, "bstar_store_sync_seconds_bucket", le="0.01") == 6
    assert value(found, "bstar_store_sync_seconds_count") == 7
    assert value(found, "bstar_store_disk_failing") == 0
    assert not any(name.startswith("bstar_store") for name, _ in samples(node_state()))


def test_the_ends_of_durable_requests_are_there_from_the_first_scrape() -> None:
    found = samples(node_state(store=store_state(ended={})))
    ends = ("answered", "dead", "declined", "cancelled")
    assert [value(found, "bstar_store_ended_total", state=end) for end in ends] == [0, 0, 0, 0]
    assert value(samples(node_state(store=store_state())), "bstar_store_ended_total", state="dead") == 2


def test_a_store_that_should_lead_and_does_not_is_in_trouble() -> None:
    state = store_state(is_leading=False, trouble="the peer cannot be heard", disk=disk_state(error="full"))
    found = samples(node_state(store=state))
    assert value(found, "bstar_store_leading") == 0
    assert value(found, "bstar_store_trouble") == 1
    assert value(found, "bstar_store_disk_failing") == 1


def test_drops_are_counted_by_reason() -> None:
    assert value(samples(node_state(drops={"not-active": 2})), "bstar_drops_total", reason="not-active") == 2


def test_services_beyond_the_bound_are_summed_as_other() -> None:
    services = [service_state(f"s{number}", answered=1, workers=1) for number in range(5)]
    found = samples(node_state(*services), services_max=2)
    assert value(found, "bstar_requests_total", service="s0", outcome="answered") == 1
    assert value(found, "bstar_requests_total", service="other", outcome="answered") == 3
    assert value(found, "bstar_workers", service="other") == 3
    assert ("bstar_workers", (("service", "s2"),)) not in found


def test_a_service_keeps_its_series_when_another_one_comes_before_it() -> None:
    before = node_state(service_state("b"), service_state("c"))
    after = node_state(service_state("a"), service_state("b"), service_state("c"))
    found = samples(before, after, services_max=2)
    assert {dict(labels)["service"] for name, labels in found if name == "bstar_workers"} == {
        "b",
        "c",
        "other",
    }


def test_a_series_that_became_free_goes_to_another_service() -> None:
    found = samples(node_state(service_state("a")), node_state(service_state("b")), services_max=1)
    assert ("bstar_workers", (("service", "b"),)) in found


def test_a_forgotten_service_keeps_its_series() -> None:
    echo = service_state("echo", answered=3)
    found = samples(node_state(echo), node_state(past=(echo,)))
    assert value(found, "bstar_requests_total", service="echo", outcome="answered") == 3
    assert value(found, "bstar_workers", service="echo") == 0


def test_a_forgotten_service_lends_its_series_and_comes_back_to_other_without_a_jump() -> None:
    old = service_state("old", answered=1_000)
    new = service_state("new", answered=1)
    lent = node_state(new, past=(old,))
    found = samples(node_state(old), lent, services_max=1)
    assert value(found, "bstar_requests_total", service="new", outcome="answered") == 1
    assert value(found, "bstar_requests_total", service="other", outcome="answered") == 0
    back = node_state(new, service_state("old", answered=1_002))
    found = samples(node_state(old), lent, back, services_max=1)
    assert value(found, "bstar_requests_total", service="other", outcome="answered") == 2


def test_other_stays_when_its_services_leave_it_or_are_gone_for_good() -> None:
    a, b = service_state("a"), service_state("b", failed=4)
    parted = samples(node_state(a, b), node_state(a), services_max=1)
    assert value(parted, "bstar_requests_total", service="other", outcome="failed") == 4
    promoted = samples(node_state(a, b), node_state(b), services_max=1)
    assert value(promoted, "bstar_requests_total", service="other", outcome="failed") == 4
    assert value(promoted, "bstar_requests_total", service="b", outcome="failed") == 4
    assert value(promoted, "bstar_workers", service="other") == 0


def test_a_service_of_other_that_begins_at_zero_again_adds_to_the_sum() -> None:
    a = service_state("a")
    found = samples(
        node_state(a, service_state("b", failed=4)),
        node_state(a, service_state("b", failed=1)),
        services_max=1,
    )
    assert value(found, "bstar_requests_total", service="other", outcome="failed") == 5


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.tuples(st.integers(0, 3), st.booleans()), max_size=5),
        min_size=2,
        max_size=12,
    )
)
def test_no_counter_goes_down_whatever_comes_and_goes(history: list[dict[str, tuple[int, bool]]]) -> None:
    """A broker's own counters do not; services are known, forgotten, remembered and gone for good."""
    registry = CollectorRegistry()
    states: list[NodeState] = []
    registry.register(NodeCollector(lambda: states[-1], services_max=2))
    totals: dict[str, int] = {}
    shown: dict[str, float] = {}
    for step in history:
        totals = {name: totals.get(name, 0) + more for name, (more, _) in step.items()}
        made = {name: service_state(name, answered=totals[name]) for name in step}
        known = [made[name] for name, (_, is_known) in step.items() if is_known]
        past = tuple(made[name] for name, (_, is_known) in step.items() if not is_known)
        states.append(node_state(*known, past=past))
        for family in registry.collect():
            if family.name != "bstar_requests":
                continue
            now = {s.labels["service"]: s.value for s in family.samples if s.labels["outcome"] == "answered"}
            for name, count in now.items():
                # Its broker forgot a name for good: Prometheus knows that as a reset of that series.
                assert count >= shown.get(name, 0) or (name != "other" and totals[name] < shown[name])
            shown = {**shown, **now}
            assert set(now) - {"other"} <= set(step)


def test_the_ages_of_the_oldest_requests_are_gauges_and_other_shows_the_highest() -> None:
    a = service_state("a", oldest_waiting_s=1.5, oldest_running_s=0.25, workers_lost=2)
    rest = [service_state("b", oldest_waiting_s=7.0), service_state("c", oldest_running_s=9.0)]
    found = samples(node_state(a, *rest), services_max=1)
    assert value(found, "bstar_oldest_waiting_seconds", service="a") == 1.5
    assert value(found, "bstar_oldest_running_seconds", service="a") == 0.25
    assert value(found, "bstar_workers_lost_total", service="a") == 2
    assert value(found, "bstar_oldest_waiting_seconds", service="other") == 7
    assert value(found, "bstar_oldest_running_seconds", service="other") == 9


def test_a_service_named_other_is_part_of_the_sum() -> None:
    services = [service_state(name, workers=1) for name in ("a", "other", "z")]
    assert value(samples(node_state(*services), services_max=1), "bstar_workers", service="other") == 2


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "\\xff", "ünï 🙂", ""])
def test_a_services_name_cannot_break_the_page(name: str) -> None:
    assert value(samples(node_state(service_state(name, workers=1))), "bstar_workers", service=name) == 1


# Why each label has few values whatever comes from the network.
LABELS = {
    "service": "SERVICES_MAX and other",
    "outcome": "OUTCOMES",
    "le": "the bounds of a histogram",
    "bstar_state": "the states of a node",
    "bstar_peer_state": "the states of a node",
    "from": "the states of a node",
    "to": "the states of a node",
    "voter": "peer and arbiter",
    "about": "requests and events",
    "state": "STORE_STATES and STORE_ENDS",
    "end": "the ends of an attempt",
    "front": "the fronts of a node",
    "kind": "the kinds of peers of a front",
    "event": "what a front counts",
    "level": "what a front has now",
    # Words of the source, never of a message: test_malformed_storm, test_security.
    "reason": "closed sets",
    "version": "this node's own",
    "pair": "this node's own",
    "role": "this node's own",
    "node": "this node's own",
}


def front_state() -> FrontState:
    """The Pirates' front of a node, with a client and two workers."""
    front = Harbour()
    front.add(b"w1")
    front.add(b"w2")
    front.solo.node.front_connected("ppp", "clients", 1, front.now)
    front.ask(b"c", b"", b"x")
    [state] = front.solo.node.state(front.now).fronts
    return msgspec.structs.replace(state, levels={"held": 2})


def test_fronts_tell_their_peers_and_what_they_count() -> None:
    found = samples(full_state())
    kinds = {"clients": 1, "simple_workers": 0, "paranoid_workers": 2}
    for kind, count in kinds.items():
        assert value(found, "bstar_front_peers", front="ppp", kind=kind) == count
    assert value(found, "bstar_front_events_total", front="ppp", event="requests") == 1
    assert value(found, "bstar_front_events_total", front="ppp", event="replies") == 1
    assert value(found, "bstar_front_level", front="ppp", level="held") == 2
    # The first scrape has every event: Prometheus sees no increase in a series that begins.
    events = {dict(labels)["event"] for name, labels in found if name == "bstar_front_events_total"}
    assert events == set(EVENTS)
    assert not any(name.startswith("bstar_front_") for name, _ in samples(node_state()))


def test_fronts_of_one_node_only_are_told() -> None:
    assert value(samples(node_state()), "bstar_fronts_apart") == 0
    assert (
        value(samples(node_state(fronts_apart="fronts: ppp on the primary only")), "bstar_fronts_apart") == 1
    )


def full_state() -> NodeState:
    """A node with all that a node can have, and with more services than have series of their own."""
    names = [f"service-{number}" for number in range(3 * SERVICES_MAX)]
    return msgspec.structs.replace(
        node_state(
            *(service_state(name, workers=1) for name in names),
            past=tuple(service_state(f"past-{name}") for name in names),
            quorum=QuorumState("tcp://arbiter:5010", True, True, False, True, 2),
            peer_ignored={"stale": 7},
            drops={"late-reply": 1},
            store=store_state(),
        ),
        journal=JournalState("/j", 9, 3_000, 2, 5, 4, 1),
        security=SecurityState(True, 5, 9, {"unknown-key": 2}),
        fronts=[front_state()],
    )


def test_every_label_has_few_values() -> None:
    values: dict[str, set[str]] = {}
    for _, labels in samples(full_state()):
        for label, word in labels:
            values.setdefault(label, set()).add(word)
    assert values.keys() == LABELS.keys(), "say in LABELS why a new label is bounded"
    assert len(values.pop("service")) == SERVICES_MAX + 1
    assert max(map(len, values.values())) < 40


def test_every_name_is_ours_and_every_counter_ends_in_total() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(full_state))
    for family in registry.collect():
        assert re.fullmatch(r"bstar(_[a-z]+)*", family.name)
        assert family.documentation
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {f"{family.name}_total"}


def test_the_page_is_valid_openmetrics_too() -> None:
    registry = make_registry(lambda: node_state(service_state("echo", answered=1)))
    page = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call] # the library's
    names = {family.name for family in parse_openmetrics(page)}  # type: ignore[no-untyped-call]
    assert {"bstar", "bstar_state", "bstar_request_latency_seconds", "process_cpu_seconds"} <= names


def test_a_node_that_does_not_answer_fails_the_scrape() -> None:
    def hangs() -> NodeState:
        raise TimeoutError

    registry = make_registry(hangs)
    with pytest.raises(TimeoutError):
        generate_latest(registry)
