"""Durable requests while nodes die at every step, disks lose power, fill up and fail, and stores disappear.

Without ROUNDS each step has one victim: the leader, the follower, or both. ``make chaos SCENARIO=durable
ROUNDS=200`` lets each of them die at each step, and plays so many random rounds; SEED draws others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from bstar_broker.store.fail_points import Point
from bstar_testing.nodes import Node
from bstar_testing.pairs import ROLES
from bstar_testing.processes import wait_until
from chaos.durable_stage import DurableStage, durable_stage
from chaos.platter import Loss
from chaos.power import Disk
from chaos.toxiproxy import say

_ASKED = os.environ.get("ROUNDS")
ROUNDS = int(_ASKED or 3)
SEED = int(os.environ.get("SEED") or 1)
# A hang ends after this, long after the harness's own limits.
pytestmark = pytest.mark.timeout(420 + 60 * ROUNDS)

# Every transaction or message passes them.
OFTEN = tuple(point for point in Point if point not in (Point.MARK, Point.TRIM, Point.IMPORT, Point.SWAP))


def steps(share: int) -> Iterator[Point]:
    """The points for one of the three tests: a third of them, or all."""
    return iter(OFTEN if _ASKED else OFTEN[share::3])


def repeat(scenario: str) -> str:
    rounds = f" ROUNDS={ROUNDS} SEED={SEED}" if _ASKED else ""
    return f"repeat: make chaos SCENARIO={scenario}{rounds}"


def test_durable_requests_survive_the_leaders_death_at_each_step() -> None:
    with durable_stage("leader-dies-at-each-step", seed=SEED, repeat=repeat("leaders_death")) as run:
        for point in steps(0):
            node = run.leader()
            run.die(node, point, run.chance.randint(1, 20))
            run.recover(node)


def test_durable_requests_survive_the_followers_death_at_each_step() -> None:
    with durable_stage("follower-dies-at-each-step", seed=SEED, repeat=repeat("followers_death")) as run:
        for point in steps(1):
            node = run.follower()
            run.die(node, point, run.chance.randint(1, 20))
            run.recover(node)


def test_durable_requests_survive_the_loss_of_power_of_both_nodes_at_each_step() -> None:
    """The one dies at the step, the other one at once after it; what was not synced is lost on both."""
    with durable_stage("both-lose-power-at-each-step", seed=SEED, repeat=repeat("loss_of_power")) as run:
        for number, point in enumerate(steps(2)):
            first = run.leader() if number % 2 else run.follower()
            second = run.cluster.peer_of(first)
            run.die(first, point, run.chance.randint(1, 20))
            run.kill(second)
            run.lose_power(run.chance.choice((Loss.EVERYTHING, Loss.TAIL, Loss.SECTORS)), first, second)
            run.recover(*run.chance.sample((first, second), 2))


def test_durable_requests_survive_random_rounds() -> None:
    """One node or both die, at a step or at any moment, with their power or without, and come back."""
    with durable_stage("random-rounds", seed=SEED, repeat=repeat("random_rounds")) as run:
        for number in range(1, ROUNDS + 1):
            began_at = time.monotonic()
            what = random_round(run)
            say(f"round {number} of {ROUNDS}: {what}; whole again after {time.monotonic() - began_at:.1f} s")


def test_durable_requests_survive_random_rounds_with_an_arbiter() -> None:
    """As above; the arbiter dies too, and the second node may die while it is alone. Somebody always leads
    again once all are back."""
    again = repeat("random_rounds_with_an_arbiter")
    with durable_stage("random-rounds-arbiter", seed=SEED, has_arbiter=True, repeat=again) as run:
        for number in range(1, ROUNDS + 1):
            began_at = time.monotonic()
            what = random_round_with_an_arbiter(run)
            say(f"round {number} of {ROUNDS}: {what}; whole again after {time.monotonic() - began_at:.1f} s")


def random_round(run: DurableStage) -> str:
    """Break something and mend it; returns what."""
    chance = run.chance
    first = chance.choice((run.leader(), run.follower()))
    victims = chance.choice(([first], [first, run.cluster.peer_of(first)]))
    how = kill_at_a_step(run, first)
    run.kill(*victims)
    how += cut_power(run, victims)
    if len(victims) == 1 and chance.random() < 0.5:
        time.sleep(chance.uniform(0.0, 1.5))  # the other one is alone for a while
    run.recover(*chance.sample(victims, len(victims)))
    return f"{' and '.join(node.role for node in victims)} {how}"


def random_round_with_an_arbiter(run: DurableStage) -> str:
    """Kill a node, perhaps the arbiter, perhaps the other node once it is alone; start all in any order."""
    chance, arbiter = run.chance, run.cluster.arbiter
    assert arbiter is not None
    victims = [chance.choice((run.leader(), run.follower()))]
    is_arbiter_killed = chance.random() < 0.5
    if is_arbiter_killed:
        arbiter.kill()
    how = kill_at_a_step(run, victims[0])
    run.kill(*victims)
    if chance.random() < 0.5:
        if not is_arbiter_killed:
            run.alone()
        victims.append(run.cluster.peer_of(victims[0]))
        how += ", then the other one " + kill_at_a_step(run, victims[1], is_alone=True)
        run.kill(*victims)
    how += cut_power(run, victims)
    is_late = chance.random() < 0.5
    if is_arbiter_killed and not is_late:
        arbiter.launch()
    run.restart(*chance.sample(victims, len(victims)))
    if is_arbiter_killed and is_late:
        arbiter.launch()
    run.in_sync()
    run.progress()
    return f"{victims[0].role} {how}" + (", without the arbiter" if is_arbiter_killed else "")


def kill_at_a_step(run: DurableStage, node: Node, *, is_alone: bool = False) -> str:
    """Let the node die at a step, or return at any moment to have it killed; says which.

    A node that is alone passes no step of replication, so it is killed at any moment.
    """
    if run.chance.random() < 0.5 and not is_alone:
        point = run.chance.choice(OFTEN)
        run.die(node, point, run.chance.randint(1, 50))
        return point.name
    time.sleep(run.chance.uniform(0.0, 1.0))  # the moment is what is drawn; nothing is awaited by it
    return "at any moment"


def cut_power(run: DurableStage, victims: list[Node]) -> str:
    """Of these dead nodes' disks lose what was not synced, perhaps; says what."""
    loss = run.chance.choice((None, Loss.EVERYTHING, Loss.EVERYTHING, Loss.TAIL, Loss.SECTORS))
    if loss is None:
        return ""
    run.lose_power(loss, *victims)
    return f", power lost: {loss.value}"


