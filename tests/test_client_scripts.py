"""A client's session between two nodes: scripts in tests/golden/client.txt that people have read.

``support.client_stage`` explains the words, ``support.golden`` how a script is changed. test_client_core.py
has the properties of the session.
"""

from __future__ import annotations

import pytest

from support.client_stage import ClientStage
from support.golden import Scripts

SCRIPTS = Scripts("client.txt")


@pytest.mark.parametrize("title", SCRIPTS.params())
def test_the_session_does_as_was_read(title: str) -> None:
    SCRIPTS.play(title, ClientStage())
