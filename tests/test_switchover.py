"""An operator moves the role: no request is lost, or nothing changes and the operator hears why."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.star import PeerMessage, Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Node
from bstar_broker.core.readiness import why_role_stays
from bstar_broker.core.snapshot import NodeState
from support.brokers import BrokerPair
from support.node_states import store_state
from support.pairs import QUICK, Load, new_pair, standing_pair
from support.stored_pair import stored_pair


def word(seq: int, state: int, **changes: Any) -> PeerMessage:
    said = PeerState(state, "test", "backup", "they", seq, 0, 1000, 2000)
    return PeerMessage(msgspec.structs.replace(said, **changes))


@pytest.fixture
def node() -> Node:
    """An active node with one worker, whose passive peer was heard a moment ago."""
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    made.step(word(1, 2), 0.0)
    made.step(word(2, 4), 0.0)
    assert made.is_active
    made.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1, epoch=0)], 0.0)
    return made


# --- the command, on a real pair ----------------------------------------------------------------------------


def run_drain(pair: BrokerPair, role: str, *options: str) -> tuple[int, str]:
    return run_command("drain", pair, role, *options)


def switch_over(pair: BrokerPair, role: str, *options: str) -> tuple[int, str]:
    return run_command("switchover", pair, role, *options)


def run_command(verb: str, pair: BrokerPair, role: str, *options: str) -> tuple[int, str]:
    """``bstar VERB`` with the configuration of that node: its exit status, and what it says."""
    config = str(getattr(pair, role).config_path)
    command = [sys.executable, "-m", "bstar_cli", *verb.split(), "--config", config, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def longest_wait_s(load: Load) -> float:
    return max(call.ended_at - call.started_at for call in load.answered)


@pytest.mark.loopback
def test_switchovers_under_load_lose_no_call() -> None:
    with standing_pair(replace(QUICK, drain_timeout_s=30.0)) as pair, pair.load() as load:
        load.wait_for_replies()
        for number in range(10):
            here, there = ("primary", "backup") if number % 2 == 0 else ("backup", "primary")
            getattr(pair, there).wait_for("stands by", lambda state: state.readiness.is_ready)
            status, text = switch_over(pair, here, "--to", there)
            assert status == 0, text
            assert f"the {there} of the pair tests serves, epoch " in text
            load.wait_for_replies()
        load.verify()
        load.verify_epochs()
        assert pair.repeated() == []
        print(f"10 switchovers: {len(load.answered)} calls, 0 failed, longest {longest_wait_s(load):.3f} s")


@pytest.mark.loopback
def test_an_upgrade_of_one_node_after_the_other_loses_no_call() -> None:
    with standing_pair(replace(QUICK, drain_timeout_s=30.0)) as pair, pair.load() as load:
        load.wait_for_replies()
        for here, there in (("backup", "primary"), ("primary", "backup")):
            status, text = run_drain(pair, here, "--reason", "upgrade")
            assert status == 0, text
            assert getattr(pair, there).state().pair.is_active
            status, text = switch_over(pair, there, "--to", here)
            assert (status, "end its drain" in text) == (1, True), text
            load.wait_for_replies()
            assert getattr(pair, here).stop() == 0
            getattr(pair, here).start()
            getattr(pair, here).wait_for("stands by", lambda state: state.readiness.is_ready)
        load.wait_for_replies()
        load.verify()
        assert pair.repeated() == []
        print(f"upgrade: {len(load.answered)} calls, 0 failed, longest {longest_wait_s(load):.3f} s")


@pytest.mark.loopback
def test_the_role_stays_until_the_peers_store_is_in_sync_and_the_store_moves_with_it(tmp_path: Path) -> None:
    def has_two_copies(state: NodeState) -> bool:
        return state.store is not None and state.store.is_leading and state.store.copies == 2

    with stored_pair(tmp_path) as pair:
        pair.primary.wait_for("two copies", has_two_copies)
        assert switch_over(pair, "primary")[0] == 0
        pair.backup.wait_for("two copies", has_two_copies)


def test_one_copy_of_durable_requests_keeps_the_role(node: Node) -> None:
    alone = msgspec.structs.replace(node.state(1.0), store=store_state(is_leading=True, copies=1))
    both = msgspec.structs.replace(node.state(1.0), store=store_state(is_leading=True, copies=2))
    assert "is not in sync" in why_role_stays(alone, is_if_healthy=False)
    assert why_role_stays(both, is_if_healthy=False) == ""


def test_a_store_that_does_not_lead_does_not_keep_the_role(node: Node) -> None:
    """Its disk was full when the role came to it, and the peer, which had all, could not get it back."""
    waits = msgspec.structs.replace(node.state(1.0), store=store_state(is_leading=False, copies=1))
    assert why_role_stays(waits, is_if_healthy=False) == ""
    assert "is not in sync" in why_role_stays(waits, is_if_healthy=True)


@pytest.mark.loopback
def test_where_no_node_runs_nothing_moves() -> None:
    with new_pair() as pair:
        status, text = switch_over(pair, "primary")
        assert (status, "refused: no node answers at " in text) == (1, True)
