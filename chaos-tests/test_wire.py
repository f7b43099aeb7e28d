"""The network that the scenarios stand on does what it is told: measured by datagrams between two namespaces.

A seed decides the fate of each packet, so most of it is compared packet by packet with the pure part.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bstar_testing.processes import wait_until
from chaos.channel import Counts, Quality, Switch
from chaos.netns import Namespace, remove_leftovers
from chaos.network import Network, require_namespaces
from chaos.wire import WireError

SEED = 7
PORT = 7000
_BATCH = 50
# Of <asm-generic/socket.h>; the module socket lacks it.
_SO_RCVBUFFORCE = 33
_PACKET_S_MAX = 20.0


@pytest.fixture
def network() -> Iterator[Network]:
    require_namespaces()
    with Network(["a", "b", "c"], seed=SEED) as network:
        yield network


class Flow:
    """Numbered datagrams from one host to another."""

    def __init__(self, network: Network, source: str, to: str) -> None:
        self._network, self._source, self._to = network, source, to
        self._sender = network[source].namespace.inside(_udp)
        self._receiver = network[to].namespace.inside(_udp)
        self._receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        self._receiver.bind((network[to].address, 0))
        self.sent_at: dict[int, float] = {}
        self.came: list[tuple[float, int]] = []

    def send(self, count: int, size: int = 100) -> None:
        """Send so many more, no faster than the wire reads."""
        address = self._receiver.getsockname()
        for number in range(len(self.sent_at), len(self.sent_at) + count):
            self.sent_at[number] = time.monotonic()
            self._sender.sendto(number.to_bytes(4, "big") + bytes(size - 4), address)
            if number % _BATCH == _BATCH - 1:
                self.wait_read()
        self.wait_read()

    def wait_read(self) -> None:
        """Wait until the wire has read all that was sent."""
        sent = len(self.sent_at)
        wait_until(lambda: self.counts.received == sent, f"the wire has read {sent}")

    @property
    def counts(self) -> Counts:
        return self._network.wire.counts(self._source, self._to)

    def take(self, count: int) -> list[int]:
        """Wait for so many more; their numbers in the order in which they came."""
        for _ in range(count):
            octets = self._receiver.recv(65536)
            self.came.append((time.monotonic(), int.from_bytes(octets[:4], "big")))
        return [number for _, number in self.came[-count:]] if count else []

    def is_silent(self) -> bool:
        """Whether nothing that came is waiting to be taken."""
        readable, _, _ = select.select([self._receiver], [], [], 0)
        return not readable

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


def _udp() -> socket.socket:
    result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    result.settimeout(_PACKET_S_MAX)
    return result


Flows = Callable[[str, str], Flow]


@pytest.fixture
def flows(network: Network) -> Iterator[Flows]:
    with ExitStack() as made:

        def between(source: str, to: str) -> Flow:
            flow = Flow(network, source, to)
            made.callback(flow.close)
            return flow

        yield between


@pytest.fixture
def flow(flows: Flows) -> Flow:
    return flows("a", "b")


def predicted(network: Network, count: int, quality: Quality) -> list[int]:
    """Which of so many packets arrive, and how often, as the pure part has it."""
    switch = Switch({name: socket.inet_aton(host.address) for name, host in network.hosts.items()}, seed=SEED)
    switch.set_quality("a", "b", quality)
    to = socket.inet_aton(network["b"].address)
    came = []
    for number in range(count):
        switch.receive("a", b"\x45" + bytes(15) + to + number.to_bytes(4, "big"), 0.0)
        came += [int.from_bytes(octets[20:]) for _, octets in switch.take_due(0.0)]
    return came


# --- faults -------------------------------------------------------------------------------------------------


def test_a_good_wire_brings_everything(network: Network, flow: Flow) -> None:
    for _ in range(10):
        flow.send(500)
        flow.take(500)
    assert [number for _, number in flow.came] == list(range(5000))
    print(f"the wire carries {network.wire.throughput():.0f} packets a second")


@pytest.mark.parametrize("percent", [5.0, 20.0])
def test_those_packets_are_lost_that_the_seed_chose(network: Network, flow: Flow, percent: float) -> None:
    with network.wire.loss("a", "b", percent=percent):
        flow.send(1000)
    left = predicted(network, 1000, Quality(loss_percent=percent))
    assert flow.take(len(left)) == left
    assert flow.is_silent()
    assert 1000 - len(left) == pytest.approx(10 * percent, abs=40)


def test_those_packets_come_twice_that_the_seed_chose(network: Network, flow: Flow) -> None:
    with network.wire.duplicate("a", "b", percent=10):
        flow.send(1000)
    expected = predicted(network, 1000, Quality(duplicate_percent=10))
    assert flow.take(len(expected)) == expected
    assert len(expected) == pytest.approx(1100, abs=40)


def test_no_packet_comes_earlier_than_its_delay(network: Network, flow: Flow) -> None:
    with network.wire.delay("a", "b", ms=80, jitter_ms=30):
        flow.send(500)
        assert flow.take(500) == list(range(500))
    took_ms = [(at - flow.sent_at[number]) * 1000 for at, number in flow.came]
    assert min(took_ms) >= 50
    # Whatever the machine adds, half of them are delayed by more than the middle.
    assert sorted(took_ms)[250] >= 75


def test_packets_held_back_are_overtaken(network: Network, flow: Flow) -> None:
    with network.wire.reorder("a", "b", percent=10, hold_ms=400):
        flow.send(500)
        numbers = flow.take(500)
    assert sorted(numbers) == list(range(500))
    highest, overtaken = -1, 0
    for number in numbers:
        overtaken += number < highest
        highest = max(highest, number)
    held = flow.counts.held
    assert held == pytest.approx(50, abs=25)
    # The last ones have nobody behind them, and a machine that stood still lets others catch up.
    assert held / 2 < overtaken <= held


def test_a_narrow_wire_takes_its_time(network: Network, flow: Flow) -> None:
    with network.wire.rate("a", "b", kbit_s=800):
        flow.send(50, size=972)
        assert flow.take(50) == list(range(50))
    # With UDP and IP headers 1000 bytes each, so 10 ms.
    assert flow.came[-1][0] - flow.sent_at[0] >= 0.5


def test_other_pairs_are_not_affected(network: Network, flows: Flows) -> None:
    away, back, other = flows("a", "b"), flows("b", "a"), flows("a", "c")
    with network.wire.loss("a", "b", percent=100, one_way=True):
        away.send(20)
        back.send(20)
        other.send(20)
        assert back.take(20) == other.take(20) == list(range(20))
    away.send(1)
    assert away.take(1) == [20]


def test_faults_add_up_and_each_takes_only_itself_away(network: Network, flow: Flow) -> None:
    with network.wire.delay("a", "b", ms=30):
        with network.wire.partition("a", "b"):
            flow.send(5)
        flow.send(5)
        assert flow.take(5) == [5, 6, 7, 8, 9]
        assert min(at - flow.sent_at[number] for at, number in flow.came) >= 0.03
    flow.send(5)
    assert flow.take(5) == [10, 11, 12, 13, 14]
    assert flow.counts.cut == 5


# --- partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["wire", "drop", "reset"])
@pytest.mark.parametrize("one_way", [True, False])
def test_a_partition_keeps_everything_back(network: Network, flows: Flows, by: str, one_way: bool) -> None:
    away, back, past = flows("a", "b"), flows("b", "a"), flows("c", "b")
    with network.partition({"a"}, {"b"}, one_way=one_way, by=by):  # type: ignore[arg-type]  # one of them
        away.send(10)
        back.send(10)
        past.send(10)
        assert past.take(10) == list(range(10))
        if one_way:
            assert back.take(10) == list(range(10))
    away.send(1)
    back.send(1)
    assert (away.take(1), back.take(1)) == ([10], [10])


def test_an_isolated_host_reaches_nobody_but_itself(network: Network, flows: Flows) -> None:
    with network.isolate("b"):
        ways = [flows(*pair) for pair in (("a", "b"), ("b", "c"), ("a", "c"))]
        for flow in ways:
            flow.send(5)
        assert ways[2].take(5) == list(range(5))
        with network["b"].namespace.inside(lambda: socket.create_server(("127.0.0.1", PORT))):
            network["b"].connect(("127.0.0.1", PORT), 5.0).close()
    assert ways[0].is_silent()
    assert ways[1].is_silent()


def test_a_reset_breaks_connections_and_a_silent_drop_lets_them_hang(network: Network) -> None:
    address = (network["b"].address, PORT)
    with network["b"].namespace.inside(lambda: socket.create_server(address)) as server:
        with network["a"].connect(address, 5.0) as connection:
            served, _ = server.accept()
            with served:
                with network.partition({"a"}, {"b"}, by="drop"):
                    connection.sendall(b"1")
                served.settimeout(_PACKET_S_MAX)
                assert served.recv(10) == b"1"
                with network.partition({"a"}, {"b"}, one_way=True, by="reset"):
                    connection.sendall(b"2")
                    with pytest.raises(ConnectionError):
                        connection.recv(1)
        with network.partition({"a"}, {"b"}, one_way=True, by="reset"), pytest.raises(ConnectionRefusedError):
            network["a"].connect(address, _PACKET_S_MAX)


# --- life ---------------------------------------------------------------------------------------------------


def test_a_host_that_is_not_there_cannot_be_cut_off(network: Network) -> None:
    with pytest.raises(ValueError, match="nobody"), network.wire.partition({"a"}, {"nobody"}):
        pytest.fail("it was")


def test_a_wire_that_died_says_so(network: Network) -> None:
    os.kill(network.wire.pid, signal.SIGKILL)
    with pytest.raises(WireError, match="wire"), network.wire.partition({"a"}, {"b"}):
        pytest.fail("nobody carries packets")


def test_nothing_is_left_of_a_network(network: Network) -> None:
    namespace = network["a"].namespace
    with subprocess.Popen(namespace.command(["sleep", "1000"])) as sleeper:
        wait_until(lambda: str(sleeper.pid) in _pids(namespace), "sleeps on host a")
        network.close()
        assert sleeper.wait() == -signal.SIGKILL
    assert not namespace.path.exists()
    network.close()


def _pids(namespace: Namespace) -> list[str]:
    command = ["ip", "netns", "pids", namespace.name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


_MAKER = """
import subprocess, sys
from chaos.netns import Namespace
namespace = Namespace.create("left")
subprocess.Popen(namespace.command(["sleep", "1000"]))
print(namespace.name, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(network: Network) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    ) as maker:
        assert maker.stdout is not None
        left = Namespace(maker.stdout.readline().strip())
        wait_until(lambda: _pids(left), "the process is in its namespace")
        (pid,) = _pids(left)
        assert left.name not in remove_leftovers()
        assert left.path.exists()
        maker.kill()
        maker.wait()
        # Another test's process may have removed it, at the same moment.
        remove_leftovers()
    assert not left.path.exists()
    assert (
        not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    )
    assert network["a"].namespace.path.exists()
