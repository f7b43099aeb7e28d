"""Brokers that many tests share: each kind of setting is one process for the whole run.

A test takes `peers` (or `mortal_peers` …) and a `service` of its own, so tests do not meet. After every test
its broker must still run: nothing that a test sends may end it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial

import pytest

from support.brokers import FORGETFUL, MORTAL, STEADY, TIGHT, Broker, Profile, lone_broker
from support.rawpeers import EMPTY, Peer, Peers

_numbers = itertools.count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> bytes:
    """A service name that no other test uses."""
    return f"{request.node.name[:60]}-{next(_numbers)}".encode()


def _run(factory: pytest.TempPathFactory, name: str, profile: Profile) -> Iterator[Broker]:
    with lone_broker(factory.mktemp(name), profile) as broker:
        yield broker


def _lend(broker: Broker) -> Iterator[Broker]:
    """Lend the broker to one test. One that an earlier test ended (and so failed) is started anew."""
    if not broker.is_running:
        broker.start()
        broker.activate()
    yield broker
    assert broker.is_running, broker.trouble()


@pytest.fixture(scope="session")
def _steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from _run(tmp_path_factory, "steady", STEADY)


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from _run(tmp_path_factory, "mortal", MORTAL)


@pytest.fixture(scope="session")
def _forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from _run(tmp_path_factory, "forgetful", FORGETFUL)


@pytest.fixture(scope="session")
def _tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from _run(tmp_path_factory, "tight", TIGHT)


@pytest.fixture
def broker(_steady: Broker) -> Iterator[Broker]:
    """A broker whose workers live long."""
    yield from _lend(_steady)


@pytest.fixture
def mortal(_mortal: Broker) -> Iterator[Broker]:
    """A broker that soon gives a silent worker up."""
    yield from _lend(_mortal)


@pytest.fixture
def forgetful(_forgetful: Broker) -> Iterator[Broker]:
    """A broker that soon forgets requests and services."""
    yield from _lend(_forgetful)


@pytest.fixture
def tight(_tight: Broker) -> Iterator[Broker]:
    """A broker with small limits: no workers, and room for a test's services."""
    for tight in _lend(_tight):
        with tight.peers() as peers:
            peers.wait_until(partial(_has_room, tight, peers.client01()), "the tight broker has room")
        yield tight


def _has_room(tight: Broker, asker: Peer) -> bool:
    """Whether what earlier tests left does not get into the way of the next."""
    state = json.loads(asker.mmi(b"mmi.state", EMPTY)[1])["broker"]
    is_roomy: bool = (
        state["workers"] == state["queued"] == 0
        and len(state["services"]) <= tight.profile.limits["services_max"] // 2
    )
    return is_roomy


@pytest.fixture
def peers(broker: Broker) -> Iterator[Peers]:
    """Peers of the broker whose workers live long."""
    with broker.peers() as peers:
        yield peers


@pytest.fixture
def mortal_peers(mortal: Broker) -> Iterator[Peers]:
    """Peers of the broker that soon gives a silent worker up."""
    with mortal.peers() as peers:
        yield peers


@pytest.fixture
def forgetful_peers(forgetful: Broker) -> Iterator[Peers]:
    """Peers of the broker that soon forgets."""
    with forgetful.peers() as peers:
        yield peers


@pytest.fixture
def tight_peers(tight: Broker) -> Iterator[Peers]:
    """Peers of the broker with small limits; their workers leave in good order."""
    with tight.peers() as peers:
        yield peers
        peers.dismiss_workers()
