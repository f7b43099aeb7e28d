"""Requests that wait in a worker, in a queue that is fair between clients.

With more credit than running handlers, requests wait in the worker, perhaps hundreds of one client. The
clients take turns, with one request each; the requests of one client keep their order. A client that had
nothing waiting for a round is next; a client that comes back sooner waits for its turn. A request with a key
does not name its client (BSN-G-14), so all of them count as one client's. Not thread-safe.

The broker's ``FairQueue`` has the same rule and also removes items from the middle, which costs 2.1 µs a
request. Here a batch of one client is one ``deque.extend``: 0.14 µs a request.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from bstar.wire.limits import FRESH_IN_A_ROW_MAX
from bstar.wire.native import IDENTITY_BYTES, is_keyed
from bstar_client.core.worker.dialects import Job

_KEYED = b"keyed"


class Lanes:
    """``push`` and ``pop``; true while anything waits.

    ``turns``: the clients in the order of their turns; empty if nothing waits.
    """

    __slots__ = ("_ahead", "_fresh", "_lanes", "turns")

    def __init__(self) -> None:
        # Waiting requests by client. A client whose last request was taken stays until its next turn. The
        # first client always has a request.
        self._lanes: dict[bytes, tuple[bytes, deque[Job]]] = {}
        self.turns: deque[tuple[bytes, deque[Job]]] = deque()
        # How many newcomers are first, and how many of them went ahead since another client was next.
        self._fresh = 0
        self._ahead = 0

    def push(self, jobs: Sequence[Job], *, are_one_clients: bool = False) -> None:
        """Add requests. ``are_one_clients``: one client sent them all."""
        if not are_one_clients:
            for job in jobs:
                self.push((job,), are_one_clients=True)
            return
        identity = jobs[0].identity
        # A shorter identity is a plain Majordomo client's address.
        client = _KEYED if len(identity) == IDENTITY_BYTES and is_keyed(identity) else identity[:16]
        lane = self._lanes.get(client)
        if lane is not None:
            lane[1].extend(jobs)
            return
        lane = self._lanes[client] = (client, deque(jobs))
        if self._ahead < FRESH_IN_A_ROW_MAX:
            self.turns.insert(self._fresh, lane)
            self._fresh += 1
            self._ahead += 1
        else:
            self.turns.append(lane)

    def pop(self) -> Job:
        """The next; IndexError if nothing waits."""
        turns = self.turns
        lane = turns.popleft()
        if self._fresh:
            self._fresh -= 1
        else:
            self._ahead = 0
        job = lane[1].popleft()
        turns.append(lane)
        while turns and not turns[0][1]:
            del self._lanes[turns.popleft()[0]]
        if not turns:
            self._ahead = 0
        return job

    def clear(self) -> None:
        """Nothing waits any more."""
        self._lanes.clear()
        self.turns.clear()
        self._fresh = self._ahead = 0

    def __bool__(self) -> bool:
        return bool(self.turns)

    def __iter__(self) -> Iterator[Job]:
        for _, jobs in self.turns:
            yield from jobs
