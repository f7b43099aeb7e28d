"""The EventMQ job manager: a DEALER socket and child processes around the pure ``ManagerSession``."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import zmq

from bstar.closing import Closing
from bstar.errors import ConfigurationError, RemoteProtocolError
from bstar.reactor import Reactor
from bstar.security import Security
from bstar.wire.emq import Queue
from bstar.wire.emq_jobs import decode_job, encode_result
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.core.emq_manager import (
    Close,
    ManagerSession,
    ManagerSettings,
    Open,
    Output,
    Registered,
    Run,
    Send,
)
from bstar_client.emq.child import JobRefusedError, check_path
from bstar_client.emq.processes import Processes
from bstar_client.emq.sockets import Dealer, checked_endpoints, new_id

T = TypeVar("T")

_log = logging.getLogger("bstar.emq")

# A machine of a thousand processes has other troubles.
PROCESSES_MAX = 1_000
# Farewells and last results leave within this time.
_LINGER_MS = 500
_BURST_MAX = 200


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job manager does beside talking.

    ``processes`` run the jobs, one each at a time. They call functions and classes that the modules of
    ``allow`` define, and nothing else; each module stands there by its full name. ``timeout_s`` ends a job
    that has no header ``timeout:n``, or ``timeout:0``. ``drain_s``: so long a stop waits for running jobs.
    """

    allow: tuple[str, ...]
    processes: int = 4
    timeout_s: float = 300.0
    drain_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.allow or not all(self.allow):
            raise ConfigurationError("allow names no module: without one, every job would be refused")
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise ConfigurationError(f"processes is {self.processes}: choose 1 to {PROCESSES_MAX}")
        if self.timeout_s <= 0 or self.drain_s < 0:
            raise ConfigurationError("timeout_s must be above 0, drain_s 0 or more")


class EmqJobManager(Closing):
    """Runs jobs of EventMQ: ``EmqJobManager(["tcp://127.0.0.1:47290"], allow=["shop.jobs"]).run()``.

    ``routers`` are backends, in the order in which they take turns: those of the two nodes of a pair, or the
    router and its failover address. ``queues`` are ``(weight, name)`` in the order in which a free process
    is filled; none: the router's default. ``options`` are the fields of ``ManagerOptions``; ``timing``
    replaces the published times. Raises ConfigurationError. The frames: ``bstar.wire.emq``.
    """

    def __init__(
        self,
        routers: Sequence[str],
        *,
        queues: Sequence[tuple[int, str]] = (),
        security: Security | None = None,
        timing: ManagerSettings | None = None,
        **options: object,
    ) -> None:
        self.options = _converted(options, ManagerOptions)
        self.jobs = 0
        self.refused: Counter[str] = Counter()
        self._security = security
        settings = msgspec.structs.replace(
            timing or ManagerSettings(()),
            routers=checked_endpoints(routers),
            queues=_converted(queues, tuple[Queue, ...], "queues: "),
        )
        self._reactor = Reactor(stop_timeout_s=self.options.drain_s)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer: Dealer | None = None
        self._connections = 0
        self._is_closed = False
        self._session = ManagerSession(settings, new_id, time.time)
        self._processes: Processes[Run] = Processes(
            self._reactor,
            self.options.processes,
            self.options.allow,
            on_free=lambda now: self._carry_out(self._session.freed(now), now),
            on_died=lambda _: self._session.died(),
            on_result=lambda job, result, now: self._carry_out(self._session.ended(job, result, now), now),
        )
        self._reactor.add_machine(
            self._session.next_deadline, lambda now: self._carry_out(self._session.handle_timer(now), now)
        )
        self._reactor.on_stop(self._drain, lambda _: self._session.is_idle)

    @property
    def drops(self) -> Counter[str]:
        """By reason, how many messages were not read, and results not sent."""
        return self._session.drops

    @property
    def ends(self) -> Counter[str]:
        """Why processes ended: timeout, died, retired."""
        return self._processes.ends

    def run(self) -> None:
        """Run jobs until SIGTERM, SIGINT or ``stop``; then finish the running ones and say KBYE.

        A second signal ends it at once.
        """
        now = self._reactor.now()
        self._carry_out(self._session.start(now), now)
        self._reactor.run()

    def stop(self) -> None:
        """Ask ``run`` to drain and to end, from any thread."""
        self._reactor.stop()

    def close(self) -> None:
        """Kill the processes, free socket and context. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        # Before the processes end: their deaths are no results.
        self._carry_out(self._session.leave(), self._reactor.now())
        self._processes.close()
        self._close_dealer()
        self._reactor.close()
        self._context.term()

    # --- outputs ------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: list[Output], now: float) -> None:
        for output in outputs:
            match output:
                case Send(frames):
                    if self._dealer is not None and not self._dealer.send(frames):
                        self.drops["queue-full"] += 1
                case Run():
                    self._run(output, now)
                case Open(router, identity):
                    try:
                        self._open(router, identity)
                    except zmq.ZMQError as error:
                        self._carry_out(self._session.lost(f"no socket: {error.strerror}", now), now)
                case Close(reason):
                    _log.warning("connection lost: %s", reason)
                    self._close_dealer()
                case Registered(router):
                    _log.info("registered at %s, %d processes", router, self.options.processes)

    def _run(self, job: Run, now: float) -> None:
        """Start the job in a free process, or answer for it if none may run it."""
        request = job.request
        try:
            check_path(decode_job(request.message), self.options.allow)
        except (RemoteProtocolError, JobRefusedError) as error:
            reason = "job" if isinstance(error, RemoteProtocolError) else "not-allowed"
            self.refused[reason] += 1
            if self.refused[reason] == 1:
                _log.warning("%s; the next ones are only counted", error)
            self._carry_out(self._session.ended(job, encode_result(str(error)), now), now)
            # The process that it was for is still free.
            self._carry_out(self._session.freed(now), now)
            return
        self.jobs += 1
        timeout_s = request.headers.timeout_s or self.options.timeout_s
        self._processes.run(job, request.message, timeout_s, now)

    def _open(self, router: str, identity: bytes) -> None:
        self._dealer = dealer = Dealer(
            self._context,
            router,
            identity,
            security=self._security,
            attempt=self._connections,
            linger_ms=_LINGER_MS,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        self._connections += 1
        self._reactor.add_source(dealer.monitor, lambda now: self._on_monitor(dealer, now))
        self._reactor.add_source(dealer.socket, lambda now: self._on_readable(dealer, now))

    def _close_dealer(self) -> None:
        if self._dealer is not None:
            self._reactor.remove(self._dealer.monitor)
            self._reactor.remove(self._dealer.socket)
            self._dealer.close()
            self._dealer = None

    # --- inputs -------------------------------------------------------------------------------------------

    def _on_readable(self, dealer: Dealer, now: float) -> None:
        for _ in range(_BURST_MAX):
            frames = dealer.receive() if dealer is self._dealer else None
            if frames is None:
                return
            self._carry_out(self._session.receive(frames, now), now)

    def _on_monitor(self, dealer: Dealer, now: float) -> None:
        while dealer is self._dealer and (is_connected := dealer.connection()) is not None:
            if not is_connected:
                self._carry_out(self._session.lost("the connection broke or was refused", now), now)

    def _drain(self, now: float) -> None:
        self._carry_out(self._session.drain(now), now)


def _converted(value: object, kind: type[T], what: str = "") -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"job manager: {what}{error}") from error
