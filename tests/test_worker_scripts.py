"""A worker's core between its nodes: scripts in tests/golden/worker.txt that people have read.

``support.worker_stage`` explains the words, ``support.golden`` how a script is changed. test_worker_core.py
has the properties of the core.
"""

from __future__ import annotations

import pytest

from support.golden import Scripts
from support.worker_stage import WorkerStage

SCRIPTS = Scripts("worker.txt")


@pytest.mark.parametrize("title", SCRIPTS.params())
def test_the_worker_does_as_was_read(title: str) -> None:
    SCRIPTS.play(title, WorkerStage())
