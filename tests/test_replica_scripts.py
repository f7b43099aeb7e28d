"""Replication of the store and its in-sync set, step by step: scripts in tests/golden/replica.txt.

``support.replica_stage`` explains the words, ``support.golden`` how a script is changed.
"""

from __future__ import annotations

import pytest

from support.golden import Scripts
from support.replica_stage import ReplicaStage

SCRIPTS = Scripts("replica.txt")


@pytest.mark.parametrize("title", SCRIPTS.params())
def test_the_replicas_do_as_was_read(title: str) -> None:
    SCRIPTS.play(title, ReplicaStage())
