"""``make bench-peers``: the ratios of rounds, and that every contestant of ours takes its turns."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from peers.__main__ import ratio_of
from peers.contestants import all_of
from peers.durable import OURS, PLAIN, ours, sync_times
from peers.install import Peers

NONE = Peers(None, None, None, None, None, has_uvloop=False, lacks=[], told="")


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    # In the second round the machine was ten times slower for both.
    assert ratio_of([20.0, 2.0, 30.0], [10.0, 1.0, 10.0]) == 2.0


def test_without_figures_there_is_no_ratio() -> None:
    assert ratio_of([], [1.0]) is None
    assert ratio_of([1.0], [0.0]) is None


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    times = sync_times(tmp_path / "sync", count=3)
    assert len(times) == 3
    assert min(times) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.loopback
def test_all_of_ours_take_their_turns(tmp_path: Path) -> None:
    with ExitStack() as stack:
        contestants = all_of(stack, tmp_path, NONE, [], 100)
        assert [each.name for each in contestants] == [
            "bstar HAClient",
            "bstar AsyncHAClient",
            "bstar AsyncHAClient.request",
            "bstar MDP/0.2 on pyzmq",
            "bstar HAClient, CURVE",
            "bstar AsyncHAClient, CURVE",
            "floor: MDP/0.2 on pyzmq",
        ]
        for window in (1, 20):
            for contestant in contestants:
                figures = contestant.turn(window, 0.1, 16)
                assert figures.per_second > 0, contestant.name
                assert 0 < figures.p50_us <= figures.p99_us, contestant.name
                assert figures.cpu_us > 0, contestant.name


@pytest.mark.loopback
def test_our_submits_take_their_turns_and_leave_nothing_in_the_store(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plain, durable = ours(stack, tmp_path / "pair")
        assert [plain.name, durable.name] == [PLAIN, OURS]
        assert [plain.takes_part(window) for window in (1, 2)] == [True, False]
        for contestant, window in ((plain, 1), (durable, 1), (durable, 20)):
            figures = contestant.turn(window, 0.2, 16)
            assert figures.per_second > 0, contestant.name
            assert 0 < figures.p50_us <= figures.p99_us, contestant.name
        assert {*durable.cpu_us} == {"leader", "follower", "client"}
