"""The EventMQ job manager: a DEALER socket and child processes around the pure ``ManagerSession``."""

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError, RemoteProtocolError
from bstar.net.reactor import Reactor
from bstar.security import Security
from bstar.wire.emq import Queue, Wire, queue_trouble
from bstar.wire.emq_jobs import decode_job, encode_result
from bstar_client.core.emq.manager import Close, ManagerSession, ManagerSettings, Output, Registered, Run
from bstar_client.emq.child import JobRefusedError, check_path
from bstar_client.emq.link import RouterLink
from bstar_client.emq.processes import Processes
from bstar_client.emq.sockets import checked_endpoints, checked_wire, new_id

T = TypeVar("T")

_log = logging.getLogger("bstar.emq")

# A machine of a thousand processes has other troubles.
PROCESSES_MAX = 1_000
# Farewells and last results leave within this time.
_LINGER_MS = 500


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job manager does beside talking.

    ``processes`` run the jobs, one each at a time. They call functions and classes that the modules of
    ``allow`` define, and nothing else; each module stands there by its full name. ``timeout_s`` ends a job
    that has no header ``timeout:n``; one with ``timeout:0`` may take for ever. ``drain_s``: so long a
    stop waits for running jobs.
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
    is filled; none: the router's default. ``wire`` is the routers', ``published`` or ``specification``.
    ``options`` are the fields of ``ManagerOptions``; ``timing`` replaces the published times. Raises
    ConfigurationError. The frames: ``bstar.wire.emq``.
    """

    def __init__(
        self,
        routers: Sequence[str],
        *,
        queues: Sequence[tuple[int, str]] = (),
        security: Security | None = None,
        timing: ManagerSettings | None = None,
        wire: str = Wire.PUBLISHED.value,
        **options: object,
    ) -> None:
        self.options = _converted(options, ManagerOptions)
        self.jobs = 0
        self.refused: Counter[str] = Counter()
        settings = msgspec.structs.replace(
            timing or ManagerSettings(()),
            routers=checked_endpoints(routers),
            queues=_checked_queues(queues),
            wire=checked_wire(wire),
        )
        self._reactor = Reactor(stop_timeout_s=self.options.drain_s)
        self._is_closed = False
        self._routers = settings.routers
        # Why connections ended since a router last knew it: each reason is logged once.
        self._losses: set[str] = set()
        # Jobs that the session gives to a process in this turn.
        self._runs: deque[Run] = deque()
        self._session = ManagerSession(settings, new_id, time.time)
        self._processes: Processes[Run] = Processes(
            self._reactor,
            self.options.processes,
            self.options.allow,
            on_free=lambda now: self._link.carry_out(self._session.freed(now), now),
            on_died=lambda _: self._session.died(),
            on_result=lambda job, result, now: self._link.carry_out(
                self._session.ended(job, result, now), now
            ),
        )
        self._link = RouterLink(
            self._reactor, self._session, self._perform, security=security, linger_ms=_LINGER_MS
        )
        self._reactor.on_stop(self._drain, lambda _: self._session.is_idle)

    @property
    def drops(self) -> Counter[str]:
        """By reason, how many messages were not read, and results not sent."""
        return self._session.drops + Counter({"queue-full": self._link.full})

    @property
    def ends(self) -> Counter[str]:
        """Why processes ended: timeout, died, retired."""
        return self._processes.ends

    def run(self) -> None:
        """Run jobs until SIGTERM, SIGINT or ``stop``; then finish the running ones and say KBYE.

        A second signal ends it at once.
        """
        now = self._reactor.now()
        self._link.carry_out(self._session.start(now), now)
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
        self._link.carry_out(self._session.leave(), self._reactor.now())
        self._processes.close()
        self._link.close()
        self._reactor.close()

    # --- outputs ------------------------------------------------------------------------------------------

    def _perform(self, output: Output, now: float) -> None:
        match output:
            case Run():
                self._runs.append(output)
                if len(self._runs) == 1:
                    self._run_all(now)
            case Close(reason):
                if reason not in self._losses:
                    self._losses.add(reason)
                    _log.warning(
                        "not connected (one of %s): %s; tries again", ", ".join(self._routers), reason
                    )
            case Registered(router):
                self._losses.clear()
                _log.info("registered at %s, %d processes", router, self.options.processes)

    def _run_all(self, now: float) -> None:
        """Each refused job frees its process for the next one that waits, which joins the queue here."""
        while self._runs:
            self._run(self._runs[0], now)
            self._runs.popleft()

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
            self._link.carry_out(self._session.ended(job, encode_result(str(error)), now), now)
            # The process that it was for is still free.
            self._link.carry_out(self._session.freed(now), now)
            return
        self.jobs += 1
        self._processes.run(job, request.message, request.headers.limit_s(self.options.timeout_s), now)

    def _drain(self, now: float) -> None:
        self._link.carry_out(self._session.drain(now), now)


def _converted(value: object, kind: type[T], what: str = "") -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"job manager: {what}{error}") from error


def _checked_queues(queues: Sequence[tuple[int, str]]) -> tuple[Queue, ...]:
    for _, name in _converted(queues, list[tuple[int, str]], "queues: "):
        if (trouble := queue_trouble(name)) is not None:
            raise ConfigurationError(f"job manager: queues: {trouble}")
    return _converted(queues, tuple[Queue, ...], "queues: ")
