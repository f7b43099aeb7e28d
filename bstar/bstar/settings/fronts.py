"""The keys of the fronts; see ``schema`` for the form of the texts."""

from typing import Annotated, Literal

from msgspec import Meta

from bstar.settings.section import Section
from bstar.wire.limits import HEARTBEAT_S_MAX, HEARTBEAT_S_MIN

_WHO = "An address that is not loopback needs security.key, or insecure: true."


class PppOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pirates: workers of the Simple and the Paranoid Pirate pattern (6/PPP), and REQ clients."""

    clients: Annotated[
        str | None,
        Meta(description=f"Where Pirate clients connect: an endpoint to bind. null: no clients. {_WHO}"),
    ] = None
    workers: Annotated[
        str | None,
        Meta(description=f"Where Pirate workers connect: an endpoint to bind. null: no workers. {_WHO}"),
    ] = None
    service: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The service that Pirate clients ask for and Pirate workers offer: the protocol has "
            "no names. Others ask for it and offer it by this name.",
        ),
    ] = "pirates"
    heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats to and from workers of the Paranoid Pirate. Published "
            "workers have 1.0 and cannot be told another.",
        ),
    ] = 1.0
    liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="Heartbeats of the Paranoid Pirate that may be missed; then an idle worker counts as "
            "gone. A working one has timing.busy_timeout_s until it has sent a heartbeat while it worked.",
        ),
    ] = 3


class PzqOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PZQ: messages of producers, kept in the durable store until a consumer acknowledges them."""

    producers: Annotated[
        str | None,
        Meta(
            description="Where producers connect: an endpoint to bind. null: no producers. It needs "
            f"store.directory, as do the other doors. {_WHO}"
        ),
    ] = None
    consumers: Annotated[
        str | None, Meta(description=f"Where consumers connect: an endpoint to bind. {_WHO}")
    ] = None
    monitor: Annotated[
        str | None, Meta(description=f"Where monitors ask for figures: an endpoint to bind. {_WHO}")
    ] = None
    service: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The service that producers' messages ask for and consumers offer: the protocol has "
            "no names. Others submit to it and offer it by this name.",
        ),
    ] = "pzq"
    ack_timeout_s: Annotated[
        float,
        Meta(
            ge=0.01,
            le=86_400,
            description="Seconds after which a message without an acknowledgement is delivered again.",
        ),
    ] = 5.0
    in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=512,
            description="Messages that all consumers together have at once, unacknowledged. Those that one "
            "consumer cannot do within ack_timeout_s are delivered again.",
        ),
    ] = 256


class EmqOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """EventMQ (eMQP/1.0): clients and schedulers, job managers, and the admin's commands."""

    clients: Annotated[
        str | None,
        Meta(
            description=f"Where clients and schedulers connect: an endpoint to bind. null: no EventMQ. {_WHO}"
        ),
    ] = None
    workers: Annotated[
        str | None, Meta(description=f"Where job managers connect: an endpoint to bind. {_WHO}")
    ] = None
    admin: Annotated[
        str | None, Meta(description=f"Where the admin command connects: an endpoint to bind. {_WHO}")
    ] = None
    default_queue: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The queue of job managers that name none, and of requests to unknown queues. A "
            "queue is the broker's service of that name.",
        ),
    ] = "default"
    unknown_queue: Annotated[
        Literal["default", "keep"],
        Meta(
            description="A request to a queue that no worker offers. default: it goes to default_queue, if a "
            "worker offers that; keep: it waits in its own queue."
        ),
    ] = "default"
    heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=0.1, le=60, description="The pause after which a job manager or a scheduler gets a HEARTBEAT."
        ),
    ] = 3.0
    liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="Intervals of silence after which a job manager or a scheduler counts as lost.",
        ),
    ] = 3
    job_timeout_s: Annotated[
        float,
        Meta(
            ge=1,
            le=604_800,
            description="How long job managers run a job without the header timeout:n; GLOBAL_TIMEOUT of the "
            "published program. A job without a REPLY 30 s after its timeout ends as TimeoutError.",
        ),
    ] = 300.0
    scheduler: Annotated[
        Literal["internal", "external"],
        Meta(
            description="Who keeps schedules. internal: the durable store, or without store.directory the "
            "active node's memory; external: the emq-scheduler that connected last."
        ),
    ] = "internal"
    wire: Annotated[
        Literal["published", "specification"],
        Meta(description="Whose frames to write and read where program and specification disagree."),
    ] = "published"
    allow_disconnect: Annotated[
        bool,
        Meta(description="true: DISCONNECT at the admin's door ends EventMQ at this node until it restarts."),
    ] = False


class Fronts(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other protocols on sockets of their own (docs/patterns.md). Without an endpoint a front is off."""

    ppp: PppOptions = PppOptions()
    pzq: PzqOptions = PzqOptions()
    emq: EmqOptions = EmqOptions()
