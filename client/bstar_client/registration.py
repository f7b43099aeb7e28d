"""What a program tells a worker of either shell, checked and as one frozen object."""

import os
import random
from collections.abc import Mapping
from typing import Literal

import msgspec
import zmq

from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.fleet import Endpoints, Fleet, Pair
from bstar.printable import printable
from bstar.wire.mmi import PREFIX
from bstar_client.bodies import to_name
from bstar_client.checks import (
    check_endpoints,
    check_instance,
    check_sockets,
    check_store,
    to_count,
    to_seconds,
)
from bstar_client.core.worker_dialects import Mdp02Worker, NativeWorker, WorkerDialect
from bstar_client.core.worker_jobs import WorkerLimits
from bstar_client.core.worker_session import WorkerCore
from bstar_client.handlers import WorkerHooks
from bstar_client.journal import JournalPlace, WorkJournal, named_after, open_journal
from bstar_client.replies import ReplyStore
from bstar_client.settings import LinkSettings

# How long a DISCONNECT or a last reply may take to leave the process; with no linger it vanishes (T-09).
LINGER_MS = 300


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``Worker`` and ``AsyncWorker``, checked, with their meaning and names.

    ``pair`` is the one of the fleet that the service belongs to. ``threads``: how many handlers run at once.
    """

    pair: Pair
    service: bytes
    dialect: WorkerDialect
    is_plain: bool
    limits: WorkerLimits
    threads: int
    dedupe: ReplyStore | None
    hooks: WorkerHooks
    link: LinkSettings
    context: "zmq.Context[zmq.Socket[bytes]] | None"
    journal: JournalPlace | None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The nodes at which the worker registers."""
        return self.pair.endpoints

    @classmethod
    def of(
        cls,
        endpoints: Endpoints,
        service: str | bytes,
        *,
        pins: Mapping[str, str] | None,
        dialect: Literal["native", "mdp02"],
        limits: WorkerLimits,
        credit_max: int,
        heartbeat_s: float,
        liveness: int,
        dedupe: ReplyStore | None,
        hooks: WorkerHooks | None,
        link: LinkSettings | None,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        journal: JournalPlace | None,
    ) -> "WorkerSettings":
        """Check everything. TypeError, ConfigurationError or LocalProtocolError for what cannot work."""
        check_sockets(link, context, journal)
        check_instance(hooks, WorkerHooks, "hooks")
        check_store(dedupe)
        limits = _checked(limits)
        heartbeat_s = to_seconds(heartbeat_s, "heartbeat_s")
        liveness = to_count(liveness, "liveness", 1)
        fleet = Fleet.of(endpoints, pins)
        check_endpoints(fleet.endpoints)
        name = to_name(service)
        if name.startswith(PREFIX):
            raise LocalProtocolError(f"services named mmi. belong to the broker: {printable(name)}")
        credit = limits.credit
        if not 1 <= credit <= credit_max:
            raise ConfigurationError(
                f"credit, how many handlers run at once, is 1 to {credit_max}, not {credit}"
            )
        if dialect not in ("native", "mdp02"):
            raise ConfigurationError(f"dialect is 'native' or 'mdp02', not {dialect!r}")
        if dialect == "mdp02" and credit != 1:
            raise ConfigurationError("plain MDP/0.2 gives a worker one request at a time: credit must be 1")
        if dialect == "mdp02" and dedupe is not None:
            raise ConfigurationError(
                "plain MDP/0.2 does not name requests, so repetitions cannot be known: no dedupe"
            )
        pair = fleet.pair_of(name)
        return cls(
            pair=pair,
            service=name,
            dialect=NativeWorker()
            if dialect == "native"
            else Mdp02Worker(heartbeat_s, heartbeat_s * liveness),
            is_plain=dialect == "mdp02",
            limits=limits,
            threads=min(credit, limits.running_max or credit),
            dedupe=dedupe,
            hooks=hooks or WorkerHooks(),
            link=link or LinkSettings(),
            context=context,
            journal=named_after(journal, pair),
        )

    def new_core(self) -> WorkerCore:
        """The core of a worker with these settings."""
        # The name of its connections; a routing id of libzmq's own begins with a zero.
        name = b"" if self.is_plain else b"\x01" + os.urandom(19)
        return WorkerCore(
            self.endpoints, self.service, self.dialect, jitter=random.random, limits=self.limits, name=name
        )

    def open_journal(self) -> WorkJournal | None:
        """Begin the journal, if there is to be one. ConfigurationError if it cannot be written."""
        if self.journal is None:
            return None
        journal = open_journal(self.journal, "worker", self.endpoints, self.service)
        return WorkJournal(journal, self.endpoints, self.service, is_plain=self.is_plain)


def _checked(limits: WorkerLimits) -> WorkerLimits:
    timeout_s = limits.handler_timeout_s
    backoff_min_s = to_seconds(limits.backoff_min_s, "backoff_min_s")
    backoff_max_s = to_seconds(limits.backoff_max_s, "backoff_max_s")
    if backoff_max_s < backoff_min_s:
        raise ConfigurationError(f"backoff_max_s, {backoff_max_s}, is below backoff_min_s, {backoff_min_s}")
    return WorkerLimits(
        to_count(limits.credit, "credit", 1),
        None if timeout_s is None else to_seconds(timeout_s, "handler_timeout_s"),
        to_count(limits.stuck_handlers_max, "stuck_handlers_max", 1),
        to_seconds(limits.drain_timeout_s, "drain_timeout_s", may_be_zero=True),
        backoff_min_s,
        backoff_max_s,
        limits.running_max,
    )
