"""The limits of single services: entries by a pattern of their names."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from bstar.base.patterns import closest
from bstar.settings.section import Section


class ServiceOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the services that match one pattern. What is null or missing has no limit of its own."""

    running_max: Annotated[
        Annotated[int, Meta(ge=1, le=100_000_000)] | None,
        Meta(
            description="Requests that all workers together hold at once; others wait in the queue. After a "
            "failover it also counts what native workers still execute for the old node "
            "(docs/operations.md, Limits of a service)."
        ),
    ] = None
    requests_per_s: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e9)] | None,
        Meta(
            description="Requests that workers get in a second; others wait in the queue. After a second "
            "without requests as many may go out at once."
        ),
    ] = None
    queue_length_max: Annotated[
        Annotated[int, Meta(ge=1, le=100_000_000)] | None,
        Meta(description="Takes the place of limits.queue_length_max."),
    ] = None
    expires_s: Annotated[
        Annotated[float, Meta(ge=0.001, le=86_400)] | None,
        Meta(
            description="Seconds after which a request that still waits in the queue is answered as expired "
            "(plain Majordomo: dropped), at most timing.request_ttl_s. Durable requests wait on."
        ),
    ] = None

    def __repr__(self) -> str:
        """As a file has it: check-config and the log quote it."""
        limits = {name: getattr(self, name) for name in self.__struct_fields__}
        return f"{{{', '.join(f'{name}: {limit}' for name, limit in limits.items() if limit is not None)}}}"


def overlaps(services: Mapping[str, ServiceOptions]) -> list[tuple[str, str]]:
    """Pairs of patterns: the first counts for what both match."""
    found = []
    for inner in services:
        name = inner.removesuffix("*").encode()
        outer = closest(name, [text for text in services if text != inner and text.endswith("*")])
        if outer is not None:
            found.append((inner, outer))
    return found
