"""Makes the EventMQ front from a node's settings."""

import os
import time
from functools import partial
from uuid import uuid4

from bstar.errors import ConfigurationError
from bstar.settings import Settings
from bstar.wire.emq import Wire
from bstar_broker.core.front import Front, Inlet
from bstar_broker.fronts.emq.desk import ADMIN, CLIENTS, NAME, SUBSCRIBERS, WORKERS, Desk, EmqSettings
from bstar_broker.fronts.emq.front import EmqFront
from bstar_broker.fronts.emq.publications import QUEUE_MAX, may_subscribe
from bstar_broker.fronts.plan import Door, Plan


def plans(settings: Settings) -> list[Plan]:
    """One if the front is on. ConfigurationError if a door is missing."""
    options = settings.fronts.emq
    places = {
        CLIENTS: options.clients,
        WORKERS: options.workers,
        ADMIN: options.admin,
        SUBSCRIBERS: options.subscribers,
    }
    if not any(places.values()):
        return []
    for name in (CLIENTS, WORKERS):
        if places[name] is None:
            raise ConfigurationError(
                f"fronts.emq.{name} is missing: EventMQ needs a door for clients and one for job managers"
            )
    doors = tuple(
        Door(name, f"fronts.emq.{name}", endpoint, "pub", QUEUE_MAX, may_subscribe)
        if name == SUBSCRIBERS
        else Door(name, f"fronts.emq.{name}", endpoint)
        for name, endpoint in places.items()
        if endpoint
    )
    own = EmqSettings(
        default_queue=options.default_queue,
        keeps_unknown_queues=options.unknown_queue == "keep",
        heartbeat_s=options.heartbeat_interval_s,
        expires_s=options.heartbeat_interval_s * options.liveness,
        job_timeout_s=options.job_timeout_s,
        has_external_scheduler=options.scheduler == "external",
        has_store=settings.store.directory is not None,
        may_disconnect=options.allow_disconnect,
        has_subscribers=options.subscribers is not None,
        wire=Wire(options.wire),
    )
    return [Plan(NAME, partial(_make, own), doors)]


def _make(settings: EmqSettings, inlet: Inlet) -> Front:
    desk = Desk(inlet, settings, lambda: str(uuid4()).encode(), time.time)
    return EmqFront(desk, os.urandom(16))
