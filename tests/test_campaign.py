"""Runs over many seeds: each seed is played once, whatever ends a call, and a later one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import campaign
from sim.campaign import Campaign, Result

pytestmark = pytest.mark.loopback


def _play(seed: int) -> Result:
    return Result(seed, "(a) broken" if seed == 13 else "", 900.0, {"faults": 2, "calls": seed})


def _make(hours: float, key: str = "key") -> Campaign:
    return Campaign(_play, first=10, hours=hours, key=key, processes=1, repeat=lambda seed: f"make {seed}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(campaign, "_FOLDER", tmp_path)
    return tmp_path


class _KilledError(Exception):
    """Stands for SIGKILL: nothing that the run would still do is done."""


@pytest.mark.parametrize("ending", [KeyboardInterrupt, _KilledError])
def test_a_run_goes_on_where_it_was_ended(
    ending: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[int] = []
    take = Campaign._take

    def take_some(self: Campaign, result: Result) -> None:
        if len(played) == 5:
            raise ending
        played.append(result.seed)
        take(self, result)

    monkeypatch.setattr(campaign, "_SAVE_S", 0.0)
    first = _make(2.5)
    with monkeypatch.context() as patch:
        patch.setattr(Campaign, "_take", take_some)
        if ending is KeyboardInterrupt:
            assert not first.run()
        else:
            with pytest.raises(_KilledError):
                first.run()
    second = _make(2.5)
    kept = second.state.runs
    assert kept == 5 if ending is KeyboardInterrupt else 0 < kept <= 5
    assert second.run()
    assert second.hours >= 2.5
    state = second.state
    assert state.done == set()
    assert state.next_seed == 10 + state.runs
    assert state.counts == {"faults": 2 * state.runs, "calls": sum(range(10, state.next_seed))}
    assert state.violations == [(13, "(a) broken")]
    said = capsys.readouterr().out
    assert "goes on after" in said
    assert "make 13" in said


def test_a_run_that_is_over_is_not_played_again_and_may_get_more_hours() -> None:
    assert _make(1.0).run()
    again = _make(1.0)
    runs = again.state.runs
    assert again.run()
    assert again.state.runs == runs >= 4
    more = _make(3.0)
    assert more.run()
    assert more.state.runs >= 12


def test_other_options_and_other_sources_are_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {_make(1.0).path, _make(1.0, "other").path}
    monkeypatch.setattr(campaign, "_SOURCES", campaign._SOURCES[:1])
    paths.add(_make(1.0).path)
    assert len(paths) == 3


def test_a_run_of_so_many_seeds_is_not_stored(folder: Path) -> None:
    run = Campaign(_play, first=1, runs=3, processes=1, repeat=str)
    assert run.run()
    assert run.state.next_seed == 4
    assert list(folder.iterdir()) == []