# --- marks, trims and imports ---------------------------------------------------------------------------


def test_durable_requests_survive_a_death_where_a_node_marks_itself() -> None:
    with durable_stage("dies-at-a-mark", repeat=repeat("marks_itself")) as run:
        # The leader notes that it is alone; then the follower, when it is whole again.
        leader, follower = run.leader(), run.follower()
        run.arm(leader, Point.MARK)
        run.kill(follower)
        run.died(leader, Point.MARK)
        run.lose_power(Loss.EVERYTHING, leader, follower)
        run.recover(leader, follower)
        follower = run.follower()
        run.kill(follower)
        # A follower that is back within the timeout was never out of step, and has nothing to mark.
        run.alone()
        run.arm(follower, Point.MARK)
        follower.launch()
        run.died(follower, Point.MARK)
        run.lose_power(Loss.EVERYTHING, follower)
        run.recover(follower)


def test_durable_requests_survive_a_death_in_a_trim_or_an_import() -> None:
    # An empty store needs the peer's table once the first entries are trimmed.
    with durable_stage("dies-in-a-trim-or-import", rate=400.0, repeat=repeat("trim_or_an_import")) as run:
        leader = run.leader()
        run.die(leader, Point.TRIM)
        run.recover(leader)
        for point in (Point.IMPORT, Point.SWAP):
            follower = run.follower()
            run.kill(follower)
            run.delete_store(follower)
            run.arm(follower, point)
            follower.launch()
            run.died(follower, point)
            run.lose_power(Loss.EVERYTHING, follower)
            run.recover(follower)


