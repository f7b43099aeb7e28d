"""The Pirates' front, as the configuration switches it on."""

from collections.abc import Iterator
from functools import partial

from bstar.errors import ConfigurationError
from bstar.settings import Settings
from bstar.wire import durable, mmi
from bstar.wire.limits import SERVICE_BYTES_MAX
from bstar_broker.fronts.plan import Door, Plan
from bstar_broker.fronts.ppp.machine import CLIENTS, NAME, WORKERS, PirateFront, PirateSettings


def plans(settings: Settings) -> Iterator[Plan]:
    """One plan if an endpoint is given. ConfigurationError if the service is no name for a worker's."""
    ppp, limits = settings.fronts.ppp, settings.limits
    places = {CLIENTS: ppp.clients, WORKERS: ppp.workers}
    doors = [Door(name, f"fronts.ppp.{name}", at) for name, at in places.items() if at is not None]
    if not doors:
        return
    service = ppp.service.encode()
    if len(service) > SERVICE_BYTES_MAX or service.startswith((mmi.PREFIX, durable.PREFIX)):
        reserved = f'"{mmi.PREFIX.decode()}" or "{durable.PREFIX.decode()}"'
        raise ConfigurationError(
            f"fronts.ppp.service: {ppp.service!r} is no name of a worker's service: it has at most "
            f"{SERVICE_BYTES_MAX} bytes and does not begin with {reserved}, which are the node's own"
        )
    pirates = PirateSettings(
        service,
        heartbeat_ms=round(ppp.heartbeat_interval_s * 1000),
        liveness=ppp.liveness,
        message_bytes_max=limits.message_bytes_max,
        message_frames_max=limits.message_frames_max,
    )
    yield Plan(NAME, partial(PirateFront, settings=pirates), tuple(doors))
