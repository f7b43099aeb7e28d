"""Services in trouble, from what the node that serves them says: a word for scripts, and a sentence each.

A node publishes its findings. For a node of an earlier release, which publishes none, the same table
(``bstar_broker.core.findings``) judges the services that its state has. A pair may be well beside it, so
trouble has an exit status of its own.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

if TYPE_CHECKING:
    from bstar_broker.core.snapshot import ServiceState


class Sign(enum.StrEnum):
    """Why a service is in trouble. Scripts read the values, so they never change."""

    NO_WORKER = "no-worker"
    STUCK = "stuck"
    WAITS = "waits"
    FAILS = "fails"
    PAUSED = "paused"
    WORKERS_LOST = "workers-lost"
    POISON = "poison"


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
    """One service of one pair, and one sign: a ``Sign``, or a word of a newer node."""

    service: str
    pair: str
    sign: str
    why: str

    def __str__(self) -> str:
        return f"{self.service}: {self.why}"


def troubles(by_pair: Mapping[str, Iterable[tuple[str, str, str]]]) -> list[Trouble]:
    """All troubles, by service and pair, from services, words and sentences."""
    found = [
        Trouble(service, pair, word, why) for pair, each in by_pair.items() for service, word, why in each
    ]
    return sorted(found, key=lambda each: (each.service, each.pair))


def signs(services: Sequence[ServiceView]) -> Iterator[tuple[str, str, str]]:
    """What a node of an earlier release says of the services that it serves: service, word, sentence."""
    from bstar_broker.core.findings import Past, of_service  # noqa: PLC0415 - for old nodes only

    for service in services:
        # The conditions read what a view has.
        for finding in of_service(cast("ServiceState", service), Past(), is_active=True):
            yield finding.service, finding.name, str(finding)
