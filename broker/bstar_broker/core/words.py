"""What the broker says of a request: to its client in an ERROR, to operators in the log."""

from bstar.printable import printable
from bstar_broker.core.outputs import Notice, Output
from bstar_broker.core.records import Accepted, ServiceRecord

__all__ = ["given_up", "name", "still_waits", "title"]

# Lines for each service and kind: a worker that is lost may have held tens of thousands of requests.
_TOLD_MAX = 10


def name(service: ServiceRecord) -> str:
    """The service, for people."""
    return f'service "{printable(service.name)}"'


def title(request: Accepted) -> str:
    """The request in a log: its identity, its service, and how often a worker was given it."""
    times = "once" if request.deliveries == 1 else f"{request.deliveries} times"
    return f"request {request.identity.hex()} of {name(request.service)}, given to workers {times}"


def given_up(request: Accepted, count: int, why: str) -> list[Output]:
    """Say that a request was given up. ``count``: how often that happened to the service."""
    if count > _TOLD_MAX:
        return []
    note = "; the next ones of this service are only counted" if count == _TOLD_MAX else ""
    return [Notice(f"{title(request)}, is given up: {why}{note}")]


def still_waits(service: ServiceRecord) -> str:
    """Why requests of the service wait."""
    if not service.workers:
        return f"no worker offers {name(service)}"
    if service.workers == 1:
        return f"the only worker of {name(service)} was busy"
    return f"all {service.workers} workers of {name(service)} were busy"
