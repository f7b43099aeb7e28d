"""PZQ in a simulation of its own: one node with a durable store, seeds, thousands of steps each.

Every message that a producer was told is stored is delivered until a consumer has acknowledged it, none is
delivered after that, and the store is empty in the end. Broken builds must be caught.
"""

from __future__ import annotations

from typing import Any

import pytest

from bstar.wire import pzq
from bstar_broker.fronts.pzq.deliveries import Deliveries
from bstar_broker.fronts.pzq.front import PzqFront
from support.pzq_world import PzqWorld


def play(seed: int) -> PzqWorld:
    world = PzqWorld(seed)
    world.run()
    lost = world.stored - world.done
    assert not lost, f"seed {seed}: {len(lost)} of {len(world.stored)} messages were never done: {lost}"
    assert world.kept == 0, f"seed {seed}: {world.kept} records are left"
    assert world.front.levels["in_flight"] == world.front.levels["held"] == 0, f"seed {seed}"
    return world


@pytest.mark.storm
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_stored_message_is_delivered_until_it_is_done_and_never_after(seed: int) -> None:
    counts = play(seed).counts
    assert counts["stored"] > 100, counts
    assert counts["delivered"] > counts["stored"] / 2, counts


# --- broken builds: a test of the tests ---------------------------------------------------------------------


def play_some() -> None:
    for seed in range(1, 9):
        play(seed)


def expect_a_violation() -> None:
    with pytest.raises(AssertionError, match=r"seed|is delivered"):
        play_some()


@pytest.mark.storm
def test_a_build_that_forgets_late_acknowledgements_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "remember", lambda self, key: None)
    expect_a_violation()


@pytest.mark.storm
def test_a_build_that_waits_for_acknowledgements_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "end_late", lambda self, now: [])
    expect_a_violation()


@pytest.mark.storm
def test_a_build_that_takes_any_status_for_done_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PzqFront._hear_consumer

    def all_done(self: PzqFront, frames: list[bytes], now: float) -> Any:
        return sound(self, [frames[0], pzq.DONE], now)

    monkeypatch.setattr(PzqFront, "_hear_consumer", all_done)
    expect_a_violation()
