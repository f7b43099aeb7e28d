"""The base of both workers: it checks the arguments, makes the core and answers questions about it."""

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, get_args

import msgspec
import zmq

import bstar
from bstar.base.printable import printable
from bstar.errors import ClosedError, ConfigurationError, ForkedError, LocalProtocolError
from bstar.security import Security
from bstar.wire.limits import CREDIT_MAX
from bstar.wire.messages import Process
from bstar.wire.mmi import PREFIX
from bstar_client.arguments.bodies import to_name
from bstar_client.arguments.checks import (
    check_instance,
    check_shared,
    check_store,
    names_its_class,
    to_count,
    to_seconds,
    to_seconds_or_none,
    warn_of_lone_nodes,
)
from bstar_client.arguments.environment import Given, or_environment
from bstar_client.arguments.settings import LinkSettings, Net, WorkerProtocol, secured
from bstar_client.core.figures import WorkerFigures, figures_of
from bstar_client.core.worker.dialects import (
    Mdp01Worker,
    Mdp02Worker,
    NativeWorker,
    ParanoidWorker,
    PlainWorker,
    SimpleWorker,
)
from bstar_client.core.worker.handler_times import HandlerTimes
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.node_sessions import WorkerCounters
from bstar_client.core.worker.session import WorkerCore
from bstar_client.journal import JournalPlace, WorkJournal, named_after
from bstar_client.links.links import SOCKETS
from bstar_client.workers.describe import check_description, check_version, first_line, frame_of
from bstar_client.workers.handlers import Request, WorkerHooks
from bstar_client.workers.replies import ReplyStore
from bstar_client.workers.typed import bind

if TYPE_CHECKING:  # most workers serve none
    from bstar.net.http_endpoint import HttpPlace
    from bstar_client.workers.probes import WorkerProbes

_HandlerT = TypeVar("_HandlerT")

# How long a DISCONNECT or a last reply may take to leave the process; with no linger it vanishes (T-09).
LINGER_MS = 300
THREADS_MAX = 1_000

