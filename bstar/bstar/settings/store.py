"""The keys of the durable store; see ``schema`` for the form of the texts."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from bstar.settings.section import GIB, MIB, Section

# The directory of this name keeps the store in memory; ``./memory`` is one on a disk.
MEMORY: Final = "memory"


class StoreOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durable requests, kept at both nodes (docs/durable.md). directory and link, or neither."""

    directory: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Directory of this node's store, one per node, made when missing, on a local "
            "disk. memory: no disk; what both nodes keep in memory is lost when both have ended. null "
            "keeps no durable requests."
        ),
    ] = None
    link: Annotated[
        str | None,
        Meta(
            description="Where the stores of the two nodes meet: on the primary an endpoint to bind, on"
            " the backup the same as seen from its machine."
        ),
    ] = None
    when_alone: Annotated[
        Literal["refuse", "accept"],
        Meta(
            description="What becomes of new durable requests while only one disk can be reached. "
            "refuse: clients get BUSY and try again, so whatever was acknowledged is on two"
            " disks. accept: they are taken with one copy, and lost with that disk."
        ),
    ] = "refuse"
    peer_timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3_600,
            description="Seconds without a sign of the peer's store after which the leading one goes on"
            " with one copy. Acknowledgements wait that long when the peer dies.",
        ),
    ] = 2.0
    requests_max: Annotated[
        int, Meta(ge=1, le=1_000_000_000, description="Requests in the store. One more is refused as busy.")
    ] = 10_000_000
    bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            le=1024 * GIB,
            description="Bytes of the bodies and answers in the store. Beyond it requests are refused "
            "as busy. The file takes about twice as much. Default 64 GiB.",
        ),
    ] = 64 * GIB
    log_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=1024 * GIB,
            description="Bytes of the log kept for a peer that is away. One that missed more gets the "
            "whole table. Default 256 MiB.",
        ),
    ] = 256 * MIB
    keep_answers_s: Annotated[
        float,
        Meta(
            ge=1,
            le=315_360_000,
            description="Seconds that an answer, or a cancelled request, is kept if its client does not"
            " close it. Default a week.",
        ),
    ] = 604_800.0
    keep_dead_s: Annotated[
        float, Meta(ge=1, le=315_360_000, description="Seconds that dead letters are kept. Default 30 days.")
    ] = 2_592_000.0
    attempts_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="How often a request is tried if its submit does not say; then it is a dead letter.",
        ),
    ] = 5
    backoff_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds between the first failed attempt and the next one; twice as long after"
            " each further one.",
        ),
    ] = 1.0
    backoff_max_s: Annotated[
        float, Meta(ge=0, le=31_536_000, description="The longest pause between two attempts, in seconds.")
    ] = 300.0
    expires_s: Annotated[
        float,
        Meta(
            ge=0,
            le=315_360_000,
            description="Seconds after which a request without an answer is a dead letter if its submit"
            " does not say. 0: never.",
        ),
    ] = 0.0

    @property
    def is_in_memory(self) -> bool:
        """True if this node keeps its store in memory."""
        return self.directory == MEMORY
