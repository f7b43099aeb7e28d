"""What a worker of either shell is told, checked, and the core made of it.

No sockets, no threads, no event loop: ``worker`` and ``aio_worker`` add those, each its own way.
"""

import os
import random
from collections.abc import Mapping
from typing import Literal

from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.fleet import Endpoints, Fleet
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
from bstar_client.core.worker_session import WorkerCore, WorkerSettings
from bstar_client.handlers import WorkerHooks

__all__ = ["Offer"]


class Offer:
    """A service offered to the nodes of its pair.

    Raises TypeError, ConfigurationError or LocalProtocolError for what cannot work.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        service: str | bytes,
        *,
        pins: Mapping[str, str] | None,
        dialect: Literal["native", "mdp02"],
        heartbeat_s: float,
        liveness: int,
        settings: WorkerSettings,
        credit_max: int,
        dedupe: object,
        hooks: object,
        link: object,
        context: object,
        journal: object,
    ) -> None:
        check_sockets(link, context, journal)
        check_instance(hooks, WorkerHooks, "hooks")
        check_store(dedupe)
        settings = _checked(settings)
        heartbeat_s = to_seconds(heartbeat_s, "heartbeat_s")
        liveness = to_count(liveness, "liveness", 1)
        fleet = Fleet.of(endpoints, pins)
        check_endpoints(fleet.endpoints)
        self.service = to_name(service)
        if self.service.startswith(PREFIX):
            raise LocalProtocolError(f"services named mmi. belong to the broker: {printable(self.service)}")
        self.pair = fleet.pair_of(self.service)
        self.endpoints = self.pair.endpoints
        credit = settings.credit
        if not 1 <= credit <= credit_max:
            raise ConfigurationError(
                f"credit, how many handlers run at once, is 1 to {credit_max}, not {credit}"
            )
        language: WorkerDialect
        if dialect == "native":
            language = NativeWorker()
        elif dialect == "mdp02":
            if credit != 1:
                raise ConfigurationError(
                    "plain MDP/0.2 gives a worker one request at a time: credit must be 1"
                )
            if dedupe is not None:
                raise ConfigurationError(
                    "plain MDP/0.2 does not name requests, so repetitions cannot be known: no dedupe"
                )
            language = Mdp02Worker(heartbeat_s, heartbeat_s * liveness)
        else:
            raise ConfigurationError(f"dialect is 'native' or 'mdp02', not {dialect!r}")
        self.is_plain = dialect == "mdp02"
        # A routing id of libzmq's own begins with a zero.
        name = b"" if self.is_plain else b"\x01" + os.urandom(19)
        self.core = WorkerCore(
            self.endpoints, self.service, language, jitter=random.random, settings=settings, name=name
        )


def _checked(settings: WorkerSettings) -> WorkerSettings:
    timeout_s = settings.handler_timeout_s
    backoff_min_s = to_seconds(settings.backoff_min_s, "backoff_min_s")
    backoff_max_s = to_seconds(settings.backoff_max_s, "backoff_max_s")
    if backoff_max_s < backoff_min_s:
        raise ConfigurationError(f"backoff_max_s, {backoff_max_s}, is below backoff_min_s, {backoff_min_s}")
    return WorkerSettings(
        to_count(settings.credit, "credit", 1),
        None if timeout_s is None else to_seconds(timeout_s, "handler_timeout_s"),
        to_count(settings.stuck_handlers_max, "stuck_handlers_max", 1),
        to_seconds(settings.drain_timeout_s, "drain_timeout_s", may_be_zero=True),
        backoff_min_s,
        backoff_max_s,
        settings.running_max,
    )
