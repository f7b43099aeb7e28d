"""How the failover benchmark comes to its figures, on histories that are written by hand."""

from __future__ import annotations

import re

import msgspec
import pytest

from chaos.history import Begin, Failed, Invoke, Line, Ok
from failover import picture, published, report
from failover.figures import Losses, Trial, count_losses, longest_gap, percentile
from failover.lanes import Campaign
from failover.overload import Overload


def invoke(number: int, at: float) -> Invoke:
    return Invoke(at=at, id=number, service="work", body=f"b{number}", is_idempotent=True, deadline_s=20.0)


def ok(number: int, at: float) -> Ok:
    return Ok(at=at, id=number, reply="", epoch=1, endpoint="", attempts=1)


def failed(number: int, at: float) -> Failed:
    return Failed(at=at, id=number, error="BusyError", may_have_executed=False, text="")


def begin(number: int, at: float) -> Begin:
    return Begin(at=at, number=0, identity="", epoch=1, endpoint="", body=f"b{number}", is_redelivered=False)


def trial(fault: str, at: float, outage_s: float = 0.1) -> Trial:
    return Trial("lan", fault, at, outage_s)


# --- outages ----------------------------------------------------------------------------------------------


def test_the_outage_begins_with_the_last_reply_before_the_fault() -> None:
    assert longest_gap([1.0, 2.0, 2.25, 2.5], fault_at=1.5, until=3.0) == 1.0


def test_the_longest_gap_counts_wherever_it_is_until_the_trial_is_over() -> None:
    replies = [1.0, 1.25, 1.5, 2.5, 2.75, 9.0]
    assert longest_gap(replies, fault_at=1.1, until=3.0) == 1.0


def test_what_was_before_the_fault_or_comes_after_the_trial_does_not_count() -> None:
    assert longest_gap([0.0, 5.0, 5.5, 6.0, 60.0], fault_at=5.25, until=7.0) == 0.5


def test_a_trial_without_a_reply_after_the_fault_has_no_figure() -> None:
    with pytest.raises(AssertionError, match="no reply after"):
        longest_gap([1.0, 9.0], fault_at=2.0, until=3.0)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [0.03, 0.01, 0.02]
    assert (percentile(values, 50), percentile(values, 99)) == (0.02, 0.03)
    hundred = [float(value) for value in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99)) == (50.0, 99.0)
    assert percentile([7.0], 50) == 7.0


# --- losses -----------------------------------------------------------------------------------------------


def test_a_call_belongs_to_the_trial_in_which_it_ended() -> None:
    trials = [trial("kill", 10.0), trial("stop", 20.0)]
    client: list[Line] = [
        *(invoke(1, 1.0), ok(1, 2.0)),  # before the first fault
        *(invoke(2, 9.0), ok(2, 11.0), invoke(3, 12.0), failed(3, 13.0)),
        *(invoke(4, 19.0), failed(4, 21.0), invoke(5, 22.0), ok(5, 23.0)),
    ]
    losses = count_losses(trials, client, [])
    assert losses == {"kill": Losses(calls=2, failed=1), "stop": Losses(calls=2, failed=1)}


def test_a_call_that_never_ended_is_lost() -> None:
    losses = count_losses([trial("kill", 10.0)], [invoke(1, 11.0), invoke(2, 12.0), ok(2, 13.0)], [])
    assert losses == {"kill": Losses(calls=1, lost=1)}


def test_every_beginning_beyond_the_first_counts_whichever_worker_it_is() -> None:
    one: list[Line] = [begin(1, 9.0), begin(2, 11.0)]
    other: list[Line] = [begin(1, 12.0), begin(1, 13.0)]
    losses = count_losses([trial("kill", 10.0)], [], [one, other])
    assert losses["kill"].executed_again == 2


def test_trials_of_one_kind_are_counted_together() -> None:
    trials = [trial("kill", 10.0), trial("kill", 20.0)]
    losses = count_losses(trials, [invoke(1, 11.0), ok(1, 12.0), invoke(2, 21.0), ok(2, 22.0)], [])
    assert losses == {"kill": Losses(calls=2)}


# --- the report -------------------------------------------------------------------------------------------

