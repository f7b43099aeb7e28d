"""Real broker processes for tests: `bstar serve` with a configuration file of its own, on ports of its own.

A broker is started and awaited by an event: it answers `mmi.state`. Its ports are held by sockets of ours
that are bound and never listen, so no other process is given them, not even while the broker is down between
a kill and a restart. What it writes goes to a file that is shown when something expected does not come. Only
processes started here are ended here, each by its own id.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.rawpeers import CLIENT_01, EMPTY, NothingArrivedError, Peers

START_S = 60.0
STOP_S = 60.0
COMMAND = (sys.executable, "-m", "bstar_cli")


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


class Ports:
    """Ports on the loopback interface that stay ours. Close it when they are no longer needed."""

    def __init__(self, count: int) -> None:
        self._holders = [self._hold() for _ in range(count)]
        self.numbers = [int(holder.getsockname()[1]) for holder in self._holders]

    @staticmethod
    def _hold() -> socket.socket:
        holder = socket.socket()
        # Whoever sets this option as well may bind the port as long as nobody listens, and this socket never
        # does.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return holder

    def close(self) -> None:
        """Give the ports back."""
        for holder in self._holders:
            holder.close()


class Broker:
    """One broker process. It may be ended and started again on the same ports and state directory."""

    def __init__(
        self,
        directory: Path,
        *,
        role: str,
        clients: int,
        state: int,
        peer_state: int,
        http: int,
        profile: Profile = STEADY,
        command: tuple[str, ...] | None = None,
        pair: str = "tests",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.profile = profile
        self.role = role
        self.endpoint = f"tcp://127.0.0.1:{clients}"
        self.state_endpoint = f"tcp://127.0.0.1:{state}"
        self.peer_state_endpoint = f"tcp://127.0.0.1:{peer_state}"
        self.http_url = f"http://127.0.0.1:{http}"
        self.log_path = directory / f"{role}.log"
        self.config_path = directory / f"{role}.yaml"
        self._command = (*(command or COMMAND), "serve", "--config", str(self.config_path))
        self._process: subprocess.Popen[bytes] | None = None
        settings: dict[str, Any] = {
            "pair": pair,
            "role": role,
            "endpoints": {
                "clients": self.endpoint,
                "state": self.state_endpoint,
                "peer_state": self.peer_state_endpoint,
            },
            "state_dir": str(directory / f"{role}-state"),
            "timing": asdict(profile.timing),
            "limits": dict(profile.limits),
            "http": {"bind": f"127.0.0.1:{http}"},
            "log": {"level": "info", "format": "json"},
        }
        # JSON is YAML, so the file needs no writer of its own.
        self.config_path.write_text(json.dumps(settings, indent=2))

    @property
    def timing(self) -> Timing:
        """The timing this broker was given."""
        return self.profile.timing

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        assert not self.is_running()
        # The file alone decides; what the user's shell sets for brokers is not for these.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        with self.peers() as peers:
            # Sent once: the socket keeps it until the broker listens. mmi.state is answered in every state.
            asker = peers.client01()
            asker.request(b"mmi.state", EMPTY)
            until = time.monotonic() + START_S
            while asker.try_recv(0.1) is None:
                if not self.is_running() or time.monotonic() > until:
                    raise NothingArrivedError(f"the broker does not answer\n{self.trouble()}")

    def close(self) -> None:
        """End the process whatever state it is in. Twice is fine."""
        if self._process is not None and self._process.poll() is None:
            self.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def terminate(self) -> int:
        """SIGTERM, and wait for the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def wait_exit(self) -> int:
        """Wait until the process ends by itself."""
        assert self._process is not None
        return self._process.wait(STOP_S)

    def send_signal(self, number: int) -> None:
        """Send any signal to this process and to no other."""
        assert self._process is not None
        self._process.send_signal(number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process with SIGSTOP for the length of the block."""
        self.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send_signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def rss_bytes(self) -> int:
        """How much memory the process has resident, as the kernel says."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not say how much memory the process has")

    def trouble(self) -> str:
        """What there is to say about this broker when something goes wrong."""
        code = self._process.poll() if self._process is not None else None
        how = "runs" if self.is_running() else f"ended with {code}"
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        said = self._last_words() if self.is_running() else ""
        return "\n".join([f"the {self.role} broker {how} {said}; the end of {self.log_path}:", *lines[-40:]])

    def _last_words(self) -> str:
        """What the broker itself says of its state, if it still says anything."""
        with self.peers() as peers:
            asker = peers.client01()
            asker.request(b"mmi.state", EMPTY)
            frames = asker.try_recv(1.0)
        return "and does not answer" if frames is None else f"and says {frames[-1].decode()}"

    def peers(self) -> Peers:
        """Make the peers of one test against this broker."""
        return Peers(
            self.endpoint, heartbeat_interval_s=self.timing.mdp_heartbeat_interval_s, on_trouble=self.trouble
        )

    def state(self) -> dict[str, Any]:
        """Ask for `mmi.state`."""
        with self.peers() as peers:
            code, document = peers.client01().mmi(b"mmi.state", EMPTY)
        assert code == b"200", code
        status: dict[str, Any] = json.loads(document)
        return status

    def activate(self) -> None:
        """Vote until the broker is active: only a request for work can make a node without a peer serve."""
        with self.peers() as peers:
            voter, worker = peers.client01(), peers.worker01(b"votes")
            until = time.monotonic() + START_S
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


@contextmanager
def lone_broker(
    directory: Path,
    profile: Profile = STEADY,
    *,
    role: str = "primary",
    activate: bool = True,
    command: tuple[str, ...] | None = None,
) -> Iterator[Broker]:
    """Run one broker whose peer never comes."""
    ports = Ports(4)
    try:
        clients, state, peer_state, http = ports.numbers
        broker = Broker(
            directory,
            role=role,
            clients=clients,
            state=state,
            peer_state=peer_state,
            http=http,
            profile=profile,
            command=command,
        )
        with broker:
            if activate:
                broker.activate()
            yield broker
    finally:
        ports.close()


@contextmanager
def broker_pair(
    directory: Path, profile: Profile = STEADY, *, pair: str = "tests"
) -> Iterator[tuple[Broker, Broker]]:
    """Run a primary and a backup; when the block begins the primary is active."""
    ports = Ports(6)
    try:
        a, a_state, a_http, b, b_state, b_http = ports.numbers
        primary = Broker(
            directory,
            role="primary",
            clients=a,
            state=a_state,
            peer_state=b_state,
            http=a_http,
            profile=profile,
            pair=pair,
        )
        backup = Broker(
            directory,
            role="backup",
            clients=b,
            state=b_state,
            peer_state=a_state,
            http=b_http,
            profile=profile,
            pair=pair,
        )
        with primary, backup:
            primary.activate()
            yield primary, backup
    finally:
        ports.close()


def wait_until(happened: Callable[[], bool], what: str, *, timeout_s: float = START_S) -> None:
    """Wait for something that is observed by asking."""
    until = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > until:
            raise NothingArrivedError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)
