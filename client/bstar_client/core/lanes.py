"""Requests that wait in a worker, fair between the clients that sent them.

With more credit than handlers that run, requests wait in the worker, perhaps hundreds of one client. Another
client's request that arrives behind them does not wait for all of these: the clients take turns, with one
request each; within a client the order is that of arrival. Requests with a key do not tell whose they are
(BSN-G-14), and count as one client's. Not for several threads at once.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from bstar.wire.native import IDENTITY_BYTES, is_keyed
from bstar_client.core.worker_dialects import Job

__all__ = ["Lanes"]

_KEYED = b"keyed"


class Lanes:
    """``push`` and ``pop``; true while anything waits.

    ``turns``: the clients in the order of their turns, for those who only ask whether there are any.
    """

    __slots__ = ("_lanes", "turns")

    def __init__(self) -> None:
        # What waits by client; none of them has nothing.
        self._lanes: dict[bytes, tuple[bytes, deque[Job]]] = {}
        self.turns: deque[tuple[bytes, deque[Job]]] = deque()

    def push(self, jobs: Sequence[Job], *, are_one_clients: bool = False) -> None:
        """These wait as well. ``are_one_clients``: one client sent them all, and nobody has to look."""
        if not are_one_clients:
            for job in jobs:
                self.push((job,), are_one_clients=True)
            return
        identity = jobs[0].identity
        # What is shorter is a plain Majordomo client's address.
        client = _KEYED if len(identity) == IDENTITY_BYTES and is_keyed(identity) else identity[:16]
        lane = self._lanes.get(client)
        if lane is None:
            lane = self._lanes[client] = (client, deque(jobs))
            self.turns.append(lane)
        else:
            lane[1].extend(jobs)

    def pop(self) -> Job:
        """The next; IndexError if nothing waits."""
        lane = self.turns.popleft()
        client, jobs = lane
        job = jobs.popleft()
        if jobs:
            self.turns.append(lane)
        else:
            del self._lanes[client]
        return job

    def clear(self) -> None:
        """Nothing waits any more."""
        self._lanes.clear()
        self.turns.clear()

    def __bool__(self) -> bool:
        return bool(self.turns)

    def __iter__(self) -> Iterator[Job]:
        for _, jobs in self.turns:
            yield from jobs
