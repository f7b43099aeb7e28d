"""One Binary Star machine, input by input: scripts in tests/golden/machine.txt that people have read.

``support.machine_stage`` explains the words, ``support.golden`` how a script is changed. test_star_machine.py
has tables and properties of the machine, test_star_conversations.py what two nodes say to each other.
"""

from __future__ import annotations

import pytest

from support.golden import Scripts
from support.machine_stage import MachineStage

SCRIPTS = Scripts("machine.txt")


@pytest.mark.parametrize("title", SCRIPTS.params())
def test_the_machine_does_as_was_read(title: str) -> None:
    SCRIPTS.play(title, MachineStage())
