"""What a request costs the broker as it has more services, more workers, and longer queues.

    python benchmarks/scaling.py                   all curves in MDP/0.2, medians of 3 rounds; 7 minutes
    python benchmarks/scaling.py --dialect native --curves queue

- ``registered``: services that exist and are not used, one worker each, beside one that is used; 10 workers
serve it. - ``used``: as many services as workers, one each, called in turn. - ``workers``: as many workers,
all of one service. Next to it the floor (``floor.py``) with the same workers. - ``queue``: requests that
wait for the one worker all the time.

Cost is CPU time of the broker's process per reply, above what it spends without requests (heartbeats). More
workers are more connections, and a message to each of them is a system call of its own: the floor pays
that, too, so for ``workers`` look at the ratio. Values are medians of rounds that go through the curve one
after the other.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import zmq

from bstar.net.sockets import is_readable, receive, send
from bstar.wire import native
from endurance import look
from run import bstar_server, child, cpu_seconds, floor_server

HERE = Path(__file__).parent
WINDOW = 100
BODY = b"x" * 16
SILENCE_MS_MAX = 20_000
# Heartbeats come in bursts (profile guide); an idle cost without a whole interval would be too low.
HEARTBEAT_S = 2.5
POINTS = {
    "registered": [1, 10, 100, 1_000],
    "used": [1, 10, 100, 1_000],
    "workers": [1, 10, 100, 1_000],
    # One less than the limits of the broker: the worker has one.
    "queue": [0, 1_000, 10_000, 99_990],
}
CURVES = list(POINTS)


def main() -> int:
    """Print the curves that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=CURVES)
    parser.add_argument("--dialect", choices=["mdp02", "native"], default="mdp02")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5)
    asked = parser.parse_args()
    for curve in asked.curves:
        has_floor = curve == "workers" and asked.dialect == "mdp02"
        print(
            f"{curve}, {asked.dialect}: medians of {asked.rounds} rounds of {asked.seconds:g} s", flush=True
        )
        servers = ["bstar", "floor"] if has_floor else ["bstar"]
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for _ in range(asked.rounds):
            for point in POINTS[curve]:
                for server in servers:
                    figures = measure(server, curve, point, asked.dialect, asked.seconds)
                    found.setdefault((server, point), []).append(figures)
        _print(curve, found, servers)
    return 0


def _print(curve: str, found: dict[tuple[str, int], list[tuple[float, float]]], servers: list[str]) -> None:
    least = min(
        statistics.median(cost for cost, _ in figures)
        for (name, _), figures in found.items()
        if name == "bstar"
    )
    headings = ["CPU µs/req", "to the least", "req/s"] + (
        ["floor µs/req", "to the floor"] if servers[1:] else []
    )
    print(f"{curve:>12}" + "".join(f"{heading:>14}" for heading in headings))
    for point in POINTS[curve]:
        cost, rate = (statistics.median(each) for each in zip(*found["bstar", point], strict=True))
        line = f"{point:>12,}{cost:>14.1f}{cost / least:>14.2f}{rate:>14,.0f}"
        if servers[1:]:
            floor = statistics.median(each for each, _ in found["floor", point])
            line += f"{floor:>14.1f}{cost / floor:>14.2f}"
        print(line, flush=True)


def measure(server: str, curve: str, point: int, dialect: str, seconds: float) -> tuple[float, float]:
    """CPU microseconds per reply above idle, and replies per second."""
    workers = {"registered": 10, "used": point, "workers": point, "queue": 1}[curve]
    services = point if curve == "used" else 1
    window = max(1, point) + 1 if curve == "queue" else WINDOW
    with ExitStack() as stack:
        if server == "floor":
            pid, endpoint = stack.enter_context(floor_server())
        else:
            pid, endpoint = stack.enter_context(bstar_server("guide"))
        command = [sys.executable, str(HERE / "echoes.py"), endpoint, dialect, str(workers), str(services)]
        _wait(stack.enter_context(child(command)))
        load = Load(endpoint, dialect, services)
        stack.callback(load.close)
        load.wait_until_open()
        if curve == "registered" and point > 1:
            # They have no room for work, but names.
            crowd = [
                sys.executable,
                str(HERE / "crowd.py"),
                endpoint,
                "services",
                str(point - 1),
                "2.5",
                "other",
            ]
            _wait(stack.enter_context(child(crowd)))
        # Sent is not queued yet: the broker has to have taken them all before the cost of one is looked at.
        queued = point if curve == "queue" else 0
        return load.run(
            pid, window, seconds, lambda: look(endpoint).broker.queued >= 0.99 * queued if queued else True
        )


def _wait(process) -> None:
    if process.stdout.readline() != b"ready\n":
        raise SystemExit("the peers did not come")


class Load:
    """A window of requests on one DEALER, to several services in turn."""

    def __init__(self, endpoint: str, dialect: str, services: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        self._names = itertools.cycle([b"echo%d" % number for number in range(services)])
        self._client_id = os.urandom(16) if dialect == "native" else None
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Leave."""
        self._context.destroy(linger=0)

    def _send(self) -> None:
        name = next(self._names)
        if self._client_id is None:
            send(self._socket, [b"MDPC02", b"\x01", name, BODY])
        else:
            identity = native.identity(self._client_id, next(self._numbers))
            send(self._socket, native.encode_request(identity, name, [BODY]))

    def _receive(self, *, is_sending: bool) -> int:
        if not self._socket.poll(SILENCE_MS_MAX):
            raise SystemExit("the broker is silent")
        count = 0
        while is_readable(self._socket):
            frames = receive(self._socket)
            if self._client_id is not None and frames[0][2] != native.FINAL:
                raise SystemExit(f"no reply: {native.decode(frames)}")
            count += 1
            if is_sending:
                self._send()
        return count

    def wait_until_open(self) -> None:
        """One reply: the node is active. MDP/0.2 says nothing before, the native dialect NOT_ACTIVE."""
        until = time.monotonic() + 20
        is_open = False
        while not is_open:
            if time.monotonic() > until:
                raise SystemExit("the broker does not answer")
            self._send()
            while not is_open and self._socket.poll(500):
                frames = receive(self._socket)
                is_open = self._client_id is None or frames[0][2] == native.FINAL
                if not is_open:
                    break
        while self._socket.poll(600):
            receive(self._socket)

    def run(
        self, pid: int, window: int, seconds: float, is_settled: Callable[[], bool]
    ) -> tuple[float, float]:
        """Fill the window, let it settle, then count."""
        idle_before, at = cpu_seconds(pid), time.monotonic()
        time.sleep(HEARTBEAT_S)
        idle_share = (cpu_seconds(pid) - idle_before) / (time.monotonic() - at)
        for number in range(window):
            self._send()
            # What is answered meanwhile is taken, and sent again.
            if number % 1000 == 999 and is_readable(self._socket):
                self._receive(is_sending=True)
        end = time.monotonic() + 0.3
        while time.monotonic() < end or not is_settled():
            if time.monotonic() > end + SILENCE_MS_MAX / 1000:
                raise SystemExit("the requests did not get into the queue")
            self._receive(is_sending=True)
        began_at, before, count = time.monotonic(), cpu_seconds(pid), 0
        while time.monotonic() - began_at < seconds:
            count += self._receive(is_sending=True)
        elapsed_s = time.monotonic() - began_at
        spent_s = cpu_seconds(pid) - before - idle_share * elapsed_s
        return spent_s / count * 1e6, count / elapsed_s


if __name__ == "__main__":
    sys.exit(main())
