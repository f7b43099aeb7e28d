"""Opens the journal of a node from the node's settings."""

import hashlib
from typing import Any

import msgspec

from bstar.journal import Journal, JournalOptions
from bstar.settings import Settings, flatten

_US = 1e6


def config_digest(settings: Settings) -> str:
    """16 hex digits that differ when any key does."""
    return hashlib.sha256(msgspec.json.encode(flatten(settings), order="sorted")).hexdigest()[:16]


def options_of(settings: Settings) -> JournalOptions | None:
    """The section ``journal`` for the writer; None if the node keeps no journal."""
    if settings.journal.directory is None:
        return None
    return msgspec.convert(msgspec.structs.asdict(settings.journal), JournalOptions)


def open_journal(
    options: JournalOptions, settings: Settings, *, node_id: bytes, epoch: int, **seams: Any
) -> Journal:
    """Begin the journal of this run of a node; ConfigurationError if its directory cannot be used.

    ``epoch`` is the highest that it knows. ``seams`` are the writer's, for tests.
    """
    return Journal(
        options,
        pair=settings.pair,
        node=settings.role,
        source="broker",
        boot=node_id.hex(),
        started={
            "config": config_digest(settings),
            "endpoints": settings.endpoints.clients,
            "epoch": epoch,
            "heartbeat_us": round(settings.timing.heartbeat_interval_s * _US),
            "failover_timeout_us": round(settings.timing.failover_timeout_max_s * _US),
        },
        **seams,
    )
