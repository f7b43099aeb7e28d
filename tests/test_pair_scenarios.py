"""What a pair promises when nodes start, end, stall and come back, with real processes.

Each test is one claim that needs processes; scripts in tests/golden have the rules of the pair. Tests wait
for events; the only times that are waited for are those that a claim is about: how long a process stands
still, and how long nothing must happen.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bstar.settings import RoleName
from bstar_client import FailedOver, HAClient, NoActiveNodeError
from bstar_client.calls.status import node_states
from support.brokers import Broker, BrokerPair, Profile
from support.pairs import NEVER, SERVICE, Load, Pair, new_pair, standing_pair
from support.rawpeers import EMPTY

pytestmark = pytest.mark.loopback


def show(event: str, load: Load, since: float) -> None:
    """Print what clients noticed of an event (`pytest -rP` shows it)."""
    print(f"{event}: longest time without a reply {load.outage_s(since) * 1000:.0f} ms")


# --- starting -----------------------------------------------------------------------------------------------


def test_whichever_node_starts_first_the_primary_serves_and_no_vote_is_needed() -> None:
    with new_pair() as pair:
        pair.backup.launch()
        pair.backup.wait_for_state("BACKUP")
        pair.primary.launch()
        primary = pair.primary.wait_for_state("ACTIVE").pair
        backup = pair.backup.wait_for_state("PASSIVE").pair
        assert (primary.epoch, primary.votes, backup.votes) == (1, 0, 0)


def test_a_primary_alone_serves_after_one_failover_timeout_and_a_vote() -> None:
    with new_pair() as pair:
        launched_at = time.monotonic()
        pair.primary.start()
        pair.add_workers(1)
        pair.primary.wait_for_silence()
        # The timeout is over and nobody has asked: it still does not serve.
        assert pair.primary.state().pair.state == "PRIMARY"
        with pair.load(threads=1) as load:
            load.wait_for_replies()
            load.verify()
            assert load.answered[0].ended_at - launched_at >= pair.timing.failover_timeout_s
            assert {call.epoch for call in load.answered} == {1}
            state = pair.primary.state().pair
            assert (state.state, state.votes) == ("ACTIVE", 1)
            # A backup that comes now stands by.
            pair.backup.launch()
            pair.backup.wait_for_state("PASSIVE")
            load.wait_for_replies()
            assert {call.epoch for call in load.answered} == {1}


# --- kill -9 ------------------------------------------------------------------------------------------------


def test_no_request_is_lost_when_the_active_node_is_killed_and_the_roles_may_change_again_and_again() -> None:
    with standing_pair(work_s=0.02) as pair, pair.load() as load:
        active, passive = pair.primary, pair.backup
        for epoch in (2, 3, 4):
            load.wait_for_replies()
            killed_at = time.monotonic()
            active.kill()
            state = passive.wait_for_state("ACTIVE").pair
            load.wait_for_replies()
            assert (state.epoch, passive.state().pair.votes) == (epoch, 1)
            show(f"kill -9 of the active {active.role}", load, killed_at)
            # Whoever comes back stands by, and takes nothing back.
            active.start()
            active.wait_for_state("PASSIVE")
            pair.wait_for_workers()
            load.wait_for_replies()
            assert passive.state().pair.state == "ACTIVE"
            active, passive = passive, active
        load.verify()
        load.verify_epochs()
        pair.verify_executions(load)
        assert {call.epoch for call in load.answered} == {1, 2, 3, 4}
        # What the dead nodes' workers were doing could not be told to anyone: it was done again, marked so.
        assert pair.repeated()


GONE = "peer is gone: its endpoint refuses connections"


def test_a_killed_node_is_replaced_at_once_because_its_endpoint_refuses() -> None:
    """With a failover timeout as long as this one, waiting for silence would end every call first."""
    with standing_pair(NEVER) as pair, pair.load() as load:
        load.wait_for_replies()
        killed_at = time.monotonic()
        pair.primary.kill()
        state = pair.backup.wait_for_state("ACTIVE").pair
        assert (state.is_peer_gone, state.peers_gone, state.votes) == (True, 1, 1)
        assert GONE in pair.backup.log()
        load.wait_for_replies()
        show("kill -9 of the active, failover timeout 60 s", load, killed_at)
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        pair.backup.wait_for("with its peer again", lambda state: not state.pair.is_peer_gone)
        load.verify()
        pair.verify_executions(load)


def test_without_expire_on_refused_the_timeout_decides() -> None:
    off = {"timing.expire_on_refused": False}
    with standing_pair(settings=off) as pair, pair.load() as load:
        load.wait_for_replies()
        pair.primary.kill()
        state = pair.backup.wait_for_state("ACTIVE").pair
        assert (state.is_peer_gone, state.peers_gone) == (False, 0)
        assert GONE not in pair.backup.log()
        assert "peer silent for" in pair.backup.log()
        load.wait_for_replies()
        load.verify()


def test_nobody_notices_that_the_passive_node_is_killed_and_comes_back() -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        killed_at = time.monotonic()
        pair.backup.kill()
        pair.primary.wait_for_silence_of_peer()
        load.wait_for_replies()
        pair.backup.start()
        pair.backup.wait_for_state("PASSIVE")
        load.wait_for_replies()
        show("kill -9 and restart of the passive", load, killed_at)
        load.verify()
        assert {(call.epoch, call.attempts) for call in load.answered} == {(1, 1)}
        assert not [event for event in load.events if isinstance(event, FailedOver)]


# --- SIGTERM ------------------------------------------------------------------------------------------------


def test_stopping_the_active_node_hands_over_and_no_call_fails() -> None:
    with standing_pair(work_s=0.02) as pair, pair.load() as load:
        active, passive = pair.primary, pair.backup
        for epoch in (2, 3):
            load.wait_for_replies()
            stopped_at = time.monotonic()
            assert active.stop() == 0
            state = passive.wait_for_state("ACTIVE").pair
            load.wait_for_replies()
            # It was given the role; no silence had to be waited for, so no vote was needed.
            assert (state.epoch, state.votes) == (epoch, 0)
            show(f"SIGTERM of the active {active.role}", load, stopped_at)
            active.start()
            active.wait_for_state("PASSIVE")
            pair.wait_for_workers()
            active, passive = passive, active
        load.verify()
        load.verify_epochs()
        pair.verify_executions(load)
        # A planned stop waits for what workers are executing, so nothing is done twice.
        assert pair.repeated() == []


# --- SIGSTOP ------------------------------------------------------------------------------------------------


def test_two_nodes_never_both_serve_when_the_active_one_stands_still_for_long() -> None:
    with standing_pair() as pair, pair.primary.peers() as peers, pair.probes() as probes, pair.load() as load:
        late = peers.client01()
        late.mmi(b"mmi.service", b"late")  # it is connected
        load.wait_for_replies()
        with pair.primary.frozen():
            frozen_at = time.monotonic()
            for _ in range(50):
                late.request(b"late", b"waits in the socket of a node that stands still")
            time.sleep(3 * pair.timing.failover_timeout_s)
            pair.backup.wait_for_state("ACTIVE")
            probes.wait_for_reply("backup", sent_after=frozen_at)
            load.wait_for_replies()
        woken_at = time.monotonic()
        pair.primary.wait_for_state("PASSIVE")
        probes.wait_for_reply("backup", sent_after=woken_at)
        load.wait_for_replies()
        show("SIGSTOP of the active for three failover timeouts", load, frozen_at)

        # What lay in its socket when it woke up was as good as any request a moment before. It waited until
        # the peer had answered that it serves, and went back.
        late.mmi(b"mmi.service", b"late")  # what this client sent before has been read
        broker = pair.primary.state().broker
        kept = [service for service in broker.services if service.service == "late"]
        assert broker.queued == 0
        assert [service.returned - service.accepted for service in kept] in ([], [0])
        returned = sum(service.returned for service in kept)
        assert returned + broker.drops.get("not-active", 0) >= 50
        assert probes.sent("primary", after=frozen_at) > 20
        assert probes.answered("primary", sent_after=frozen_at) == []
        assert [call for call in load.answered if call.epoch == 1 and call.started_at > frozen_at] == []
        assert {call.epoch for call in load.answered} == {1, 2}
        states = [node.state().pair for node in pair.nodes]
        assert [state.state for state in states] == ["PASSIVE", "ACTIVE"]
        assert [state.epoch_seen for state in states] == [2, 2]
        # It refused nobody while it stood still: its kernel went on letting clients in.
        assert [state.peers_gone for state in states] == [0, 0]
        assert GONE not in pair.backup.log()
        load.verify()
        load.verify_epochs()
        pair.verify_executions(load)


# --- configured by mistake ----------------------------------------------------------------------------------


def test_two_nodes_that_cannot_be_a_pair_both_end_and_say_what_to_change() -> None:
    with new_pair(backup={"pair": "other"}) as pair:
        pair.launch()
        assert [node.wait_exit() for node in pair.nodes] == [72, 72]
        assert "pair is tests here and other on the other node" in pair.primary.log()
        assert "pair is other here and tests on the other node" in pair.backup.log()


@contextmanager
def second_of(pair: Pair, role: RoleName) -> Iterator[Broker]:
    """A node on ports of its own that names the peer of the pair's node of this role. It is not started."""
    peer = pair.backup if role == "primary" else pair.primary
    other = BrokerPair(
        pair.folder / "second", Profile(pair.timing), settings={"endpoints.peer_state": peer.state_endpoint}
    )
    with other:
        yield other.primary if role == "primary" else other.backup


