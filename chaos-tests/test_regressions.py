"""Named scenarios: limits of a pair that the documentation states, and what went wrong once."""

from __future__ import annotations

from chaos.history import Failed, Ok
from chaos.needs import CHAOS, until_valid
from chaos.scenarios import (
    arbiter_decides,
    arbiter_dies,
    clients_on_both_sides,
    refused_for_a_living_peer,
    stalled_node_wakes_up,
    worker_dies_at_work,
)
from chaos.validate import InvalidRunError, is_machine_noise

pytestmark = CHAOS


@until_valid
def test_a_stalled_node_gives_nothing_out_when_it_wakes_up_alone() -> None:
    stalled_node_wakes_up("stalled-node-wakes-up")


@until_valid
def test_shared_workers_obey_one_node_while_two_serve() -> None:
    clients_on_both_sides("clients-on-both-sides")


@until_valid
def test_two_halves_serve_until_the_link_heals() -> None:
    clients_on_both_sides("two-halves", workers=(("primary",), ("backup",)))


@until_valid
def test_a_refusal_in_the_name_of_a_living_node_lets_both_serve() -> None:
    """What ``timing.expire_on_refused`` must not be used for: something between the nodes that refuses."""
    run = refused_for_a_living_peer("refused-for-a-living-peer").run

    assert run is not None
    taken_over_at = next(term.since for term in run.terms if term.node == "backup")
    assert any(term.node == "primary" and term.since < taken_over_at < term.until for term in run.terms)


@until_valid
def test_with_an_arbiter_only_one_half_serves() -> None:
    run = arbiter_decides("arbiter-decides").run

    assert run is not None
    [cut] = run.faults
    answered = [
        end for call in run.calls if call.client == "client2" for end in call.ends if isinstance(end, Ok)
    ]
    died_at = run.processes["primary"].dead[0].begin
    early = [term for term in run.terms if term.node == "backup" and term.since < died_at]
    if any(is_machine_noise(run, term) for term in early):
        raise InvalidRunError("the machine itself kept the primary or its arbiter from confirming in time")
    assert min(end.at for end in answered) > died_at > cut.begin


@until_valid
def test_without_its_arbiter_a_pair_serves_as_long_as_its_nodes_hear_each_other() -> None:
    arbiter_dies("arbiter-dies")


@until_valid
def test_what_a_killed_worker_had_begun_is_not_executed_twice_where_that_is_forbidden() -> None:
    run = worker_dies_at_work("worker-dies-at-work").run

    assert run is not None
    unknown = [end for call in run.calls for end in call.ends if isinstance(end, Failed)]
    assert {end.error for end in unknown} == {"OutcomeUnknownError"}
