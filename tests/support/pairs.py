"""A real pair: two broker processes, worker processes, a load, and a record of everything that happened.

    with standing_pair() as pair, pair.load() as load:
        pair.primary.kill()
        pair.backup.wait_for_state("ACTIVE")
        load.wait_for_replies()
    load.verify()

Nothing is taken from a broker's word alone: the load writes down every call (when, how often it was sent, who
answered under which epoch), the workers write down every execution, and `Probes` are plain MDP/0.1 clients,
one per node, that ask each node without caring whether it is the active one. Times are of the monotonic
clock, which all processes of a machine share. A failed test keeps the folder with all logs and names it.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from bstar_client import BstarError, Event, HAClient
from bstar_testing.processes import Process, wait_until
from bstar_testing.rules import CallHistory
from support.brokers import Broker, BrokerPair, Profile, Timing
from support.rawpeers import CLIENT_01, EMPTY

SERVICE = "work"
# The link of the lan profile with more patience, for machines that do other things as well.
QUICK = Timing(
    failover_timeout_s=2.0,
    worker_heartbeat_interval_s=0.5,
    worker_liveness=6,
    mdp_heartbeat_interval_s=0.1,
    mdp_liveness=30,
    busy_timeout_s=3.0,
)
# A pause or a restart fits into this failover timeout on any machine.
PATIENT = replace(
    QUICK,
    failover_timeout_s=5.0,
    worker_heartbeat_interval_s=1.5,
    worker_liveness=5,
    mdp_heartbeat_interval_s=1.5,
    mdp_liveness=10,
    busy_timeout_s=15.0,
)
# No call of the load lives as long as this failover timeout.
NEVER = replace(
    QUICK,
    failover_timeout_s=60.0,
    worker_heartbeat_interval_s=15.0,
    worker_liveness=5,
    mdp_heartbeat_interval_s=15.0,
    mdp_liveness=10,
    busy_timeout_s=150.0,
    request_ttl_s=200.0,
    service_ttl_s=200.0,
)
# What a call may take at most; whatever happens to the pair meanwhile, it must be answered.
CALL_S = 45.0

_WORKER = Path(__file__).with_name("recording_worker.py")
# Four threads ask 150 times a second: enough to notice everything, and a core has time for other tests.
_PAUSE_S = 0.02
_PROBE_INTERVAL_S = 0.01


# --- workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Execution:
    """One line of a worker's record: a request was begun or ended."""

    worker: int
    phase: str
    at: float
    epoch: int
    identity: str
    is_redelivered: bool
    body: str


class WorkerProcess(Process):
    """A process of ``workers`` workers that records their executions."""

    def __init__(self, number: int, pair: BrokerPair, *, work_s: float, workers: int = 1) -> None:
        self.number = number
        self.workers = workers
        self._record = pair.folder / f"worker-{number}.jsonl"
        what = (SERVICE, str(self._record), str(work_s), str(workers))
        argv = (sys.executable, str(_WORKER), *what, *pair.endpoints)
        super().__init__(f"worker-{number}", argv, folder=pair.folder)

    def executions(self) -> list[Execution]:
        """What the worker has recorded so far, in its order."""
        if not self._record.exists():
            return []
        lines = self._record.read_text().splitlines()
        return [Execution(worker=self.number, **json.loads(line)) for line in lines]


# --- load ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """One call of the load that was answered. `epoch` and `endpoint` say by whom."""

    body: bytes
    started_at: float
    ended_at: float
    reply: bytes
    attempts: int
    epoch: int
    endpoint: str


@dataclass(frozen=True)
class Failed:
    """One call of the load that ended with an error."""

    body: bytes
    started_at: float
    ended_at: float
    error: BstarError