# --- stores ---------------------------------------------------------------------------------------------


def test_durable_requests_survive_a_store_that_was_deleted() -> None:
    with durable_stage("store-deleted", repeat=repeat("store_that_was_deleted")) as run:
        for _ in ROLES:
            node = run.leader()
            run.kill(node)
            run.delete_store(node)
            run.recover(node)
        # Both were empty once. Now nothing tells whether the deleted one was the only one in step.
        leader, follower = run.leader(), run.follower()
        run.kill(leader, follower)
        run.delete_store(follower)
        run.restart(follower, leader)
        run.force(leader)


def test_durable_requests_survive_stores_that_were_swapped() -> None:
    with durable_stage("stores-swapped", repeat=repeat("swapped")) as run:
        primary, backup = run.cluster.nodes
        run.kill(primary, backup)
        swap(run)
        run.recover(primary, backup)


def swap(run: DurableStage) -> None:
    """Let each dead node have the other one's store."""
    run.note("stores swapped")
    one, other = (run.disks[role] for role in ROLES)
    between = one.directory.with_name("between")
    one.directory.rename(between)
    other.directory.rename(one.directory)
    between.rename(other.directory)
    one.begin()
    other.begin()


# --- disks ----------------------------------------------------------------------------------------------


def is_failing(run: DurableStage, node: Node) -> bool:
    """True if the node says that its disk fails."""
    state = run.store(node)
    return state is not None and state.disk is not None and state.disk.is_failing


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_durable_requests_survive_a_disk_that_takes_nothing(who: str) -> None:
    """It is full, then read-only. The node says so, and the store goes on by itself afterwards."""
    faults: list[Callable[[Disk], AbstractContextManager[None]]] = [Disk.full, Disk.read_only]
    with durable_stage(f"disk-takes-nothing-{who}", repeat=repeat("takes_nothing")) as run:
        for fault in faults:
            node = run.leader() if who == "leader" else run.follower()
            with fault(run.disks[node.role]):
                wait_until(lambda: is_failing(run, node), f"the {node.role} says that its disk fails")  # noqa: B023
            run.in_sync()
            run.progress()


def test_durable_requests_survive_syncs_that_fail() -> None:
    """The power fails afterwards, so what the failed syncs left out would be seen."""
    with durable_stage("syncs-fail", seed=SEED, repeat=repeat("syncs_that_fail")) as run:
        for node in (run.leader(), run.follower()):
            disk = run.disks[node.role]
            disk.fail_syncs(run.chance.randint(1, 4))
            wait_until(lambda: disk.failing == 0, "syncs have failed")  # noqa: B023
            run.in_sync()
            run.progress()
        run.kill(*run.cluster.nodes)
        run.lose_power(Loss.EVERYTHING, *run.cluster.nodes)
        run.recover(*run.cluster.nodes)


# --- one copy -------------------------------------------------------------------------------------------


def test_durable_requests_do_not_go_back_to_a_stale_store() -> None:
    with durable_stage(
        "stale-store", settings={"store.when_alone": "accept"}, repeat=repeat("stale_store")
    ) as run:
        # A primary serves alone after a restart; a backup waits for somebody's word.
        primary, backup = run.cluster.nodes
        if run.leader() is primary:
            run.kill(primary)
            run.recover(primary)
        run.kill(primary)
        run.progress(20)  # acknowledged with one copy
        run.kill(backup)
        run.restart(primary)
        wait_until(lambda: is_in_trouble(run, primary), "the primary says why it does not lead the store")
        run.recover(backup)


def is_in_trouble(run: DurableStage, node: Node) -> bool:
    """True if the node serves and says that it does not lead the store."""
    state = run.store(node)
    return state is not None and state.is_in_trouble and not state.is_leading
