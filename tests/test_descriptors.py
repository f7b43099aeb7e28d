"""A process that runs out of descriptors holds new connections off, says so once, and goes on serving."""

from __future__ import annotations

import logging
import resource
import socket as tcp
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from bstar import Reactor
from bstar.net.descriptors import RESERVE
from bstar.net.listener import Listener
from bstar_testing import LoopbackHost
from bstar_testing.nodes import COMMAND
from support.brokers import Broker, BrokerPair, Profile, Timing, lone_broker
from support.rawpeers import ZmtpPeer
from support.waiting import LIMIT_S, Socket

# The worker is silent while the crowd shakes hands.
PATIENT = Profile(Timing(mdp_heartbeat_interval_s=0.4, mdp_liveness=100, busy_timeout_s=40.0))

pytestmark = pytest.mark.loopback

DESCRIPTORS = 200
# Both limits: what `bstar serve` may raise by itself is no shortage.
LIMITED = ("bash", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "bash", *COMMAND)
HANDSHAKE = ZmtpPeer.greeting() + ZmtpPeer.ready_command()


@contextmanager
def crowd(endpoint: str, count: int) -> Iterator[list[tcp.socket]]:
    """So many peers that connect at once and stay; each shakes hands as soon as it is let in."""
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    with ExitStack() as stack:
        peers = [stack.enter_context(tcp.socket()) for _ in range(count)]
        for peer in peers:
            peer.setblocking(False)
            peer.connect_ex((host, int(port)))
        yield peers


def shake_hands(peers: list[tcp.socket]) -> None:
    """Those that are not let in yet cannot."""
    for peer in peers:
        with suppress(OSError):
            peer.send(HANDSHAKE)


def let_in(peers: list[tcp.socket]) -> int:
    """How many of them the broker has greeted."""
    greeted = 0
    for peer in peers:
        with suppress(OSError):
            greeted += bool(peer.recv(64, tcp.MSG_PEEK))
    return greeted


def log_of(broker: Broker) -> str:
    return broker.log_path.read_text()


def cpu_s(broker: Broker) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / 100


def metric(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    return float(line.rpartition(" ")[2])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel cannot hold connections off elsewhere")
def test_a_broker_without_descriptors_serves_whom_it_has_and_lets_in_who_waits(tmp_path: Path) -> None:
    with lone_broker(tmp_path, PATIENT, command=LIMITED) as broker, broker.peers() as peers:
        worker, client = peers.worker01(b"echo"), peers.client01()
        with crowd(broker.endpoint, 500) as strangers:
            peers.wait_until(lambda: "descriptors are short" in log_of(broker), "the broker says so")
            shake_hands(strangers)
            assert f"{DESCRIPTORS - DESCRIPTORS // 4} of the {DESCRIPTORS}" in log_of(broker)
            assert "ulimit -n" in log_of(broker)
            # A listener that cannot accept used to take a whole core, for as long as somebody waited.
            before = cpu_s(broker)
            peers.pass_time(2.0)
            assert cpu_s(broker) - before < 1.0
            assert let_in(strangers)
            # What it has goes on, and what is kept suffices for a probe.
            client.request(b"echo", b"hi")
            worker.finish(worker.take(), b"there")
            assert client.recv() == [b"", b"MDPC01", b"echo", b"there"]
            assert metric(broker, "bstar_descriptors_short") == 1
            assert metric(broker, "bstar_descriptors_max") == DESCRIPTORS
        peers.wait_until(lambda: metric(broker, "bstar_descriptors_short") == 0, "descriptors are free again")
        late, newcomer = peers.worker01(b"late"), peers.client01()
        newcomer.request(b"late", b"hi")
        late.finish(late.take(), b"again")
        assert newcomer.recv() == [b"", b"MDPC01", b"late", b"again"]
        assert log_of(broker).count("descriptors are short") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel cannot hold connections off elsewhere")
def test_the_peer_finds_a_node_that_lets_no_clients_in(tmp_path: Path) -> None:
    with (
        BrokerPair(tmp_path, commands={"primary": LIMITED}) as pair,
        pair.primary,
        crowd(pair.primary.endpoint, 500) as strangers,
    ):
        pair.primary.wait_for_log("descriptors are short")
        shake_hands(strangers)
        pair.backup.start()
        pair.primary.wait_for_state("ACTIVE")
        pair.backup.wait_for_state("PASSIVE")


class Guarded:
    """A guard in a loop of its own. ``allow`` lets the process have ``spare`` more than it has."""

    def __init__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.reactor = Reactor()
        self.context: zmq.Context[Socket] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.host = LoopbackHost()
        self.endpoint = f"tcp://127.0.0.1:{self.host.ports(1)[0]}"
        self.listener = Listener(self.reactor, self.socket, self.endpoint)
        self.guard = self.listener.descriptors

    def allow(self, spare: int) -> int:
        """Returns the limit."""
        limit = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + spare
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, self.before[1]))
        return limit

    def turn_until(self, is_short: bool) -> None:
        until = self.reactor.now() + LIMIT_S
        while self.guard.is_short is not is_short:
            assert self.reactor.now() < until
            self.reactor.turn()

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.before)
        self.listener.close()
        self.listener.close()
        self.socket.close()
        self.reactor.close()
        self.host.close()
        self.context.term()


@pytest.fixture
def guarded(caplog: pytest.LogCaptureFixture) -> Iterator[Guarded]:
    caplog.set_level(logging.INFO, "bstar.descriptors")
    with closing(Guarded()) as made:
        yield made


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_files_count_as_well_and_what_is_given_back_counts(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    limit = guarded.allow(RESERVE + 20)
    for shortage in (1, 2):
        with ExitStack() as stack:
            # All numbers below the highest that is in use, and some more.
            while stack.enter_context(Path("/dev/null").open()).fileno() < limit - min(RESERVE, limit // 4):
                pass
            guarded.turn_until(is_short=True)
            assert guarded.guard.shortages == shortage
        guarded.turn_until(is_short=False)
    assert caplog.text.count("descriptors are short") == 1
    assert caplog.text.count("descriptors are free again") == 1, "the end of what was told"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_limit_that_changes_under_a_process_counts_at_the_next_look(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    highest = guarded.allow(RESERVE + 20) - RESERVE - 20
    with ExitStack() as stack:
        while stack.enter_context(Path("/dev/null").open()).fileno() < highest:
            pass
        limit = guarded.allow(4)
        guarded.turn_until(is_short=True)
        assert guarded.guard.maximum == limit
        assert f"of the {limit} that this process may have" in caplog.text
        guarded.allow(RESERVE + 40)
        guarded.turn_until(is_short=False)
