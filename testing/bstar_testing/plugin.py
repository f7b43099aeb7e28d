"""Fixtures for pytest. A conftest.py asks for them: ``pytest_plugins = ["bstar_testing.plugin"]``.

``fake_pair`` is a pair in memory with the handlers of ``fake_services``, ``pair`` a real one with the options
of ``pair_options``; a test module or a conftest.py overrides these two. Each is new for each test.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import bstar_testing
from bstar_client import HAClient
from bstar_testing import FakePair, Pair


@pytest.fixture
def fake_services() -> Mapping[str, Callable[..., Any]]:
    """The handlers of ``fake_pair`` by their services: none, unless it is overridden."""
    return {}


@pytest.fixture
def fake_pair(fake_services: Mapping[str, Callable[..., Any]]) -> Iterator[FakePair]:
    """A pair in memory, for a test that is no coroutine: ``fake_pair.client()``. A coroutine enters a pair
    of its own: ``async with fake(…) as client``.
    """
    made = bstar_testing.fake(fake_services)
    with made:
        yield made


@pytest.fixture
def pair_options() -> Mapping[str, Any]:
    """The options of ``pair``: those of ``bstar_testing.pair``, one echo worker unless it is overridden."""
    return {}


@pytest.fixture
def pair(pair_options: Mapping[str, Any]) -> Iterator[Pair]:
    """A real pair: two nodes and their workers as processes."""
    with bstar_testing.pair(**pair_options) as made:
        yield made


@pytest.fixture
def pair_client(pair: Pair) -> HAClient:
    """A client of the real pair."""
    return pair.client()