CALM = Overload(
    profile="lan",
    padding_bytes=0,
    seconds=600.0,
    busy=4,
    role_changes=0,
    lag_max_s=0.05,
    stalls=0,
    calls=60_000,
    failed=0,
    lost=0,
    longest_gap_s=0.07,
    timeout_max_s=0.3,
    load_average=6.0,
)


def campaign(outage_s: float, **losses: int) -> Campaign:
    return Campaign(trials=[trial("kill", 1.0, outage_s)], losses={("lan", "kill"): Losses(**losses)})


def missed(found: Campaign, overload: Overload | None = CALM) -> list[str]:
    return list(report.misses(found, overload, ["lan"], ["kill"]))


def written(found: Campaign, overload: Overload | None = CALM) -> str:
    return report.table(
        found, overload, profiles=["lan"], faults=["kill"], circumstances=["here"], troubles=[]
    )


def test_a_run_that_met_its_targets_says_so() -> None:
    found = campaign(0.02, calls=100, executed_again=3)
    assert missed(found) == []
    text = written(found)
    assert "| lan | kill -9 | 1 | 20 ms | 20 ms | 20 ms | < 300 ms | 100 | 0 | 0 | 3 |" in text
    assert "**0 false failovers**" in " ".join(text.split())
    assert text.endswith("Every target was met.")


def test_every_kind_of_miss_is_told() -> None:
    assert missed(campaign(0.3)) == ["lan, kill -9: p99 is 300 ms, aimed at less than 300 ms"]
    assert missed(campaign(0.02, failed=1, lost=2)) == [
        "lan, kill -9: 1 calls failed, 2 were lost; aimed at none"
    ]
    unrecovered = campaign(0.02)
    unrecovered.unrecovered["lan", "kill"] = 2
    assert missed(unrecovered) == ["lan, kill -9: 2 trial(s) did not come to their end"]
    moved = Overload(**{name: getattr(CALM, name) for name in CALM.__struct_fields__} | {"role_changes": 2})
    assert missed(campaign(0.02), moved) == ["overload: 2 changes of state; aimed at none"]


def test_what_could_not_be_measured_is_missed_and_loud() -> None:
    found = Campaign(missing={"kill": "it needs root"})
    assert missed(found) == ["lan, kill -9: not measured: it needs root"]
    assert "**NOT MEASURED: it needs root**" in written(found)


def test_only_the_part_between_the_markers_is_replaced() -> None:
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.replace_between_markers(page, "new") == (
        f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    )
    with pytest.raises(ValueError, match="no part between"):
        report.replace_between_markers("no markers", "new")


# --- the picture ------------------------------------------------------------------------------------------


def test_the_picture_is_what_its_data_says() -> None:
    """docs/failover-kill.svg; ``python -m failover.picture`` draws it from the committed data."""
    data = msgspec.json.decode(picture.DATA.read_bytes(), type=picture.Measured)
    assert picture.PICTURE.read_text("utf-8") == picture.draw(data)


def test_the_readme_quotes_the_pattern_as_measured() -> None:
    data = msgspec.json.decode(picture.DATA.read_bytes(), type=picture.Measured)
    outage = f"{percentile(data.lanes[1].outages_s, 50):.2f} s [b]"
    assert outage in (picture.ROOT / "README.md").read_text("utf-8")


def test_the_picture_has_a_line_for_each_reply_and_marks_the_outage() -> None:
    lane = picture.Lane("one", outages_s=[1.5], replies_s=[-0.25, 0.0, 1.5, 1.75])
    text = picture.draw(picture.Measured("make it", "today", "here", 2.0, [lane]))
    replies = re.search(r'<path d="([^"]*)" class="reply"/>', text)
    assert replies is not None
    assert len(replies[1].split("M")) - 1 == 4
    assert "without a reply for 1.50 s (median of 1, longest 1.50 s)" in text
    gap = re.search(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', text)
    assert gap is not None
    assert float(gap[2]) == pytest.approx(1.5 / 4.5 * 820, abs=0.2)


def test_the_published_pattern_in_the_benchmark_is_the_table_of_the_specification() -> None:
    """BST-S-03, the rows that change a state without ending the server."""
    assert published.HEARD == {
        (b"1", b"2"): b"3",
        (b"1", b"3"): b"4",
        (b"2", b"3"): b"4",
        (b"4", b"1"): b"3",
        (b"4", b"2"): b"3",
    }
