"""How PZQ's front is made of a node's configuration, and where it listens."""

import os
import time

from bstar.settings import Settings
from bstar_broker.core.front import Inlet
from bstar_broker.fronts.plan import Door, Plan
from bstar_broker.fronts.pzq.front import CONSUMERS, MONITOR, NAME, PRODUCERS, PzqFront, PzqSettings


def plans(settings: Settings) -> list[Plan]:
    """The front, if it has a door."""
    options, limits = settings.fronts.pzq, settings.limits
    own = PzqSettings(
        options.service.encode(),
        options.ack_timeout_s,
        options.in_flight_max,
        limits.message_bytes_max,
        limits.message_frames_max,
    )
    # One message waits for each consumer, so a slow one has few that others could do.
    doors = (
        (options.producers, Door(PRODUCERS, "fronts.pzq.producers", options.producers or "")),
        (
            options.consumers,
            Door(
                CONSUMERS,
                "fronts.pzq.consumers",
                options.consumers or "",
                "dealer",
                queue_max=1,
                may_enter=lambda principal: principal.offers.match(own.service),
            ),
        ),
        (
            options.monitor,
            Door(
                MONITOR,
                "fronts.pzq.monitor",
                options.monitor or "",
                may_enter=lambda principal: principal.is_operator,
            ),
        ),
    )
    bound = tuple(door for endpoint, door in doors if endpoint is not None)

    def make(inlet: Inlet) -> PzqFront:
        return PzqFront(inlet, own, wall_us=lambda: time.time_ns() // 1_000, random=os.urandom)

    return [Plan(NAME, make, bound)] if bound else []
