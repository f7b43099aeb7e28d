"""An operator moves the role: no request is lost, or nothing changes and the operator hears why."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from bstar.star import (
    Handover,
    HandoverRefused,
    Leave,
    PeerMessage,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Tick,
)
from bstar.wire import native
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Node, Output, Send
from bstar_broker.core.readiness import why_role_stays
from bstar_broker.core.snapshot import NodeState, ShellState, Standing
from bstar_broker.operate.operations import (
    DRAIN,
    DRAINED,
    REJOIN,
    SWITCH_OVER,
    SWITCHOVER,
    DrainTold,
    DrainWish,
    Operations,
    SwitchoverTold,
    SwitchoverWish,
)
from support.brokers import BrokerPair
from support.node_states import store_state
from support.pairs import QUICK, Load, new_pair, standing_pair
from support.stored_pair import stored_pair

Told = TypeVar("Told")

WORKER = b"worker"
DRAIN_S = 5.0


def word(seq: int, state: int, **changes: Any) -> PeerMessage:
    said = PeerState(state, "test", "backup", "they", seq, 0, 1000, 2000)
    return PeerMessage(msgspec.structs.replace(said, **changes))


@pytest.fixture
def node() -> Node:
    """An active node with one worker, whose passive peer was heard a moment ago."""
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    made = Node(
        machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=DRAIN_S, version="test", now=0.0
    )
    made.step(word(1, 2), 0.0)
    made.step(word(2, 4), 0.0)
    assert made.is_active
    made.receive_frames([WORKER, *native.encode_ready(b"echo", credit=1, epoch=0)], 0.0)
    return made


def ask(node: Node, number: int, now: float) -> list[list[bytes]]:
    """A native client asks for "echo"."""
    identity = number.to_bytes(24, "big")
    request = native.encode_request(identity, b"echo", [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
    return sent(node.receive_frames([b"client", *request], now))


def reply(node: Node, number: int, now: float) -> list[Output]:
    identity = number.to_bytes(24, "big")
    return node.receive_frames([WORKER, *native.encode_final(identity, 1, 0, [b"y"])], now)


def sent(outputs: list[Output]) -> list[list[bytes]]:
    return [output.frames for output in outputs if isinstance(output, Send)]


def commands(frames: list[list[bytes]]) -> list[tuple[bytes, int]]:
    return [(each[0], native.decode(each[1:]).command) for each in frames]


def refusals(outputs: list[Output]) -> list[str]:
    return [output.why for output in outputs if isinstance(output, HandoverRefused)]


def live(node: Node, start: float, end: float, *, is_peer_heard: bool = True) -> None:
    """Let time pass, with signs of life of the workers and of the passive peer."""
    for step in range(int((end - start) / 0.5) + 1):
        now = start + step * 0.5
        if is_peer_heard:
            node.step(word(int(now * 10), 4), now)
        for worker in (WORKER, b"second"):
            node.receive_frames([worker, *native.encode_heartbeat(0)], now)
        node.step(Tick(), now)


def phase(node: Node) -> str:
    assert node.parting.switchover is not None
    return node.parting.switchover.phase


# --- the node -----------------------------------------------------------------------------------------------


def test_workers_finish_first_and_what_waits_goes_to_the_peer(node: Node) -> None:
    assert commands(ask(node, 1, 1.0)) == [(WORKER, native.REQUEST)]
    assert refusals(node.step(Handover(), 1.0)) == []
    assert ask(node, 2, 1.1) == [], "it waits"
    assert phase(node) == "drains"
    outputs = reply(node, 1, 1.2)
    told = [each for each in commands(sent(outputs)) if each[0] == b"client"]
    assert told == [(b"client", native.FINAL), (b"client", native.NOT_ACTIVE)]
    [message] = [output.message for output in outputs if isinstance(output, Publish)]
    assert message.released
    assert phase(node) == "released"
    node.step(word(3, 3, epoch=2), 1.25)
    move = node.parting.switchover
    assert move is not None
    assert (move.phase, move.epoch, move.asked_at, move.released_at, move.ended_at) == (
        "moved", 2, 1.0, 1.2, 1.25,
    )  # fmt: skip
    assert not node.state(1.3).broker.is_draining


def test_a_node_without_work_hands_over_at_once(node: Node) -> None:
    node.step(Handover(), 1.0)
    assert phase(node) == "released"


def test_a_switchover_whose_workers_do_not_finish_is_called_off_and_what_waits_is_dispatched(
    node: Node,
) -> None:
    node.receive_frames([b"second", *native.encode_ready(b"echo", credit=1, epoch=0)], 0.5)
    ask(node, 1, 1.0)
    node.step(Handover(), 1.0)
    assert ask(node, 2, 1.1) == []
    live(node, 1.0, 5.5)
    assert phase(node) == "drains"
    outputs = node.step(Tick(), 1.0 + DRAIN_S)
    assert refusals(outputs) == ["workers still held requests after 5 s (timing.drain_timeout_s)"]
    assert native.REQUEST in [command for _, command in commands(sent(outputs))]
    assert node.is_active
    assert phase(node) == "refused"
    assert node.state(6.0).readiness.is_ready


def test_a_peer_that_is_lost_meanwhile_keeps_the_role_here(node: Node) -> None:
    ask(node, 1, 1.0)
    node.step(Handover(), 1.0)
    live(node, 1.0, 3.5, is_peer_heard=False)
    outputs = reply(node, 1, 3.5)
    assert refusals(outputs) == ["the peer is silent: start it first"]
    assert (node.is_active, phase(node)) == (True, "refused")
    assert not node.state(3.6).broker.is_draining


def test_a_peer_that_does_not_take_the_role_leaves_it_here(node: Node) -> None:
    node.step(Handover(), 1.0)
    for second in (1.5, 2.0, 2.5):
        node.step(Tick(), second)
    ask(node, 2, 3.1)
    assert node.is_active
    node.step(Tick(), 3.2)
    move = node.parting.switchover
    assert move is not None
    assert (move.phase, move.refusal) == (
        "refused",
        "the peer did not take the role, so this node serves again",
    )


def test_a_node_that_was_away_while_it_drained_calls_the_switchover_off(node: Node) -> None:
    ask(node, 1, 1.0)
    node.step(Handover(), 1.0)
    outputs = node.step(Stall(9.0), 10.0)
    assert refusals(outputs) == ["this node became PASSIVE meanwhile"]
    assert not node.state(10.0).broker.is_draining


def test_a_stop_ends_a_switchover_and_goes_on_whatever_workers_hold(node: Node) -> None:
    ask(node, 1, 1.0)
    node.step(Handover(), 1.0)
    node.step(Leave(), 2.0)
    move = node.parting.switchover
    assert move is not None
    assert (move.phase, move.refusal) == ("refused", "this node is stopping")
    assert refusals(node.step(Handover(), 2.1)) == ["this node is stopping"]
    node.step(word(3, 4), 3.0)
    node.step(Tick(), 7.0)
    assert not node.is_active


def test_a_second_switchover_waits_for_the_first(node: Node) -> None:
    ask(node, 1, 1.0)
    node.step(Handover(), 1.0)
    first = node.parting.switchover
    assert refusals(node.step(Handover(), 1.1)) == ["a switchover is under way"]
    assert node.parting.switchover is first


# --- what the control socket is asked -----------------------------------------------------------------------


def ask_operations(node: Node, request: bytes, wish: object, told: type[Told], *, at: float) -> Told:
    operations = Operations(node, lambda outputs: None, lambda: at)
    argument = wish if isinstance(wish, bytes) else msgspec.json.encode(wish)
    return msgspec.json.decode(operations.by_request[request](argument), type=told)


def operate(node: Node, request: bytes, wish: object = None, *, at: float = 1.0) -> SwitchoverTold:
    return ask_operations(node, request, wish, SwitchoverTold, at=at)


def test_the_answer_tells_how_far_it_is_and_how_long_it_took(node: Node) -> None:
    assert operate(node, SWITCHOVER).phase == "none"
    assert operate(node, SWITCH_OVER, SwitchoverWish("backup")).phase == "released"
    node.step(word(3, 3, epoch=2), 1.5)
    assert operate(node, SWITCHOVER, at=9.0) == SwitchoverTold("moved", "", "backup", 2, 0.5, 0.5)
    answer = operate(node, SWITCH_OVER, SwitchoverWish(), at=9.0)
    assert (answer.phase, answer.refusal) == ("refused", "this node is PASSIVE: ask the active node")


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (SwitchoverWish("primary"), "the primary serves already"),
        (b"{", "the request cannot be read: Input data was truncated"),
    ],
)
def test_a_wish_that_changes_nothing_is_refused(node: Node, wish: object, why: str) -> None:
    answer = operate(node, SWITCH_OVER, wish)
    assert (answer.phase, answer.refusal) == ("refused", why)
    assert node.parting.switchover is None


def test_a_passive_node_says_who_is_to_be_asked(node: Node) -> None:
    node.step(Handover(), 1.0)
    answer = operate(node, SWITCH_OVER, SwitchoverWish("primary"))
    assert answer.refusal == "the primary is PASSIVE: ask the backup, on its machine"


def test_while_one_is_under_way_another_is_refused_and_the_first_goes_on(node: Node) -> None:
    ask(node, 1, 1.0)
    operate(node, SWITCH_OVER, SwitchoverWish())
    assert operate(node, SWITCH_OVER, SwitchoverWish()).refusal == "another switchover is under way"
    assert operate(node, SWITCHOVER).phase == "drains"


def test_only_if_healthy_means_any_trouble_that_the_node_knows_of(node: Node) -> None:
    node._shell = lambda now: ShellState(epoch_error="No space left on device")
    state = node.state(1.0)
    assert why_role_stays(state, is_if_healthy=False) == ""
    assert why_role_stays(state, is_if_healthy=True).startswith("this node cannot store its epoch")
    answer = operate(node, SWITCH_OVER, SwitchoverWish(is_if_healthy=True))
    assert (answer.phase, node.is_active) == ("refused", True)


# --- a drain ------------------------------------------------------------------------------------------------


def drain(node: Node, *, at: float = 1.0, why: str = "ann: new disk") -> DrainTold:
    return ask_operations(node, DRAIN, DrainWish(why), DrainTold, at=at)


def passive_node() -> Node:
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    made = Node(
        machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=DRAIN_S, version="test", now=0.0
    )
    made.step(word(1, 3, epoch=2), 0.0)
    assert machine.state is State.PASSIVE
    return made


def test_a_drained_node_says_so_once_and_no_vote_makes_it_serve() -> None:
    node = passive_node()
    assert drain(node).phase == "drained"
    assert node.state(1.0).pair.drained_why == "ann: new disk"
    assert node.state(1.0).readiness.reason is Standing.DRAINED
    live(node, 1.0, 20.0, is_peer_heard=False)
    ask(node, 1, 20.0)
    assert not node.is_active


def test_the_peer_of_a_drained_node_hears_that_it_leaves_and_refuses_to_hand_over(node: Node) -> None:
    node.step(word(3, 4, leaving=True), 1.0)
    refused = operate(node, SWITCH_OVER, SwitchoverWish())
    assert (refused.phase, "end its drain" in refused.refusal) == ("refused", True)


def test_the_last_word_of_a_drained_node_is_that_it_leaves() -> None:
    node = passive_node()
    outputs = node.drain("ann", 1.0)
    assert [each.message.leaving for each in outputs if isinstance(each, Publish)] == [True]
    assert not [each for each in node.step(Tick(), 9.0) if isinstance(each, Publish)]


def test_an_active_node_hands_over_before_it_is_drained(node: Node) -> None:
    ask(node, 1, 1.0)
    assert (drain(node).phase, drain(node).in_flight) == ("drains", 1)
    reply(node, 1, 1.1)
    assert not node.is_active
    assert drain(node, at=1.1).phase == "drains", "the peer has not taken the role yet"
    node.step(word(3, 3, epoch=2), 1.2)
    assert drain(node, at=1.2).phase == "drained"


def test_a_drain_without_a_fit_peer_is_refused_and_changes_nothing(node: Node) -> None:
    live(node, 0.0, 10.0, is_peer_heard=False)
    told = drain(node, at=10.0)
    assert (told.phase, told.refusal) == ("refused", "the peer is silent: start it first")
    assert (node.is_active, node.parting.drain_why) == (True, "")


def test_a_drain_whose_workers_do_not_finish_is_called_off(node: Node) -> None:
    ask(node, 1, 1.0)
    assert drain(node).phase == "drains"
    live(node, 1.0, 1.0 + DRAIN_S + 1.0)
    told = ask_operations(node, DRAINED, None, DrainTold, at=7.0)
    assert (told.phase, "workers still held requests" in told.refusal) == ("refused", True)
    assert (node.is_active, node.parting.is_draining) == (True, False)


def test_a_node_that_is_put_back_listens_first_and_then_may_serve() -> None:
    node = passive_node()
    drain(node)
    told = ask_operations(node, REJOIN, DrainWish("ann"), DrainTold, at=30.0)
    assert told.phase == "none"
    ask(node, 1, 30.1)
    assert not node.is_active, "its peer may serve: it was not listening"
    live(node, 30.1, 40.0, is_peer_heard=False)
    ask(node, 2, 40.0)
    assert node.is_active


def test_a_node_that_is_not_drained_cannot_be_put_back(node: Node) -> None:
    told = ask_operations(node, REJOIN, DrainWish("ann"), DrainTold, at=1.0)
    assert (told.phase, told.refusal) == ("refused", "this node is not drained")


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
@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.storm)])
def test_switchovers_under_load_lose_no_call(count: int) -> None:
    with standing_pair(replace(QUICK, drain_timeout_s=30.0)) as pair, pair.load() as load:
        load.wait_for_replies()
        for number in range(count):
            here, there = ("primary", "backup") if number % 2 == 0 else ("backup", "primary")
            getattr(pair, there).wait_for("stands by", lambda state: state.readiness.is_ready)
            status, text = switch_over(pair, here, "--to", there)
            assert status == 0, text
            assert f"the {there} of the pair tests serves, epoch " in text
            load.wait_for_replies()
        load.verify()
        load.verify_epochs()
        assert pair.repeated() == []
        print(
            f"{count} switchovers: {len(load.answered)} calls, 0 failed, longest {longest_wait_s(load):.3f} s"
        )


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
def test_a_node_that_is_put_back_stands_by_again() -> None:
    with standing_pair() as pair:
        assert run_drain(pair, "primary")[0] == 0
        pair.backup.wait_for("alone", lambda state: not state.pair.is_peer_fresh)
        assert pair.primary.state().readiness.reason == "drained"
        status, text = run_drain(pair, "primary", "--undo")
        assert (status, "is back in the pair" in text) == (0, True), text
        pair.primary.wait_for("stands by", lambda state: state.readiness.is_ready)
        pair.backup.wait_for("not alone", lambda state: state.pair.is_peer_fresh)
        assert switch_over(pair, "backup")[0] == 0


@pytest.mark.loopback
def test_a_switchover_is_refused_where_the_role_is_not_and_without_a_peer() -> None:
    with standing_pair() as pair:
        assert switch_over(pair, "primary", "--to", "primary") == (
            1,
            "not moved: the primary serves already\n",
        )
        assert switch_over(pair, "backup") == (1, "not moved: this node is PASSIVE: ask the active node\n")
        pair.backup.kill()
        pair.primary.wait_for_silence_of_peer()
        assert switch_over(pair, "primary") == (1, "not moved: the peer is silent: start it first\n")
        assert pair.primary.state().pair.is_active
        pair.primary.pause()
        status, text = switch_over(pair, "primary")
        assert (status, text.startswith("not known whether the role has moved")) == (4, True), text


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


@pytest.mark.loopback
def test_where_no_node_runs_nothing_moves() -> None:
    with new_pair() as pair:
        status, text = switch_over(pair, "primary")
        assert (status, "not moved: no node answers at " in text) == (1, True)
