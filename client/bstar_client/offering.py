"""What a worker of either shell is told, checked, and the core made of it.

No sockets, no threads, no event loop: ``worker`` and ``aio_worker`` add those, each its own way.
"""

import os
import random
from collections.abc import Mapping
from typing import Literal

from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.fleet import Endpoints, Fleet
from bstar.wire.mmi import PREFIX
from bstar_client.bodies import to_name
from bstar_client.core.worker_dialects import Mdp02Worker, NativeWorker, WorkerDialect
from bstar_client.core.worker_session import WorkerCore, WorkerSettings

__all__ = ["Offer"]


class Offer:
    """A service offered to the nodes of its pair.

    Raises ConfigurationError or LocalProtocolError for what cannot work.
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
        keeps_replies: bool,
    ) -> None:
        fleet = Fleet.of(endpoints, pins)
        self.service = to_name(service)
        if self.service.startswith(PREFIX):
            raise LocalProtocolError(f"services named mmi. belong to the broker: {self.service!r}")
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
            if keeps_replies:
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
