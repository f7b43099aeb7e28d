"""Services in trouble, from what the node that serves them says: a word for scripts, and a sentence each.

The signs are those of the alerts (configs/alerts.yml), seen at one moment: nobody offers the service, a
worker holds a request for ever, requests wait for long, or many of the last five minutes ended badly. A pair
may be well beside it, so trouble has an exit status of its own.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

# The thresholds of the alerts BstarNoWorkers, BstarRequestStuck, BstarRequestsWait and BstarServiceFails.
UNSERVED_MIN = 3
RUNNING_S_MAX = 300.0
WAITING_S_MAX = 30.0
BAD_MIN = 5
BAD_SHARE_MAX = 14.4 * 0.001

# What a node gave back is sent to its peer, so it says nothing about the service.
_NEUTRAL = "returned"
_GOOD = "answered"


class Sign(enum.StrEnum):
    """Why a service is in trouble. Scripts read the values, so they never change."""

    NO_WORKER = "no-worker"
    STUCK = "stuck"
    WAITS = "waits"
    FAILS = "fails"
    PAUSED = "paused"


class ServiceView(msgspec.Struct, frozen=True):
    """What this command needs of a service's state; an older node does not tell the last seven."""

    service: str
    workers: int
    idle: int
    in_flight: int
    queued: int
    answered: int
    oldest_waiting_s: float = 0.0
    oldest_running_s: float = 0.0
    recent: dict[str, int] = {}
    latency_counts: list[int] = []
    pause_why: str = ""
    paused_for_s: float = 0.0
    drained: int = 0


class Trouble(msgspec.Struct, frozen=True):
    """One service of one pair, and one sign."""

    service: str
    pair: str
    sign: Sign
    why: str

    def __str__(self) -> str:
        return f"{self.service}: {self.why}"


def troubles(by_pair: Mapping[str, Sequence[ServiceView]]) -> list[Trouble]:
    """All signs, by service and pair. The services are those that each pair's active node knows or knew."""
    found = [
        Trouble(service.service, pair, sign, why)
        for pair, services in by_pair.items()
        for service in services
        for sign, why in _signs(service)
    ]
    return sorted(found, key=lambda each: (each.service, each.pair))


def _signs(service: ServiceView) -> Iterator[tuple[Sign, str]]:
    if service.pause_why:
        rest = f" for {_time(service.paused_for_s)} more" if service.paused_for_s else ""
        text = f"paused{rest} by {service.pause_why}; {_requests(service.queued)} waiting"
        yield Sign.PAUSED, f"{text}; bstar service resume ends that"
    if service.drained and service.drained == service.workers:
        text = f"all {service.workers} workers are drained; {_requests(service.queued)} waiting"
        yield Sign.PAUSED, f"{text}; bstar workers resume ends that"
    ended = {outcome: count for outcome, count in service.recent.items() if outcome != _NEUTRAL}
    bad = {outcome: count for outcome, count in ended.items() if outcome != _GOOD}
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(bad.items()))
    count = sum(bad.values())
    if not service.workers and (service.queued or count >= UNSERVED_MIN):
        ago = f", {told} in the last five minutes" if bad else ""
        yield Sign.NO_WORKER, f"it has no worker; {_requests(service.queued)} waiting{ago}: start one"
        return
    if service.oldest_running_s > RUNNING_S_MAX:
        age = _time(service.oldest_running_s)
        yield Sign.STUCK, f"a worker has held a request for {age}: does its handler hang?"
    if service.oldest_waiting_s > WAITING_S_MAX and not service.pause_why:
        text = f"the oldest of {_requests(service.queued)} has waited for {_time(service.oldest_waiting_s)}"
        yield Sign.WAITS, f"{text}: {service.idle} of {service.workers} workers can take one"
    total = sum(ended.values())
    if bad.get("poisoned") or (count >= BAD_MIN and count > BAD_SHARE_MAX * total):
        yield Sign.FAILS, f"{count} of {_requests(total)} ended badly in the last five minutes: {told}"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
