"""How many requests of a map are under way while a broker says BUSY."""

from __future__ import annotations

from bstar_client.core.counters import Counters
from bstar_client.core.window import Pace


def test_a_window_shrinks_at_busy_once_in_as_many_replies_and_grows_back_without_it() -> None:
    counters = Counters()
    pace = Pace(100, counters)
    counters.busy += 40
    pace.take(10)
    assert pace.limit == 75
    counters.busy += 1
    pace.take(30)
    assert pace.limit == 75, "these were sent before it shrank"
    counters.busy += 1
    pace.take(40)
    assert pace.limit == 75
    counters.busy += 1
    pace.take(1)
    assert pace.limit == 75 * 0.75
    for _ in range(10_000):
        pace.take(1)
    assert pace.limit == 100


def test_a_window_never_falls_below_one() -> None:
    counters = Counters()
    pace = Pace(2, counters)
    for _ in range(50):
        counters.busy += 1
        pace.take(5)
    assert pace.limit == 1
