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
            description="Seconds between two state messages to the peer. Must be the same on both nodes.",
        ),
    ]
    failover_timeout_s: Annotated[
        float,
        Meta(
            ge=2 * HEARTBEAT_S_MIN,
            le=600,
            description="Seconds of silence after which the peer counts as dead, so that the next client "
            "request makes the passive node active. It is also the longest pause of this "
            "process after which it may go on as active. It must be the same on both nodes and "
            "at least 2 × heartbeat_interval_s. Shorter fails over faster, and more often "
            "without cause. Clients need a longer deadline than this, or their calls end before "
            "the other node may serve them.",
        ),
    ]
    failover_timeout_max_s: Annotated[
        float,
        Meta(
            ge=2 * HEARTBEAT_S_MIN,
            le=600,
            description="If it is above failover_timeout_s, that one is only the minimum: the nodes measure "
            "how late each other's state messages come and adapt the timeout, up to this maximum. A node "
            "that has not heard its peer yet waits for this long. The same as failover_timeout_s: the "
            "timeout is fixed. It is fixed as well if you set failover_timeout_s and not this key. It "
            "must be the same on both nodes.",
        ),
    ]
    expire_on_refused: Annotated[
        bool,
        Meta(
            description="Whether a peer counts as dead at once if its connection breaks and its "
            "endpoints.state then refuses connections. A killed process is then noticed in "
            "milliseconds, not after failover_timeout_s. Say false if anything between the "
            "nodes could refuse in the name of a process that lives: a proxy, a NAT, a firewall "
            "that rejects, a service address of a container platform. Otherwise both nodes may "
            "serve."
        ),
    ]
    worker_heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats with workers of the native dialect. The node tells "
            "workers when they register, so set it here only.",
        ),
    ]
    worker_liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="How many intervals without any message a native worker may miss before it counts "
            "as gone and its requests go to another one. Its expiry is "
            "worker_heartbeat_interval_s × worker_liveness. A worker whose process lives keeps "
            "its requests for busy_timeout_s.",
        ),
    ]
    mdp_heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats with plain Majordomo workers (MDP/0.1 and 0.2). The "
            "node cannot tell them: set what they are built with. Published ones use 2.5.",
        ),
    ]
    mdp_liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="How many intervals without any message a plain Majordomo worker may miss before it "
            "counts as gone: its expiry is mdp_heartbeat_interval_s × mdp_liveness.",
        ),
    ]
    busy_timeout_s: Annotated[
        float,
        Meta(
            ge=0.02,
            le=86_400,
            description="Seconds that a worker may be silent while it works on a request, if its process "
            "lives. That is for a native worker whose handler holds the GIL or blocks the event "
            "loop. It is also for a plain Majordomo worker: published ones send no heartbeats "
            "while they work. One that does is held to mdp_liveness. A worker whose process or "
            "machine dies is noticed earlier, by its connection.",
        ),
    ]
    request_ttl_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Seconds that a request may wait in a queue. One without a deadline of its own "
            "(plain Majordomo clients cannot set one) is then dropped and counted. One with a "
            "longer deadline goes back to its client as busy, and the client sends it again. It "
            "must be longer than both worker expiries.",
        ),
    ]
    client_check_interval_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds between messages to a native client whose requests wait in a queue. If its "
            "connection is gone, its requests leave the queue and are not executed. 0 never "
            "checks: they are executed although nobody takes the reply.",
        ),
    ]
    service_ttl_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Seconds after which the node forgets a service that has neither workers nor "
            "requests. It must be longer than both worker expiries, or a service vanishes while "
            "its workers come back.",
        ),
    ]
    drain_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds that a stopping node gives its workers to finish what they execute, before "
            "it hands the role over. 0 stops at once. A switchover is called off after it.",
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
