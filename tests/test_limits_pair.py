"""``running_max`` with real processes: fifty workers and a load, while nodes are killed and come back.

The workers write down when each handler begins and ends, by the clock that all processes share.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from bstar_broker.core.snapshot import NodeState
from bstar_testing.processes import wait_until
from support.brokers import Broker
from support.pairs import SERVICE, Execution, Load, Pair, new_pair

pytestmark = pytest.mark.loopback

RUNNING_MAX = 10


def most_at_once(executions: Iterable[Execution]) -> int:
    """How many handlers ran at once at most."""
    most = running = 0
    for each in sorted(executions, key=lambda each: (each.at, each.phase == "begin")):
        running += 1 if each.phase == "begin" else -1
        most = max(most, running)
    return most


def fill(pair: Pair, load: Load, file: Path) -> None:
    """Let handlers that end when ``file`` is there take all places."""
    for number in range(RUNNING_MAX):
        load.begin(f"until {file} {number}".encode())
    wait_until(
        lambda: sum(str(file) in each.body for each in pair.begun()) == RUNNING_MAX, "all places are taken"
    )


def wait_for_the_limit(node: Broker) -> None:
    """Wait until the node counts what workers run for the one that was killed. It has given nothing out."""

    text = f"running_max {RUNNING_MAX}: {RUNNING_MAX} running, "

    def is_bound(state: NodeState) -> bool:
        return state.pair.is_active and any(
            each.service == SERVICE and each.in_flight == 0 and each.bound.startswith(text)
            for each in state.broker.services
        )

    node.wait_for("bound by what the other node gave out", is_bound)


def test_fifty_workers_never_run_more_than_running_max_while_nodes_are_killed_and_come_back() -> None:
    limits = {"services": {SERVICE: {"running_max": RUNNING_MAX}}}
    with new_pair(settings=limits) as pair:
        pair.start()
        pair.add_workers(5, work_s=0.2, each=10)
        with pair.load(threads=3 * RUNNING_MAX) as load:
            for number, (active, passive) in enumerate((pair.nodes, pair.nodes[::-1])):
                load.wait_for_replies(40)
                file = pair.folder / f"end-{number}"
                fill(pair, load, file)
                active.kill()
                wait_for_the_limit(passive)
                file.touch()
                load.wait_for_replies(40)
                active.start()
                active.wait_for_state("PASSIVE")
                pair.wait_for_workers()
            # The only node is killed: after its restart its workers tell what it gave out before.
            pair.backup.kill()
            file = pair.folder / "end-alone"
            fill(pair, load, file)
            pair.primary.kill()
            pair.primary.start()
            wait_for_the_limit(pair.primary)
            file.touch()
            load.wait_for_replies(40)
        load.verify(replies_min=200)
        pair.verify_executions(load)
        # Those of the primary are odd, those of the backup even. A starved machine adds takeovers of its own.
        epochs = {call.epoch for call in load.answered}
        assert len(epochs) >= 4
        assert {epoch % 2 for epoch in epochs} == {0, 1}
        assert most_at_once(pair.executions()) == RUNNING_MAX


def test_a_node_reads_the_limits_of_services_again_at_sighup() -> None:
    with new_pair() as pair:
        pair.start()
        pair.add_workers(1, each=2)
        node = pair.primary
        with pair.load(threads=3) as load:
            load.wait_for_replies()
            file = pair.folder / "end"
            config = dict(node.config) | {"services": {SERVICE: {"running_max": 1}}}
            node.config_path.write_text(json.dumps(config))
            node.send_signal(signal.SIGHUP)
            node.wait_for_log("configuration read again")
            for number in range(2):
                load.begin(f"until {file} {number}".encode())
            node.wait_for(
                "bound by the new limit",
                lambda state: any(each.bound.startswith("running_max 1: ") for each in state.broker.services),
            )
            node.config_path.write_text(json.dumps(node.config))
            node.send_signal(signal.SIGHUP)
            wait_until(lambda: sum(str(file) in each.body for each in pair.begun()) == 2, "both run")
            file.touch()
