"""Tests of the tests: a build with one rule taken out breaks just the rule of the histories that covers it.

The same scenarios with the build as it is are in test_regressions.py, and hold.
"""

from __future__ import annotations

from collections import Counter

from chaos.durable_stage import DurableStage, durable_stage
from chaos.needs import CHAOS, until_valid
from chaos.platter import Loss
from chaos.scenarios import clients_on_both_sides, plain_traffic, stalled_node_wakes_up, worker_dies_at_work
from chaos.stage import Cast, Stage

pytestmark = CHAOS


def rules(run: Stage | DurableStage) -> Counter[str]:
    return Counter(violation.rule for violation in run.violations)


@until_valid
def test_a_node_without_the_stall_rule_is_caught() -> None:
    launcher = ("chaos.mutant", "stall-rule", "--")
    run = stalled_node_wakes_up(
        "mutant-stall-rule", Cast(launchers={"primary": launcher, "backup": launcher}), is_judged=False
    )

    assert rules(run)["a"] > 0, run.violations
    assert any("went on to serve in epoch 1" in violation.text for violation in run.violations)


@until_valid
def test_a_client_that_does_not_match_replies_is_caught() -> None:
    run = plain_traffic(
        "mutant-reply-matching",
        Cast(client_module=("chaos.mutant", "reply-matching", "--", "client")),
        is_judged=False,
    )

    assert rules(run)["c"] > 0, run.violations
    assert any("was handed the reply to" in violation.text for violation in run.violations)


@until_valid
def test_a_worker_that_does_not_check_epochs_is_caught() -> None:
    run = clients_on_both_sides(
        "mutant-epoch-check",
        Cast(worker_module=("chaos.mutant", "epoch-check", "--", "worker")),
        is_judged=False,
    )

    assert rules(run)["b"] > 0, run.violations


@until_valid
def test_a_node_that_executes_twice_what_must_not_be_is_caught() -> None:
    launcher = ("chaos.mutant", "once-rule", "--")
    run = worker_dies_at_work(
        "mutant-once-rule", Cast(launchers={"primary": launcher, "backup": launcher}), is_judged=False
    )

    assert rules(run)["i"] > 0, run.violations
    assert any("which it forbids" in violation.text for violation in run.violations)


def test_a_store_that_does_not_sync_is_caught() -> None:
    """What both nodes acknowledged is gone when their power fails."""
    launcher = ("chaos.mutant", "store-sync", "--")
    with durable_stage("mutant-store-sync", launcher=launcher, is_judged=False) as run:
        run.kill(*run.cluster.nodes)
        run.lose_power(Loss.EVERYTHING, *run.cluster.nodes)
        run.recover(*run.cluster.nodes)
    assert rules(run)["kept"] > 0, run.violations


def test_a_store_that_acknowledges_with_one_disk_is_caught() -> None:
    """The follower stands still meanwhile. Then both die, and the leader's disk is lost: the follower's copy,
    which an operator chooses, should have everything.
    """
    launcher = ("chaos.mutant", "second-disk", "--")
    settings = {"store.peer_timeout_s": 5.0, "store.when_alone": "accept"}
    with durable_stage("mutant-second-disk", settings=settings, launcher=launcher, is_judged=False) as run:
        leader, follower = run.leader(), run.follower()
        follower.pause()
        run.progress(3)
        run.kill(leader, follower)
        run.delete_store(leader)
        run.restart(leader, follower)
        run.force(follower)
    assert rules(run)["kept"] > 0, run.violations