class Load:
    """Threads that call the service through one HAClient and write down what became of every call."""

    def __init__(self, endpoints: list[str], *, threads: int) -> None:
        self.events: list[Event] = []
        self.client = HAClient(endpoints, timeout=CALL_S, on_event=self.events.append)
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._history: list[Answered | Failed] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if exc_type is not None:
            self.client.close()  # ends what waits for a node that will not come
        for thread in self._threads:
            thread.join()
        self.client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.call(f"load-{next(self._numbers)}".encode())
            self._stop.wait(_PAUSE_S)

    def call(self, body: bytes) -> Answered | Failed:
        """Make one call more."""
        started_at = time.monotonic()
        result: Answered | Failed
        try:
            reply = self.client.request(SERVICE, body)
        except BstarError as error:
            result = Failed(body, started_at, time.monotonic(), error)
        else:
            result = Answered(
                body, started_at, time.monotonic(), reply.body, reply.attempts, reply.epoch, reply.endpoint
            )
        with self._lock:
            self._history.append(result)
        return result

    def begin(self, body: bytes) -> Future[Answered | Failed]:
        """Make one call more, in a thread of its own."""
        future: Future[Answered | Failed] = Future()
        thread = threading.Thread(target=lambda: future.set_result(self.call(body)))
        self._threads.append(thread)
        thread.start()
        return future

    @property
    def history(self) -> list[Answered | Failed]:
        """Every call that has ended, in the order of their ends."""
        with self._lock:
            return list(self._history)

    @property
    def answered(self) -> list[Answered]:
        """The calls that were answered."""
        return [call for call in self.history if isinstance(call, Answered)]

    @property
    def failed(self) -> list[Failed]:
        """The calls that were not."""
        return [call for call in self.history if isinstance(call, Failed)]

    def wait_for_replies(self, count: int = 20) -> None:
        """Wait until so many calls that begin from now on have been answered."""
        now = time.monotonic()
        wait_until(
            lambda: sum(call.started_at >= now for call in self.answered) >= count,
            f"{count} more replies",
            limit_s=CALL_S,
        )

    def outage_s(self, since: float) -> float:
        """The longest time without any reply, from the last one before `since` on."""
        ends = [call.ended_at for call in self.answered]
        before = [end for end in ends if end < since][-1:]
        after = [end for end in ends if end >= since]
        return max(b - a for a, b in itertools.pairwise([*before, *after]))

    def verify(self, *, replies_min: int = 20) -> None:
        """Nothing was lost and nothing was crossed, and there was enough to tell."""
        assert len(self.answered) >= replies_min, "too little traffic to say anything"
        assert self.failed == []
        assert [call for call in self.answered if call.reply != call.body] == []

    def verify_epochs(self) -> None:
        """After the first reply under an epoch no call that began later was answered under a lower one."""
        answered = self.answered
        first_at: dict[int, float] = {}
        for call in answered:
            first_at.setdefault(call.epoch, call.ended_at)
        late = [
            call
            for call in answered
            if any(epoch > call.epoch and at < call.started_at for epoch, at in first_at.items())
        ]
        assert late == []


# --- probes -------------------------------------------------------------------------------------------------


@dataclass
class Probe:
    """One request to one node."""

    role: str
    sent_at: float
    replied_at: float | None = None


