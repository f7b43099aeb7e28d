"""Tells a dead worker from a stuck one.

A worker's heartbeats need its interpreter: a handler that holds the GIL or blocks an event loop stops them.
So a native worker opens a second connection, its *keepalive*, and names its routing id in READY. Only ZMTP's
PING with a time to live (ZMQ_HEARTBEAT_TTL) goes over it. libzmq's I/O thread sends it without the GIL. When
the worker's process ends, is stopped or is cut off, the broker's libzmq closes that connection.

If a worker with requests is silent past its expiry, the broker *probes* it: it sends a message over the
keepalive. If there is no connection, the worker is lost. Otherwise it is *stuck*: it keeps its requests and
gets no others. The broker probes it each heartbeat interval until it answers or ``busy_s`` has passed.
"""

from bstar.base.printable import printable
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.outputs import Notice, Output, Send
from bstar_broker.core.records import WorkerRecord

# The log names one stuck worker per second; the metrics count all.
_NOTICE_INTERVAL_S = 1.0


class Keepalives:
    """The keepalives of one broker's workers, and which of these are stuck."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # By the routing ids of their keepalives.
        self._workers: dict[bytes, WorkerRecord] = {}
        self._reported: set[WorkerRecord] = set()
        self._notice_at = 0.0

    def add(self, worker: WorkerRecord, routing_id: bytes) -> None:
        """This worker has a keepalive. An id that another worker has already is dropped."""
        if routing_id in self._workers or routing_id in self._ledger.workers:
            self._ledger.drop("keepalive-taken")
            return
        self._workers[routing_id] = worker
        worker.keepalive = routing_id

    def remove(self, worker: WorkerRecord) -> None:
        """This worker is gone."""
        if worker.keepalive:
            del self._workers[worker.keepalive]
            self._reported.discard(worker)

    def probe(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> bool:
        """Probe a silent worker that holds requests. False if it has been stuck for too long."""
        since = worker.silent_since
        if since is None:
            # The next sweeps warn when it has been stuck for a while.
            worker.silent_since = since = worker.expires_at - worker.lease.expiry_s
            worker.service.idle.pop(worker, None)
            worker.service.stuck += 1
            worker.service.tally.stalls += 1
        elif now - since >= worker.lease.busy_s:
            text = f"{self._name(worker)} has not answered for {now - since:.1f} s and counts as lost"
            outputs.append(Notice(text))
            return False
        elif worker not in self._reported and now >= self._notice_at:
            # Its keepalive was connected at the last probe.
            self._notice_at = now + _NOTICE_INTERVAL_S
            self._reported.add(worker)
            text = (
                f"{self._name(worker)} has not answered for {now - since:.1f} s, but its process lives: it "
                f"keeps its {worker.held} request(s) and gets no others. Does its handler hold the GIL or "
                "block the event loop?"
            )
            outputs.append(Notice(text))
        worker.expires_at = now + worker.lease.heartbeat_s
        status = self._ledger.status(now)
        outputs.append(Send(worker.codec.heartbeat(worker.keepalive, (), status.state, status.epoch)))
        return True

    def heard(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> None:
        """A stuck worker answers again."""
        assert worker.silent_since is not None
        if worker in self._reported:
            self._reported.remove(worker)
            text = f"{self._name(worker)} answers again, after {now - worker.silent_since:.1f} s"
            outputs.append(Notice(text))
        worker.silent_since = None
        worker.service.stuck -= 1

    def unreachable(self, routing_id: bytes) -> WorkerRecord | None:
        """A probe found no connection. Returns the worker if it is still stuck: it is lost."""
        worker = self._workers.get(routing_id)
        return worker if worker is not None and worker.silent_since is not None else None

    def stalled(self, gap_s: float) -> None:
        """The broker's process was away, and libzmq with it. It may have closed keepalives of live workers.
        They have one interval to come back.
        """
        for worker in self._workers.values():
            # Their time to live. There are PINGs in each half of it, so a shorter pause closes none, and a
            # node that pauses again and again does not wait for dead workers without end.
            ttl_s = worker.lease.expiry_s - worker.lease.heartbeat_s
            if gap_s >= ttl_s / 2:
                worker.expires_at += worker.lease.heartbeat_s
            if worker.silent_since is not None:
                worker.silent_since += gap_s

    @staticmethod
    def _name(worker: WorkerRecord) -> str:
        return f"worker {worker.routing_id.hex()} of service {printable(worker.service.name)}"
