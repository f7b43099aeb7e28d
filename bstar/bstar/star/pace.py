"""How often a node publishes, and how long a silence means death. Both depend on the peer's dialect.

A native peer has the timing of this node, or the two are not a pair. Both may adapt the failover timeout
(``failure_detector``). A published peer tells no timing, so the published pattern's applies: it speaks once a
second and counts a node as dead after two.
"""

import msgspec

from bstar.star.settings import StarSettings

PUBLISHED_HEARTBEAT_S = 1.0
PUBLISHED_TIMEOUT_S = 2.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The timing towards one kind of peer. ``heartbeat_interval_s`` is the time between our messages.
    ``silence_s`` is the silence after which the peer counts as dead. ``absence_s`` is the silence of ours
    after which the peer may have taken over.
    """

    heartbeat_interval_s: float
    silence_s: float
    absence_s: float


def paces_of(settings: StarSettings) -> tuple[Pace, Pace]:
    """The pace towards a published peer, and towards a native one whose timeout is fixed."""
    published = Pace(
        heartbeat_interval_s=min(settings.heartbeat_interval_s, PUBLISHED_HEARTBEAT_S),
        silence_s=max(settings.failover_timeout_s, PUBLISHED_TIMEOUT_S),
        absence_s=PUBLISHED_TIMEOUT_S,
    )
    native = Pace(
        heartbeat_interval_s=settings.heartbeat_interval_s,
        silence_s=settings.failover_timeout_s,
        absence_s=settings.failover_timeout_s,
    )
    return published, native