class Probes:
    """A plain MDP/0.1 client per node that goes on asking, whatever the node is: each request is a vote.

    What a node answers here was answered by that node alone, and what is sent to a node that stands still
    lies in its socket when it wakes up.
    """

    def __init__(self, nodes: Sequence[Broker]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for node in nodes:
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.reconnect_ivl = 10
            socket.connect(node.endpoint)
            self._sockets[node.role] = socket
        self._probes: dict[bytes, Probe] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        for number in itertools.count(1):
            for role, socket in self._sockets.items():
                body = f"probe-{role}-{number}".encode()
                self._probes[body] = Probe(role, time.monotonic())
                with suppress(zmq.Again):  # a full pipe is as good as a lost request
                    socket.send_multipart([EMPTY, CLIENT_01, SERVICE.encode(), body], zmq.NOBLOCK)
                while socket.poll(0):
                    probe = self._probes[socket.recv_multipart()[-1]]
                    assert probe.role == role
                    probe.replied_at = time.monotonic()
            if self._stop.wait(_PROBE_INTERVAL_S):
                return

    def answered(self, role: str, *, sent_after: float) -> list[Probe]:
        """The probes sent to a node after a moment which it answered."""
        return [
            probe
            for probe in list(self._probes.values())
            if probe.role == role and probe.sent_at > sent_after and probe.replied_at is not None
        ]

    def sent(self, role: str, *, after: float) -> int:
        """How many probes went to a node after a moment."""
        return sum(probe.role == role and probe.sent_at > after for probe in list(self._probes.values()))

    def wait_for_reply(self, role: str, *, sent_after: float) -> None:
        """Wait until a node has answered one that was sent after a moment."""
        wait_until(lambda: bool(self.answered(role, sent_after=sent_after)), f"the {role} answers a probe")


# --- the pair -----------------------------------------------------------------------------------------------


class Pair(BrokerPair):
    """Two nodes that know each other, and workers for both. Nothing runs until it is started."""

    workers: tuple[WorkerProcess, ...]

    def __init__(self, folder: Path, timing: Timing = QUICK, **options: Any) -> None:
        super().__init__(folder, Profile(timing), **options)
        self.timing = timing

    def add_workers(self, count: int, *, work_s: float = 0.002, each: int = 1) -> None:
        """Start so many processes of ``each`` workers and wait until every node that runs knows them all."""
        for _ in range(count):
            worker = WorkerProcess(len(self.workers), self, work_s=work_s, workers=each)
            self.workers += (worker,)
            worker.launch()
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until every node that runs knows every worker that runs."""
        count = sum(worker.workers for worker in self.workers if worker.is_running)
        for node in self.nodes:
            if node.is_running:
                node.wait_for_workers(count)

    def load(self, *, threads: int = 4) -> Load:
        """Clients of the pair, as a context manager."""
        return Load(self.endpoints, threads=threads)

    def probes(self) -> Probes:
        """Make a plain client of each node, as a context manager."""
        return Probes(self.nodes)

    def executions(self) -> list[Execution]:
        """What all workers have recorded, in the order of time."""
        return sorted(
            (execution for worker in self.workers for execution in worker.executions()),
            key=lambda execution: execution.at,
        )

    def begun(self) -> list[Execution]:
        """The beginnings of all executions, in the order of time."""
        return [execution for execution in self.executions() if execution.phase == "begin"]

    def wait_for_execution(self, body: bytes) -> WorkerProcess:
        """Wait until a worker has begun a request; returns that worker."""
        text = body.decode()
        wait_until(lambda: any(each.body == text for each in self.begun()), f"{text} is begun")
        return next(self.workers[each.worker] for each in self.begun() if each.body == text)

    def repeated(self) -> list[str]:
        """The requests that were begun more than once."""
        counts = Counter(execution.identity for execution in self.begun())
        return [identity for identity, count in counts.items() if count > 1]

    def verify_executions(self, load: Load) -> None:
        """No reply without an execution, no repetition without its mark, and epochs that never fall."""
        answered = {call.body.decode() for call in load.answered}
        begun = self.begun()
        assert answered <= {execution.body for execution in begun}
        epochs = [execution.epoch for execution in begun]
        assert epochs == sorted(epochs), "a request was begun under an epoch that was over"
        history = CallHistory()
        for each in begun:
            history.called(each.identity)
            objections = history.begun(
                each.identity,
                each.at,
                worker=f"worker-{each.worker}",
                epoch=each.epoch,
                epoch_seen=each.epoch,
                is_redelivered=each.is_redelivered,
            )
            assert list(objections) == []


@contextmanager
def new_pair(timing: Timing = QUICK, **options: Any) -> Iterator[Pair]:
    """Make a pair of which nothing runs yet. When the block fails, its folder stays and is named."""
    folder = Path(tempfile.mkdtemp(prefix="bstar-pair-"))
    with Pair(folder, timing, **options) as pair:
        yield pair
    shutil.rmtree(folder)


@contextmanager
def standing_pair(
    timing: Timing = QUICK, *, workers: int = 2, work_s: float = 0.002, **options: Any
) -> Iterator[Pair]:
    """Run a pair whose primary is active and whose backup is passive, with workers."""
    with new_pair(timing, **options) as pair:
        pair.start()
        pair.add_workers(workers, work_s=work_s)
        yield pair
