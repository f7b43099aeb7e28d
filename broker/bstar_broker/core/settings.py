"""The broker core's settings, built by the shell from the node's configuration."""

from collections.abc import Mapping

import msgspec

from bstar.wire.description import ServiceLimits
from bstar.wire.limits import FRAMES_MAX, MESSAGE_BYTES_MAX

NO_LIMITS = ServiceLimits()


class BrokerSettings(msgspec.Struct):
    """Times in seconds, bounds in counts and bytes; configs/primary.yaml tells operators more.

    The parts of the core share one object. Only a reload changes it, and only ``RELOADABLE`` fields and
    ``services``, the limits of services by pattern.
    """

    worker_heartbeat_interval_s: float = 1.0
    worker_liveness: int = 4
    mdp_heartbeat_interval_s: float = 2.5
    mdp_liveness: int = 3
    busy_timeout_s: float = 60.0
    request_ttl_s: float = 60.0
    client_check_interval_s: float = 10.0
    service_ttl_s: float = 60.0
    services_max: int = 1_000
    workers_max: int = 10_000
    queue_length_max: int = 125_000
    queue_bytes_max: int = 1 << 30
    requests_per_client_max: int = 100_000
    deliveries_max: int = 5
    message_bytes_max: int = MESSAGE_BYTES_MAX
    message_frames_max: int = FRAMES_MAX
    partials_buffer_bytes_max: int = 16 * 1024 * 1024
    services: dict[str, ServiceLimits] = {}


def services_of(entries: Mapping[str, msgspec.Struct]) -> dict[str, ServiceLimits]:
    """The limits of services from the configuration's ``services``, whose keys have the same names."""
    return {
        pattern: msgspec.convert(msgspec.structs.asdict(each), ServiceLimits)
        for pattern, each in entries.items()
    }


# They take effect with the next request or worker. The others size what exists, or both sides of a link must
# have them alike.
RELOADABLE = (
    "services_max",
    "workers_max",
    "queue_length_max",
    "queue_bytes_max",
    "deliveries_max",
    "partials_buffer_bytes_max",
)
