"""How the workers of a node describe their services (BSN-W-21): one copy for all that say the same.

The broker keeps schemas as JSON and never looks into them. A worker whose description cannot be read says
nothing.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from bstar.wire.description import LimitsInUse, ServiceSummary, read_description
from bstar_broker.core.records import ServiceDescription, ServiceRecord

# All frames that are kept. A thousand services with schemas of 16 KiB have room.
BYTES_MAX: Final = 16 << 20

# A service has so many descriptions or versions in a listing: during a rolling upgrade there are two.
LISTED_MAX: Final = 16

_OTHERS: Final = "others"


class Descriptions:
    """Those of the registered workers, by their frames. ``kept_bytes`` is the size of all."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._known: dict[bytes, ServiceDescription] = {}

    def add(self, frame: bytes) -> ServiceDescription | None:
        """A worker says this. None if there is no room for another description."""
        known = self._known.get(frame)
        if known is None:
            if self.kept_bytes + len(frame) > BYTES_MAX:
                return None
            known = self._known[frame] = _read(frame)
            self.kept_bytes += len(frame)
        known.workers += 1
        return known

    def remove(self, description: ServiceDescription) -> None:
        """One of its workers has gone."""
        description.workers -= 1
        if not description.workers:
            del self._known[description.frame]
            self.kept_bytes -= len(description.frame)


class DescriptionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the answer to ``mmi.descriptions``; ``bstar.wire.description.Offer`` reads it."""

    workers: int
    version: str = ""
    description: str = ""
    request: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    part: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def listed(service: ServiceRecord) -> list[DescriptionState]:
    """What its workers say, that of most workers first; the last entry is of those that say nothing."""
    found = [
        DescriptionState(count, each.version, each.text, **each.schemas)
        for each, count in _most_first(service)
    ]
    silent = service.workers - sum(service.descriptions.values())
    return [*found[:LISTED_MAX], *([DescriptionState(silent)] if silent else [])]


def versions(service: ServiceRecord) -> dict[str, int]:
    """How many workers are of each version, "" for those that name none; empty if all name none."""
    if not service.descriptions:
        return {}
    counts: dict[str, int] = {}
    for each, count in _most_first(service):
        name = each.version if each.version in counts or len(counts) < LISTED_MAX else _OTHERS
        counts[name] = counts.get(name, 0) + count
    silent = service.workers - sum(counts.values())
    if silent:
        counts[""] = counts.get("", 0) + silent
    return {} if set(counts) <= {""} else counts


def text(service: ServiceRecord) -> str:
    """The description that most workers give."""
    for each, _ in _most_first(service):
        if each.text:
            return each.text
    return ""


def summary(service: ServiceRecord, limits: LimitsInUse | None) -> ServiceSummary:
    """The service in the listing of all."""
    return ServiceSummary(service.label, service.workers, versions(service), text(service), limits)


def _most_first(service: ServiceRecord) -> Iterable[tuple[ServiceDescription, int]]:
    pairs = service.descriptions.items()
    return pairs if len(pairs) < 2 else sorted(pairs, key=lambda pair: (-pair[1], pair[0].version))


def _read(frame: bytes) -> ServiceDescription:
    said = read_description(frame)
    schemas = {"request": said.request, "reply": said.reply, "part": said.part}
    return ServiceDescription(
        frame,
        said.version,
        said.description,
        {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in schemas.items() if each is not None},
    )