def test_a_second_node_that_names_the_same_peer_ends_and_the_pair_serves_on() -> None:
    with standing_pair() as pair, second_of(pair, "primary") as second, pair.load(threads=2) as load:
        load.wait_for_replies()
        second.launch()
        assert second.wait_exit() == 72
        assert "two nodes with role primary" in second.log()
        assert "endpoints.peer_state" in second.log()
        pair.primary.kill()
        pair.backup.wait_for_state("ACTIVE")
        load.wait_for_replies()
        load.verify()


# --- looking ------------------------------------------------------------------------------------------------


def _get(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            answer.read()
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_looking_at_a_passive_node_whose_peer_is_dead_does_not_promote_it_and_a_request_does() -> None:
    with standing_pair() as pair:
        pair.primary.kill()
        pair.backup.wait_for_silence()

        for _ in range(5):
            assert pair.backup.state().pair.state == "PASSIVE"
            (report,) = node_states([pair.backup.endpoint], timeout=20.0)
            assert report.state is not None, report.error
            for path in ("healthz", "readyz", "status", "metrics", "active"):
                assert _get(f"{pair.backup.http_url}/{path}") == (503 if path == "active" else 200)
        with pair.backup.peers() as peers:
            code, *_ = peers.client01().mmi(b"mmi.service", SERVICE.encode())
            assert code == b"200"
            peers.worker01(SERVICE.encode()).mmi(b"mmi.services", EMPTY)
        with HAClient(pair.endpoints) as client, pytest.raises(NoActiveNodeError):
            client.discover(SERVICE, timeout=2 * pair.timing.failover_timeout_s)
        state = pair.backup.state().pair
        assert (state.state, state.votes, state.requests_refused) == ("PASSIVE", 0, 0)

        with pair.load(threads=1) as load:
            load.wait_for_replies(1)
        state = pair.backup.wait_for_state("ACTIVE").pair
        assert (state.epoch, state.votes) == (2, 1)
