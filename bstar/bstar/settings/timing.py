"""How fast a node notices things: the keys of ``timing``, and the profiles that give them their numbers.

null means "what the profile says". The loader puts the profile's number in, so that code never meets a null.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bstar.wire.limits import HEARTBEAT_S_MAX, HEARTBEAT_S_MIN

ProfileName = Literal["auto", "lan", "wan", "guide"]


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast things are noticed. Times in seconds; null takes what the profile says."""

    heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between two state messages to the peer. The same on both nodes.",
        ),
    ]
    failover_timeout_s: Annotated[
        float,
        Meta(
            ge=2 * HEARTBEAT_S_MIN,
            le=600,
            description="Seconds of silence after which the peer counts as dead; also the longest pause"
            " that an active node survives as active. The same on both nodes. Clients need "
            "longer deadlines.",
        ),
    ]
    failover_timeout_max_s: Annotated[
        float,
        Meta(
            ge=2 * HEARTBEAT_S_MIN,
            le=600,
            description="Above failover_timeout_s: the nodes adapt the timeout between the two. The "
            "same, or not set beside it: the timeout is fixed. A node that has not heard "
            "its peer yet waits for this long. The same on both nodes.",
        ),
    ]
    expire_on_refused: Annotated[
        bool,
        Meta(
            description="Whether the peer counts as dead at once if its endpoints.state refuses "
            "connections. Say false if anything between the nodes could refuse in the name "
            "of a living process (a proxy, a NAT, a firewall that rejects, a service "
            "address), or both may serve."
        ),
    ]
    worker_heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats with native workers. They learn it from the node.",
        ),
    ]
    worker_liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="How many silent intervals make a native worker gone: its expiry is "
            "worker_heartbeat_interval_s × worker_liveness. One whose process lives keeps "
            "its requests for busy_timeout_s.",
        ),
    ]
    mdp_heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats with plain Majordomo workers. They cannot learn it:"
            " set what they are built with. Published ones use 2.5.",
        ),
    ]
    mdp_liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="How many silent intervals make a plain Majordomo worker gone: its expiry is "
            "mdp_heartbeat_interval_s × mdp_liveness.",
        ),
    ]
    busy_timeout_s: Annotated[
        float,
        Meta(
            ge=0.02,
            le=86_400,
            description="Seconds that a worker may be silent while it works, if its process lives: a "
            "native one whose handler holds the GIL or blocks the loop, or a plain one "
            "without heartbeats. A dead process or machine is noticed by its connection.",
        ),
    ]
    request_ttl_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Seconds that a request may wait in a queue. A native one then goes back to its"
            " client as busy, and comes again; a plain one is dropped and counted.",
        ),
    ]
    client_check_interval_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds between messages to a native client whose requests wait. If its "
            "connection is gone, they leave the queue. 0 never checks: they are executed "
            "although no client takes the reply.",
        ),
    ]
    service_ttl_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Seconds after which the node forgets a service without workers and requests.",
        ),
    ]
    drain_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds that a stopping node gives its workers to finish before it hands the "
            "role over. 0 stops at once. A switchover is called off after it.",
        ),
    ]


# What `profile` stands for. Plain Majordomo workers are what they are, whatever the link between the nodes is
# like.
_COMMON = {
    "mdp_heartbeat_interval_s": 2.5,
    "mdp_liveness": 3,
    "busy_timeout_s": 60.0,
    "request_ttl_s": 60.0,
    "client_check_interval_s": 10.0,
    "service_ttl_s": 60.0,
    "drain_timeout_s": 5.0,
}
PROFILES: dict[ProfileName, dict[str, float]] = {
    "auto": {
        # As in lan, so that nodes of both profiles are a pair while one after the other changes.
        "heartbeat_interval_s": 0.1,
        "failover_timeout_s": 0.3,
        "failover_timeout_max_s": 2.0,
        "expire_on_refused": True,
        # Longer than the maximum: a pause too short for a failover must not cost the workers.
        "worker_heartbeat_interval_s": 0.5,
        "worker_liveness": 5,
        **_COMMON,
    },
    "lan": {
        "heartbeat_interval_s": 0.1,
        "failover_timeout_s": 0.3,
        "failover_timeout_max_s": 0.3,
        "expire_on_refused": True,
        "worker_heartbeat_interval_s": 0.25,
        "worker_liveness": 4,
        **_COMMON,
    },
    "wan": {
        "heartbeat_interval_s": 1.0,
        "failover_timeout_s": 4.0,
        "failover_timeout_max_s": 4.0,
        # What lies between two sites is rarely a cable.
        "expire_on_refused": False,
        "worker_heartbeat_interval_s": 2.0,
        "worker_liveness": 3,
        **_COMMON,
    },
    "guide": {
        "heartbeat_interval_s": 1.0,
        "failover_timeout_s": 2.0,
        "failover_timeout_max_s": 2.0,
        "expire_on_refused": True,
        "worker_heartbeat_interval_s": 2.5,
        "worker_liveness": 3,
        **_COMMON,
    },
}


def timing_of(profile: ProfileName) -> Timing:
    """The timing of a profile with nothing changed."""
    return msgspec.convert(PROFILES[profile], Timing)
