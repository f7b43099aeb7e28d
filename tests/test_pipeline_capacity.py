"""Capacity counts the serving node only and forecasts by a line; clients are judged by their own word."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bstar import records
from support.journal_lines import Scribe, stored_of

MONDAY = datetime(2026, 5, 4, tzinfo=UTC)
HOUR_US = 3_600_000_000


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def load(scribe: Scribe, at: int, **fields: Any) -> records.Base:
    idle = {"interval_us": HOUR_US // 2, "workers": 2, "credit": 4, "queued": 0, "in_flight": 0, "busy_us": 0}
    return scribe(records.Load, at, **{"service": "echo", **idle, **fields})


def pulse(scribe: Scribe, at: int, state: str) -> records.Base:
    return scribe(records.Pulse, at, state=state, epoch=1, workers=2, queued=0, in_flight=0)


@pytest.mark.spark
def test_capacity_is_of_the_node_that_serves_and_of_whole_hours(tmp_path: Path) -> None:
    from bstar_pipeline.gold.capacity import capacity

    primary, backup, unknown = Scribe(), Scribe("backup"), Scribe("primary", pair="other")
    start = us(MONDAY)
    of = [pulse(primary, start, "ACTIVE"), pulse(backup, start, "PASSIVE")]
    # 48 hours with utilisation from 0.1 on, 0.01 more every hour: 1 is reached 90 hours after the first.
    for hour in range(48):
        at = start + hour * HOUR_US
        busy = round((0.1 + 0.01 * hour) * 4 * HOUR_US / 2)
        of += [
            load(primary, at + HOUR_US // 4, busy_us=busy // 2, accepted=900, queued=10),
            load(primary, at + 3 * HOUR_US // 4, busy_us=busy + busy // 2, accepted=2700, queued=1810),
            load(backup, at + HOUR_US // 4),
            load(primary, at + HOUR_US // 4, service="steady", busy_us=HOUR_US),
            load(primary, at + HOUR_US // 4, service="nobody", workers=0, credit=0, queued=5),
        ]
    # The role moves; of a node whose state nobody told only what had work counts.
    moved = start + 48 * HOUR_US
    of += [
        primary(records.Deactivated, moved, epoch=1, text=""),
        backup(records.Activated, moved, epoch=2, text=""),
        load(primary, moved + 1, service="moved"),
        load(backup, moved + 1, service="moved", busy_us=HOUR_US),
        load(unknown, start, queued=1),
        load(unknown, start + 1, credit=1000),
    ]
    found = {
        (row["pair"], row["service"], row["hour"]): row
        for row in capacity(stored_of(of, tmp_path / "records")).collected()
    }

    def row_of(number: int, service: str = "echo", pair: str = "pair") -> Any:
        return found[pair, service, (MONDAY + timedelta(hours=number))]

    assert len(found) == 3 * 48 + 2
    for number in (0, 20, 47):
        row = row_of(number)
        assert (row["workers"], row["credit"]) == (2, 4)
        assert row["utilisation"] == pytest.approx(0.1 + 0.01 * number)
        assert row["peak_utilisation"] == pytest.approx(1.5 * (0.1 + 0.01 * number))
        assert row["arrivals_per_s"] == 1
        assert (row["queued_mean"], row["queued_max"]) == (910, 1810)
        assert row["queue_growth_per_s"] == pytest.approx(1)
        assert row["trend_per_day"] == pytest.approx(0.24)
        assert row["saturates_at"] == (MONDAY + timedelta(hours=90))
        assert str(row["day"]) == str((MONDAY + timedelta(hours=number)).date())
    assert row_of(47, "steady")["utilisation"] == 0.5
    assert row_of(47, "steady")["saturates_at"] is None
    assert row_of(0, "nobody")["utilisation"] is None
    assert row_of(0, "nobody")["queued_max"] == 5
    assert row_of(48, "moved")["utilisation"] == 0.5
    assert row_of(48, "moved")["trend_per_day"] is None  # one hour is no trend
    assert row_of(0, "echo", "other")["credit"] == 4


@pytest.mark.spark
def test_clients_are_told_by_their_own_word_or_by_what_nodes_saw(tmp_path: Path) -> None:
    from bstar_pipeline import sketch
    from bstar_pipeline.gold.clients import clients

    node, scribe = Scribe(), Scribe("shop", boot="e" * 32)
    start = us(MONDAY)
    of: list[records.Base] = []
    seen: dict[str, Any] = {"client": "shop", "total_us": 1000}
    for number in range(100):
        # The shop's own journal says more than the node's, and is not added to it.
        of += [
            node.request(start + number, number=number, is_repeated=number < 50, **seen),
            scribe(
                records.Call,
                start + number,
                client="shop",
                number=number,
                service="echo",
                epoch=1,
                outcome="timeout" if number == 0 else "answered",
                total_us=2000,
                bytes_in=2,
                bytes_out=3,
                attempts=3 if number < 5 else 1,
                busy=number % 2,
            ),
        ]
    of += [node.request(start + n, client="mdp-01", number=n, is_repeated=n < 10) for n in range(10)]
    of += [node.request(start + 1, client="mdp-01", number=1, outcome="late")]
    of += [node.request(start, client="flood", number=n, weight=10.0, outcome="failed") for n in range(100)]
    of += [node.request(us(MONDAY + timedelta(days=1)), client="shop", outcome="expired")]
    rows = clients(stored_of(of, tmp_path / "records")).collected()
    found = {(row["client"], str(row["day"])): row for row in rows}
    assert len(rows) == 4
    shop = found["shop", "2026-05-04"]
    assert shop["node"] == "shop"
    assert [shop[name] for name in ("requests", "answered", "failed", "not_answered")] == [100, 99, 0, 1]
    assert [shop[name] for name in ("retries", "busy", "bytes_in", "bytes_out")] == [10, 50, 200, 300]
    assert shop["total_p99_us"] == pytest.approx(sketch.value_of(sketch.bucket_of(2000)))
    assert shop["share"] == 100 / 1110
    assert shop["peak_per_s"] == 100 / 60
    assert (shop["is_flooding"], shop["is_retrying"]) == (False, True)
    plain = found["mdp-01", "2026-05-04"]
    assert [plain[name] for name in ("node", "requests", "retries", "busy")] == [None, 10, 10, None]
    flood = found["flood", "2026-05-04"]
    assert [flood[name] for name in ("requests", "failed", "retries")] == [1000, 1000, 0]
    assert (flood["is_flooding"], flood["is_retrying"]) == (True, False)
    later = found["shop", "2026-05-05"]
    assert [later[name] for name in ("requests", "not_answered", "share")] == [1, 1, 1]
    assert (later["total_p99_us"], later["is_flooding"]) == (None, False)
