"""The keys of the fronts; see ``schema`` for the form of the texts."""

from typing import Annotated, Literal

from msgspec import Meta

from bstar.settings.section import MIB, Section
from bstar.wire.limits import HEARTBEAT_S_MAX, HEARTBEAT_S_MIN


class PppOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pirates: workers of the Simple and the Paranoid Pirate pattern (6/PPP), and REQ clients."""

    clients: Annotated[
        str | None, Meta(description="Where Pirate clients connect: an endpoint to bind. null: no clients.")
    ] = None
    workers: Annotated[
        str | None, Meta(description="Where Pirate workers connect: an endpoint to bind. null: no workers.")
    ] = None
    service: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The service that Pirate clients ask for and Pirate workers offer; others use "
            "this name.",
        ),
    ] = "pirates"
    heartbeat_interval_s: Annotated[
        float,
        Meta(
            ge=HEARTBEAT_S_MIN,
            le=HEARTBEAT_S_MAX,
            description="Seconds between heartbeats with workers of the Paranoid Pirate. Published ones"
            " have 1.0 and cannot learn another.",
        ),
    ] = 1.0
    liveness: Annotated[
        int,
        Meta(
            ge=2,
            le=100,
            description="Missed heartbeats that make an idle Paranoid Pirate worker gone. A working one"
            " has timing.busy_timeout_s until it has sent a heartbeat while it worked.",
        ),
    ] = 3


class PzqOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PZQ: messages of producers, kept in the durable store until a consumer acknowledges them."""

    producers: Annotated[
        str | None,
        Meta(
            description="Where producers connect: an endpoint to bind. null: no producers. All doors "
            "need store.directory."
        ),
    ] = None
    consumers: Annotated[str | None, Meta(description="Where consumers connect: an endpoint to bind.")] = None
    monitor: Annotated[
        str | None, Meta(description="Where monitors ask for figures: an endpoint to bind.")
    ] = None
    service: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The service that producers' messages ask for and consumers offer; others use "
            "this name.",
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
        Meta(ge=1, le=512, description="Messages that all consumers together have at once, unacknowledged."),
    ] = 256


class EmqOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """EventMQ (eMQP/1.0): clients, job managers, the admin's commands, and subscribers."""

    clients: Annotated[
        str | None,
        Meta(
            description="Where clients, publishers and schedulers connect: an endpoint to bind. null: no "
            "EventMQ."
        ),
    ] = None
    workers: Annotated[str | None, Meta(description="Where job managers connect: an endpoint to bind.")] = (
        None
    )
    admin: Annotated[
        str | None, Meta(description="Where the admin command connects: an endpoint to bind.")
    ] = None
    subscribers: Annotated[
        str | None,
        Meta(
            description="Where subscribers connect a SUB socket: an endpoint to bind. null: no publications."
        ),
    ] = None
    default_queue: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The queue of job managers that name none, and of requests to unknown queues. A"
            " queue is the service of that name.",
        ),
    ] = "default"
    unknown_queue: Annotated[
        Literal["default", "keep"],
        Meta(
            description="A request to a queue that no worker offers. default: it goes to default_queue,"
            " if a worker offers that; keep: it waits in its own."
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
            description="Silent intervals after which a job manager or a scheduler counts as lost.",
        ),
    ] = 3
    job_timeout_s: Annotated[
        float,
        Meta(
            ge=1,
            le=604_800,
            description="How long job managers run a job without the header timeout:n (GLOBAL_TIMEOUT "
            "of the published program). A job without a REPLY 30 s after its timeout ends "
            "as TimeoutError.",
        ),
    ] = 300.0
    scheduler: Annotated[
        Literal["internal", "external"],
        Meta(
            description="Who keeps schedules. internal: the durable store, or without store.directory "
            "the active node's memory; external: the emq-scheduler that connected last."
        ),
    ] = "internal"
    wire: Annotated[
        Literal["published", "specification"],
        Meta(description="Whose frames to use where the published program and the specification disagree."),
    ] = "published"
    allow_disconnect: Annotated[
        bool,
        Meta(
            description="true: a DISCONNECT ends EventMQ at this node until it restarts: of any peer, with "
            "keys of operators alone."
        ),
    ] = False


class HttpOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP (docs/http.md): calls, streams and durable requests for programs without ZeroMQ, in a process that
    this node starts.
    """

    bind: Annotated[
        str | None,
        Meta(
            description="Where HTTP clients connect, ADDRESS:PORT. null: no HTTP front. It needs the extra "
            "http."
        ),
    ] = None
    peer_clients: Annotated[
        str | None,
        Meta(
            description="The other node's endpoints.clients as seen from here: an address to connect to. The "
            "front asks both nodes which one serves."
        ),
    ] = None
    peer: Annotated[
        str | None,
        Meta(
            description="The URL of the other node's front. While that node serves, this front answers 503 "
            "with it. null: such an answer names no address."
        ),
    ] = None
    key: Annotated[
        str | None,
        Meta(
            description="Path of the front's own secret key, with security.key. Its entry in "
            "security.principals needs calls, and bounds what all tokens together may call."
        ),
    ] = None
    tls_cert: Annotated[
        str | None, Meta(description="Path of the certificate, with its chain (PEM). null: no TLS.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="Path of the certificate's key (PEM).")] = None
    allow_plain: Annotated[
        bool,
        Meta(
            description="true: bind may be an address that others reach without TLS, for a proxy with TLS or "
            "the network itself keeps strangers out. Tokens travel in the clear."
        ),
    ] = False
    origins: Annotated[
        str,
        Meta(
            description="Web pages that may call, such as https://shop.example, separated by commas; * for "
            "all. Empty: none."
        ),
    ] = ""
    timeout_max_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Seconds of the longest call, and of the longest wait for a result. A call without "
            "Bstar-Timeout has 30, or this if it is less.",
        ),
    ] = 300.0
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64 * MIB,
            description="Bytes of the largest body of a request. The front may hold one for each connection. "
            "Default 1 MiB.",
        ),
    ] = MIB
    connections_max: Annotated[
        int, Meta(ge=1, le=100_000, description="Connections at once. One more is closed at once.")
    ] = 2_000
    slow_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3_600,
            description="Seconds in which a request's head has to come, then its body, and in which a reader "
            "has to take 64 KiB of a response. A slower connection is closed.",
        ),
    ] = 30.0


class Fronts(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other protocols on sockets of their own (docs/patterns.md). Without an endpoint a front is off. An
    address that is not loopback needs security.key, or insecure: true.
    """

    ppp: PppOptions = PppOptions()
    pzq: PzqOptions = PzqOptions()
    emq: EmqOptions = EmqOptions()
    http: HttpOptions = HttpOptions()
