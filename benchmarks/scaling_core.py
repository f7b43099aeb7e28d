"""What a request costs the broker's core over services, workers and queue length: its algorithms alone.

    python benchmarks/scaling_core.py          all curves in all dialects; 1 minute

No sockets: a core is fed frames and its outputs are read, in one thread, and the clock is a variable that
moves by 50 µs per request, so that timers have their share. The cost is this thread's CPU time per request,
from the frames of the request until those of the reply, decoding included; the least of the repetitions,
which go round all points of a curve, so that other processes disturb little. ``batches``: 50 requests a
message, divided by 50. The curves of ``scaling.py`` have the sockets as well, and the noise of the machine.
"""

import argparse
import itertools
import sys
import time
from collections import deque
from collections.abc import Sequence

from bstar.wire import decode, native
from bstar.wire.messages import NodeStatus
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import Dispatch
from bstar_broker.core.settings import BrokerSettings

POINTS = {
    "services": [1, 10, 100, 1_000],
    "workers": [1, 10, 100, 1_000, 10_000],
    "queue": [0, 1_000, 10_000, 100_000],
}
DIALECTS = ("mdp02", "native", "batches")
REPETITIONS = 7
REQUESTS = 2_000
STEP_S = 50e-6
ROWS = 50
BODY = b"x" * 16


class Core:
    """An active broker core with its workers, and requests that wait."""

    def __init__(self, dialect: str, *, services: int = 1, workers: int = 1, queued: int = 0) -> None:
        settings = BrokerSettings(queue_length_max=1_000_000, requests_per_client_max=1_000_000)
        self.now = 0.0
        self._dialect = dialect
        self._broker = Broker(settings, node_id=bytes(16), describe=_status, now=0.0)
        self._broker.activate(1)
        self._given: deque[list[bytes]] = deque()
        self._client = b"client-of-16-oct"
        self._numbers = itertools.count(1)
        for number in range(max(services, workers)):
            service = b"echo%d" % (number % services)
            self._feed(b"w%d" % number, self._ready(service))
        self._services = itertools.cycle([b"echo%d" % number for number in range(services)])
        while self._broker.ledger.waiting.count < queued:
            self._ask()

    def cost_us(self, count: int) -> float:
        """CPU microseconds per request, over so many."""
        rows = ROWS if self._dialect == "batches" else 1
        began_at = time.thread_time()
        for _ in range(count // rows):
            self._ask()
            # A batch is spread over the workers that are idle.
            for _ in range(len(self._given)):
                self._answer()
            self.now += STEP_S * rows
            while self._broker.next_deadline() <= self.now:
                self._read(self._broker.handle_timer(self.now))
        return (time.thread_time() - began_at) / (count // rows * rows) * 1e6

    def _ready(self, service: bytes) -> list[bytes]:
        if self._dialect == "mdp02":
            return [b"MDPW02", b"\x01", service]
        is_batched = self._dialect == "batches"
        return native.encode_ready(service, credit=ROWS if is_batched else 1, takes_batches=is_batched)

    def _ask(self) -> None:
        service = next(self._services)
        if self._dialect == "mdp02":
            frames = [b"MDPC02", b"\x01", service, BODY]
        elif self._dialect == "native":
            identity = native.identity(self._client, next(self._numbers))
            frames = native.encode_request(identity, service, [BODY])
        else:
            numbers = [next(self._numbers) for _ in range(ROWS)]
            frames = native.encode_requests(self._client, service, numbers, [0] * ROWS, [BODY] * ROWS)
        self._feed(b"client", frames)

    def _answer(self) -> None:
        worker, *frames = self._given.popleft()
        if self._dialect == "mdp02":
            reply = [b"MDPW02", b"\x04", frames[2], b"", *frames[4:]]
        elif frames[0][2] == native.REQUEST:
            reply = native.encode_final(frames[0][4:28], 1, 0, frames[1:])
        else:
            message = native.decode(frames)
            table = message.body[0]
            numbers = [int.from_bytes(table[at : at + 8], "big") for at in range(0, len(table), 16)]
            reply = native.encode_finals(message.identity[:16], 1, numbers, [BODY] * len(numbers))
        self._feed(worker, reply)

    def _feed(self, sender: bytes, frames: list[bytes]) -> None:
        self._read(self._broker.receive(decode([sender, *frames], 1 << 26), self.now))

    def _read(self, outputs: Sequence[object]) -> None:
        for output in outputs:
            if type(output) is Dispatch:
                self._given.append(output.frames)


def _status(now: float) -> NodeStatus:
    return NodeStatus(3, 1, 0, 0, 0, 1_000, 2_000)


def main() -> int:
    """Print the curves that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--dialects", nargs="+", choices=DIALECTS, default=DIALECTS)
    asked = parser.parse_args()
    for curve in asked.curves:
        print(f"{curve:>10}" + "".join(f"{f'{each} µs':>14}{'':>8}" for each in asked.dialects), flush=True)
        columns = [costs_of(curve, dialect) for dialect in asked.dialects]
        for point, *costs in zip(POINTS[curve], *columns, strict=True):
            cells = (
                f"{cost:>14.2f}{f'({cost / least:.2f})':>8}"
                for cost, least in zip(costs, map(min, columns), strict=True)
            )
            print(f"{point:>10,}" + "".join(cells), flush=True)
    return 0


def costs_of(curve: str, dialect: str) -> list[float]:
    """The least cost at each point of a curve, in microseconds of CPU per request."""
    name = {"services": "services", "workers": "workers", "queue": "queued"}[curve]
    cores = [Core(dialect, **{name: point}) for point in POINTS[curve]]
    rounds = [[core.cost_us(REQUESTS) for core in cores] for _ in range(REPETITIONS)]
    return [min(costs) for costs in zip(*rounds, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
