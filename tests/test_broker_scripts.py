"""The broker core, message by message: scripts in tests/golden/broker.txt that people have read.

``support.broker_stage`` explains the words, ``support.golden`` how a script is changed. The properties of the
core are in test_broker_core.py and test_broker_batches.py.
"""

from __future__ import annotations

import pytest

from support.broker_stage import BrokerStage
from support.golden import Scripts

SCRIPTS = Scripts("broker.txt")


@pytest.mark.parametrize("title", SCRIPTS.params())
def test_the_broker_does_as_was_read(title: str) -> None:
    SCRIPTS.play(title, BrokerStage())
