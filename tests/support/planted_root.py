"""The tables of everything that tests plant: one root, made once by one run of the local engine.

Its journals are those of three simulated pairs, of the scenes, of all pairs that test modules write by hand
(``planted()`` of each), and of a directory with all that can be wrong with one. Tests read its Parquet with
DuckDB; test_pipeline_incidents.py has Spark make the same tables of most of it. The files whose tests ask for
it share a process: support/schedule.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import committed, odd_journals
from support.journals import write

if TYPE_CHECKING:
    from bstar_pipeline.job import Summary
    from sim.journals import Truth
    from support.plants import Planted

_PLANTING = ("planted", "durables", "outages", "clocks", "silver")


@dataclass(frozen=True, slots=True)
class PlantedRoot:
    """``journals``: what the run was given beside the ``scenes``. Of the simulated pairs: the truth, by pair,
    and their folders.
    """

    root: Path
    journals: list[str]
    odd: Path
    scenes: Path
    simulated: dict[str, Path]
    truths: dict[str, Truth]
    broken: list[Planted]
    summary: Summary
    progress: list[str]
    _rows: dict[str, list[Any]] = field(default_factory=dict)

    def rows(self, name: str, *pairs: str) -> list[Any]:
        """The rows of a table, of these pairs or of all, with a field for each column."""
        if name not in self._rows:
            self._rows[name] = committed.rows(self.root, name)
        return [row for row in self._rows[name] if not pairs or row.pair in pairs]


@pytest.fixture(scope="session")
def planted_root(tmp_path_factory: pytest.TempPathFactory) -> PlantedRoot:
    """Made when the first test asks for it."""
    from bstar_pipeline import job
    from sim import journals as simulated
    from test_pipeline_incidents import SCENARIOS, break_everybodys_promises
    from test_pipeline_truth import plant

    folders, truths = {}, {}
    for scenario in SCENARIOS:
        folder = tmp_path_factory.mktemp(scenario.pair)
        truths[scenario.pair] = simulated.write(scenario, folder)
        folders[scenario.pair] = folder / simulated.JOURNAL
    broken = break_everybodys_promises(folders["everybody"])
    odd, by_hand = tmp_path_factory.mktemp("odd"), tmp_path_factory.mktemp("by-hand")
    odd_journals.plant(odd)
    for module in _PLANTING:
        for number, run in enumerate(import_module(f"test_pipeline_{module}").planted()):
            # Two runs may have one name: a snapshot that was restored.
            write(by_hand / f"{module}-{number}" / run.name(), run.lines())
    scenes = plant(tmp_path_factory.mktemp("scenes"))
    # Some of the odd files are named twice.
    journals = [*map(str, folders.values()), str(odd), f"{odd}/*.open", str(by_hand)]
    root, progress = tmp_path_factory.mktemp("planted") / "tables", list[str]()
    summary = job.run(None, [*journals, str(scenes)], str(root), progress=progress.append)
    return PlantedRoot(root, journals, odd, scenes, folders, truths, broken, summary, progress)