_PLAIN: dict[str, Callable[[float, float], PlainWorker]] = {
    "mdp01": Mdp01Worker,
    "mdp02": Mdp02Worker,
    "ppp": ParanoidWorker,
    "spp": SimpleWorker,
}


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``Worker``, checked. ``threads``: how many handlers run at once.

    ``endpoints`` are those of the pair that the service belongs to.
    """

    net: Net
    endpoints: tuple[str, ...]
    service: bytes
    is_plain: bool
    limits: WorkerLimits
    threads: int
    dedupe: ReplyStore | None
    hooks: WorkerHooks
    link: LinkSettings
    context: "zmq.Context[zmq.Socket[bytes]] | None"
    journal: JournalPlace | None
    http: "HttpPlace | None"

    def open_journal(self) -> WorkJournal | None:
        """Open the journal, if the settings name one. ConfigurationError if it cannot be written."""
        if self.journal is None:
            return None
        return WorkJournal(self.journal, self.endpoints, self.service, is_plain=self.is_plain)


class BaseWorker(ABC, Generic[_HandlerT]):
    """Base of ``Worker``, which explains the arguments, and ``AsyncWorker``.

    Raises TypeError, ConfigurationError or LocalProtocolError for what cannot work.
    """

    # The credit of a native worker that names neither credit nor threads, and the most without threads.
    _credit_default: ClassVar[int]
    _credit_max: ClassVar[int]
    _net: Net = SOCKETS

    @names_its_class
    def __init__(
        self,
        endpoints: Given,
        service: str | bytes,
        handler: _HandlerT | None = None,
        *,
        version: str = "",
        description: str | None = None,
        pins: Mapping[str, str] | None = None,
        dialect: WorkerProtocol = "native",
        credit: int | None = None,
        threads: int | None = None,
        handler_timeout_s: float | None = None,
        stuck_handlers_max: int = 3,
        drain_timeout_s: float = 10.0,
        cancel_grace_s: float = 1.0,
        backoff_min_s: float = 0.1,
        backoff_max_s: float = 5.0,
        heartbeat_s: float | None = None,
        liveness: int = 3,
        dedupe: ReplyStore | None = None,
        hooks: WorkerHooks | None = None,
        link: LinkSettings | None = None,
        security: Security | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        journal: JournalPlace | None = None,
        http: "HttpPlace | str | None" = None,
    ) -> None:
        endpoints, security = or_environment(endpoints, security)
        fleet = check_shared(endpoints, pins, dialect, link, context, journal, get_args(WorkerProtocol))
        check_instance(hooks, WorkerHooks, "hooks")
        check_store(dedupe)
        is_plain = dialect != "native"
        if not is_plain:
            warn_of_lone_nodes(fleet, self)
        if threads is not None:
            threads = to_count(threads, "threads", 1, THREADS_MAX)
        if credit is None:
            credit = 1 if is_plain else threads or self._credit_default
        limits = WorkerLimits(
            to_count(credit, "credit", 1, CREDIT_MAX),
            to_seconds_or_none(handler_timeout_s, "handler_timeout_s"),
            to_count(stuck_handlers_max, "stuck_handlers_max", 1),
            to_seconds(drain_timeout_s, "drain_timeout_s", may_be_zero=True),
            to_seconds(backoff_min_s, "backoff_min_s"),
            to_seconds(backoff_max_s, "backoff_max_s"),
            threads,
            to_seconds(cancel_grace_s, "cancel_grace_s", may_be_zero=True),
        )
        if threads is None and limits.credit > self._credit_max:
            raise ConfigurationError(
                f"without threads a worker has as many as credit, {self._credit_max} at most: for credit "
                f"{limits.credit} say how many handlers run at once, threads=16"
            )
        if is_plain and (limits.credit != 1 or (threads or 1) != 1):
            raise ConfigurationError(
                f"{dialect} gives a worker one request at a time: credit and threads must be 1"
            )
        if threads is not None and threads > limits.credit:
            raise ConfigurationError(
                f"a worker with credit={limits.credit} never has more requests at once, so {threads} threads "
                f"cannot all work: give it credit={threads} or more, or fewer threads"
            )
        if backoff_max_s < backoff_min_s:
            raise ConfigurationError(
                f"backoff_max_s, {backoff_max_s}, is below backoff_min_s, {backoff_min_s}"
            )
        if heartbeat_s is None:
            heartbeat_s = 1.0 if dialect == "ppp" else 2.5
        heartbeat_s = to_seconds(heartbeat_s, "heartbeat_s")
        expiry_s = heartbeat_s * to_count(liveness, "liveness", 1)
        if is_plain and dedupe is not None:
            raise ConfigurationError(
                f"dedupe needs the native dialect: {dialect} has no identities for requests"
            )
        self._version, self._description = check_version(version), check_description(description)
        if is_plain and (version or description):
            raise ConfigurationError(
                f"version and description need the native dialect: {dialect} describes no services"
            )
        self.service = to_name(service)
        if self.service.startswith(PREFIX):
            raise LocalProtocolError(f"services named mmi. belong to the broker: {printable(self.service)}")
        pair = fleet.pair_of(self.service)
        self.endpoints = pair.endpoints
        self._settings = WorkerSettings(
            net=self._net,
            endpoints=self.endpoints,
            service=self.service,
            is_plain=is_plain,
            limits=limits,
            threads=threads or limits.credit,
            dedupe=dedupe,
            hooks=hooks or WorkerHooks(),
            link=secured(link or LinkSettings(), security),
            context=context,
            journal=None if journal is None else named_after(journal, pair),
            http=None if http is None else _place_of(http),
        )
        self._dialect = (
            _PLAIN[dialect](heartbeat_s, expiry_s) if is_plain else NativeWorker(process=_this_process())
        )
        self._core = WorkerCore(
            self.endpoints,
            self.service,
            self._dialect,
            jitter=random.random,
            limits=limits,
            # The name of its connections; a routing id of libzmq's own begins with a zero.
            name=b"" if is_plain else b"\x01" + os.urandom(19),
        )
        self._pid = os.getpid()
        self._has_begun = False
        self._probes: WorkerProbes | None = None
        # As a function of a Request.
        self._handler: Callable[[Request], Any] | None = None
        self._init_shell()
        if handler is not None:
            self.handler(handler)

    def _bind(self, function: Callable[..., Any]) -> Callable[[Request], Any]:
        """The handler as a function of a Request; the nodes are told what it says of the service."""
        bound = bind(function)
        if isinstance(self._dialect, NativeWorker):
            told = first_line(function) if self._description is None else self._description
            self._dialect.description = frame_of(self.service, self._version, told, bound)
        return bound

    @abstractmethod
    def _init_shell(self) -> None:
        """Make what the shell has from the beginning."""

    @abstractmethod
    def handler(self, function: Any) -> Any:  # Any: each shell narrows it to its own handlers
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""

    @abstractmethod
    def _answers(self, timeout_s: float) -> bool:
        """True if the worker's loop makes a turn within that time. For any other thread."""

    def figures(self) -> WorkerFigures:
        """The worker at this moment, for metrics. Any thread may ask."""
        return figures_of(self._core, self.service, self._net.clock())

    def time_handlers(self) -> None:
        """Keep a histogram of the handlers' seconds from now on (``bstar_client.metrics``)."""
        if self._core.times is None:
            self._core.times = HandlerTimes()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: make one in each process")

    def __repr__(self) -> str:
        """Its service, and which nodes have registered it."""
        name = type(self).__name__
        if not hasattr(self, "_core"):
            return f"<{name}, not made>"
        figures = self.figures()
        registered = [node for node, is_registered in figures.registered.items() if is_registered]
        words = [
            f'"{figures.service}" at {", ".join(self.endpoints)}',
            f"registered at {', '.join(registered) or 'no node'}",
            f"{figures.held} requests",
        ]
        if figures.is_stopping:
            words.append("stopping")
        if self._settings.link.security is not None:
            words.append(f"key {self._settings.link.security.key.name}")
        return f"<{name} {'; '.join(words)}>"

    @property
    def http_url(self) -> str | None:
        """Where its health and metrics are, while it runs; None without ``http``."""
        return None if self._probes is None else self._probes.url

    @property
    def counters(self) -> WorkerCounters:
        """Counts of what happened so far."""
        return self._core.counters

    @property
    def epoch(self) -> int:
        """The highest epoch that a node served in; requests of lower ones are refused."""
        return self._core.epoch

    def _check_begin(self) -> None:
        """Raise what forbids to serve now."""
        kind = type(self).__name__
        if self._pid != os.getpid():
            raise ForkedError(f"this worker was made before fork(): make a new {kind} in the child process")
        if self._has_begun:
            raise ClosedError("a worker runs once: make a new one")
        if self._handler is None:
            raise ConfigurationError("the worker has no handler: pass one or use @worker.handler")

    def _open_probes(self) -> None:
        """Listen for probes, if the settings say where. ConfigurationError if that is not possible."""
        place = self._settings.http
        if place is not None:
            from bstar_client.workers.probes import WorkerProbes, exposition_of  # noqa: PLC0415

            self._probes = WorkerProbes(place, self.figures, self._answers, exposition_of(self))

    def _close_probes(self) -> None:
        if self._probes is not None:
            self._probes.close()


def _this_process() -> Process:
    """What operators get to see of this worker at a node (``bstar workers ls``)."""
    return Process(os.uname().nodename, os.getpid(), bstar.__version__)


def _place_of(place: "HttpPlace | str") -> "HttpPlace":
    from bstar.net.http_endpoint import HttpPlace  # noqa: PLC0415 - TLS and HTTP: 4 MiB that most workers need not

    if not isinstance(place, str):
        check_instance(place, HttpPlace, "http")
    return HttpPlace.of(place)
