"""Workers of four protocols share one service, clients of four protocols ask for it, and nodes are killed.

Pirates, Majordomo/0.1, EventMQ and the product's own client and worker meet in one queue. Each request is a
job of EventMQ that echoes its number, so a reply tells which request it answers. The active node is killed
with SIGKILL after a third of the requests and after two thirds.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bstar.errors import OutcomeUnknownError
from bstar.wire.emq_jobs import Headers, Job, encode_job
from bstar_client import HAClient, Request, Worker
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqClient, EmqJobManager
from bstar_testing import Pair, wait_until
from support.emq import result
from support.pirate_sockets import LazyPirate, MajordomoWorkerThread, ParanoidWorkerThread

pytestmark = pytest.mark.timeout(900)

COUNT = 10_000
THREADS = 4  # of each client that may have several calls under way
LIMIT_S = 300.0
RETRY_S = 1.0
QUEUE = "default"
CALLS = "support.emq_calls"
DOORS = ("fronts.ppp.clients", "fronts.ppp.workers", "fronts.emq.clients", "fronts.emq.workers")
SETTINGS = {"fronts.ppp.service": QUEUE, "fronts.emq.heartbeat_interval_s": 0.5}
TIMING = ManagerSettings((), heartbeat_s=0.2, silence_s=LIMIT_S, answer_s=LIMIT_S, pause_s=0.05)
# Each protocol has a part in it, as a client and as a worker.
PART_MIN = 50

Ask = Callable[[bytes], bytes]


class Ledger:
    """The numbers that nobody has asked for yet, the replies, and who had a part in them.

    Only half of the numbers may be asked for until ``release``: so clients still ask when a node is killed.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._next = 0
        self._end = COUNT // 2
        self.crossed: list[tuple[int, bytes]] = []
        self.answered: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()

    def ask_all(self, client: str, ask: Ask) -> None:
        """Ask until every number has been asked for."""
        while True:
            with self._lock:
                assert self._lock.wait_for(lambda: self._next < self._end or self._end == COUNT, LIMIT_S)
                number, self._next = self._next, self._next + 1
            if number >= COUNT:
                return
            reply = ask(encode_job(Job(CALLS, "echo", [number])))
            with self._lock:
                self.answered[client] += 1
                if reply != result(number):
                    self.crossed.append((number, reply))

    def work(self, worker: str) -> Callable[[bytes], bytes]:
        """What a worker of this protocol does."""

        def echo(job: bytes) -> bytes:
            with self._lock:
                self.executed[worker] += 1
            return result(json.loads(job)[1]["args"][0])

        return echo

    def release(self) -> None:
        """All numbers may be asked for."""
        with self._lock:
            self._end = COUNT
            self._lock.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait for so many replies."""
        wait_until(lambda: self.answered.total() >= count, f"{count} replies", limit_s=LIMIT_S)


@contextmanager
def workers(pair: Pair, ledger: Ledger) -> Iterator[EmqJobManager]:
    """Workers of all four protocols. Plain ones know one node each, so there is one at both."""
    ours, pirate, mdp01 = (ledger.work(name) for name in ("ours", "pirate", "mdp01"))

    def handle(request: Request) -> bytes:
        return ours(request.frames[0])

    with ExitStack() as stack:
        stack.enter_context(Worker(pair.endpoints, QUEUE, handle))
        for place in pair.doors("fronts.ppp.workers"):
            stack.enter_context(ParanoidWorkerThread(place, lambda body: [pirate(body[0])]))
        for place in pair.endpoints:
            stack.enter_context(MajordomoWorkerThread(place, lambda body: [mdp01(body[0])], QUEUE.encode()))
        routers = pair.doors("fronts.emq.workers")
        manager = stack.enter_context(EmqJobManager(routers, timing=TIMING, allow=[CALLS], processes=2))
        thread = threading.Thread(target=manager.run)
        thread.start()
        stack.callback(thread.join, LIMIT_S)
        stack.callback(manager.stop)
        # Ours, a Pirate, a Majordomo and the manager.
        pair.primary.wait_for_workers(4)
        yield manager


@contextmanager
def clients(pair: Pair, ledger: Ledger) -> Iterator[list[threading.Thread]]:
    """Clients of all four protocols, each in threads of its own."""
    with ExitStack() as stack:
        ours: HAClient = stack.enter_context(pair.client(timeout=LIMIT_S))
        emq = stack.enter_context(EmqClient(pair.doors("fronts.emq.clients"), timeout_s=LIMIT_S))
        # Each attempt is a new request: on a starved machine many may end before their reply.
        plain = partial(LazyPirate, timeout_s=RETRY_S, limit_s=LIMIT_S)
        pirate = stack.enter_context(plain(pair.doors("fronts.ppp.clients")))
        mdp01 = stack.enter_context(plain(pair.endpoints))

        def ask_emq(job: bytes) -> bytes:
            number = json.loads(job)[1]["args"][0]
            while True:
                try:
                    return result(emq.call(QUEUE, Job(CALLS, "echo", [number]), Headers()))
                except OutcomeUnknownError:
                    continue  # its router died; a call of EventMQ is not sent again by itself

        asks: list[tuple[str, Ask]] = [
            *[("ours", lambda job: ours.request(QUEUE, job, idempotent=True).body)] * THREADS,
            *[("emq", ask_emq)] * THREADS,
            ("pirate", lambda job: pirate.ask(job)[0]),
            ("mdp01", lambda job: mdp01.ask(b"MDPC01", QUEUE.encode(), job)[2]),
        ]
        threads = [threading.Thread(target=ledger.ask_all, args=each) for each in asks]
        for thread in threads:
            thread.start()
        yield threads
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def kill_the_active_node(pair: Pair) -> None:
    """SIGKILL it, wait until the other one serves, and start it again."""
    killed = pair.kill_active()
    other = pair.peer_of(killed)
    other.wait_for_state("ACTIVE")
    killed.start()
    killed.wait_for_state("PASSIVE")


def test_four_protocols_share_a_service_over_two_failovers(tmp_path: Path) -> None:
    ledger = Ledger()
    with Pair(tmp_path, doors=DOORS, settings=SETTINGS) as pair:
        pair.start()
        with workers(pair, ledger) as manager:
            began = time.monotonic()
            with clients(pair, ledger):
                ledger.wait_for(COUNT // 3)
                kill_the_active_node(pair)
                ledger.release()
                ledger.wait_for(2 * COUNT // 3)
                kill_the_active_node(pair)
            took_s = time.monotonic() - began
            ledger.executed["emq"] = manager.jobs
    print(f"{COUNT} requests, 2 nodes killed, {took_s:.1f} s")
    print(f"answered by client:  {dict(ledger.answered)}")
    print(f"executed by worker:  {dict(ledger.executed)}")
    assert ledger.crossed == []
    assert ledger.answered.total() == COUNT
    for parts in (ledger.answered, ledger.executed):
        assert {name for name, part in parts.items() if part >= PART_MIN} == {
            "ours",
            "pirate",
            "mdp01",
            "emq",
        }
