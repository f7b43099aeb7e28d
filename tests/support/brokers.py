"""Broker processes of the tests: how they are configured, and the plain MDP peers that speak to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bstar.settings import RoleName
from bstar_testing.nodes import COMMAND, Node
from bstar_testing.pairs import Pair
from bstar_testing.processes import LIMIT_S
from support.rawpeers import CLIENT_01, EMPTY, NothingArrivedError, Peers


@dataclass(frozen=True)
class Timing:
    """The timing section of a configuration: quick enough for tests, slow enough for a busy machine."""

    heartbeat_interval_s: float = 0.1
    failover_timeout_s: float = 1.0
    worker_heartbeat_interval_s: float = 0.2
    worker_liveness: int = 10
    # "Nothing comes" is said after two of these, so a short one makes the whole suite quick.
    mdp_heartbeat_interval_s: float = 0.1
    mdp_liveness: int = 20
    # As short as the expiry, so that a silent busy worker dies as soon as an idle one.
    busy_timeout_s: float = 2.0
    request_ttl_s: float = 60.0
    service_ttl_s: float = 60.0
    drain_timeout_s: float = 1.0

    @property
    def expiry_s(self) -> float:
        """How long an MDP worker may be silent before it counts as gone."""
        return self.mdp_heartbeat_interval_s * self.mdp_liveness


@dataclass(frozen=True)
class Profile:
    """How one broker of the tests is set up."""

    timing: Timing = field(default_factory=Timing)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, object]:
        """The keys of the configuration, by their paths."""
        timing = {f"timing.{name}": value for name, value in asdict(self.timing).items()}
        return timing | {f"limits.{name}": value for name, value in self.limits.items()}


# Workers live long: for everything that is not about their death.
STEADY = Profile()
# Workers die soon: for expiry and what follows from it.
MORTAL = Profile(
    Timing(failover_timeout_s=0.8, mdp_heartbeat_interval_s=0.25, mdp_liveness=4, busy_timeout_s=1.0)
)
# Requests and services are forgotten soon.
FORGETFUL = Profile(
    Timing(
        failover_timeout_s=0.6,
        worker_heartbeat_interval_s=0.2,
        worker_liveness=4,
        mdp_heartbeat_interval_s=0.2,
        mdp_liveness=4,
        busy_timeout_s=0.8,
        request_ttl_s=1.0,
        service_ttl_s=1.0,
    )
)
# Every limit is within reach of a test.
TIGHT = Profile(
    # What a test leaves behind must soon make room for the next one.
    Timing(
        failover_timeout_s=0.8,
        worker_heartbeat_interval_s=0.25,
        worker_liveness=4,
        mdp_heartbeat_interval_s=0.1,
        mdp_liveness=10,
        busy_timeout_s=1.0,
        request_ttl_s=2.0,
        service_ttl_s=1.2,
    ),
    limits={
        "services_max": 12,
        "workers_max": 6,
        "queue_length_max": 3,
        "queue_bytes_max": 40_000,
        "requests_per_client_max": 5,
        "deliveries_max": 2,
        "message_bytes_max": 30_000,
        "partials_buffer_bytes_max": 2_000,
    },
)


class Broker(Node):
    """One broker process, and what plain MDP peers do with it."""

    profile: Profile

    @property
    def timing(self) -> Timing:
        """The timing this broker was given."""
        return self.profile.timing

    def peers(self) -> Peers:
        """Make the peers of one test against this broker."""
        return Peers(
            self.endpoint, heartbeat_interval_s=self.timing.mdp_heartbeat_interval_s, on_trouble=self.trouble
        )

    def wait_for_silence_of_peer(self) -> None:
        """Wait until the node, whatever it is, takes its peer for dead."""
        self.wait_for("without its peer", lambda state: not state.pair.is_peer_fresh)

    def activate(self) -> None:
        """Vote until the broker is active: only a request for work can make a node without a peer serve."""
        with self.peers() as peers:
            voter, worker = peers.client01(), peers.worker01(b"votes")
            until = time.monotonic() + LIMIT_S
            while time.monotonic() < until:
                voter.request(b"votes", b"vote")
                asked_again_at = time.monotonic() + self.timing.heartbeat_interval_s
                while (left := asked_again_at - time.monotonic()) > 0:
                    # That work is sent to the worker says that the broker serves.
                    frames = worker.try_recv(left)
                    if frames is not None and frames[:3] == worker.command(worker.REQUEST):
                        worker.finish(worker.as_job(frames), b"counted")
                        assert voter.recv() == [EMPTY, CLIENT_01, b"votes", b"counted"]
                        worker.disconnect()
                        # Once this is answered the broker has read that, too. A second vote may come before.
                        worker.send(EMPTY, CLIENT_01, b"mmi.service", b"votes")
                        while worker.recv()[:2] != [EMPTY, CLIENT_01]:
                            pass
                        return
        raise NothingArrivedError(f"the broker does not become active\n{self.trouble()}")


class BrokerPair(Pair):
    """A pair of such brokers. Nothing runs until it is started."""

    primary: Broker
    backup: Broker
    node_type = Broker

    def __init__(
        self,
        folder: Path,
        profile: Profile = STEADY,
        *,
        name: str = "tests",
        settings: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, name=name, settings={**profile.settings, **(settings or {})}, **options)
        self.primary.profile = self.backup.profile = profile

    @property
    def nodes(self) -> tuple[Broker, Broker]:
        """Both, the primary first."""
        return self.primary, self.backup


@contextmanager
def lone_broker(
    folder: Path,
    profile: Profile = STEADY,
    *,
    role: RoleName = "primary",
    activate: bool = True,
    command: tuple[str, ...] = COMMAND,
) -> Iterator[Broker]:
    """Run one broker whose peer never comes."""
    with BrokerPair(folder, profile, commands={role: command}) as pair:
        broker = pair.primary if role == "primary" else pair.backup
        broker.start()
        if activate:
            broker.activate()
        yield broker


@contextmanager
def broker_pair(
    folder: Path, profile: Profile = STEADY, *, pair: str = "tests"
) -> Iterator[tuple[Broker, Broker]]:
    """Run a primary and a backup; when the block begins the primary is active."""
    with BrokerPair(folder, profile, name=pair) as made:
        made.start()
        yield made.nodes
