"""Every key of a node's configuration: its type, its bounds, its default and what it means.

The texts here are what users read: the comments of the sample configurations and the reference are made of
them. A text tells meaning, unit, relation to other keys, and what zero or null means.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bstar.settings.fronts import Fronts
from bstar.settings.section import GIB, KIB, MIB, Section
from bstar.settings.services import ServiceOptions
from bstar.settings.store import StoreOptions
from bstar.settings.timing import ProfileName, Timing

RESERVED_VARIABLES = {
    "BSTAR_CONFIG": "the configuration file of commands that take one",
    "BSTAR_CLIENT_CONFIG": "the file that tells clients, workers and commands where the pairs are",
    "BSTAR_ENDPOINTS": "the endpoints that clients, workers and commands connect to, separated by commas",
    "BSTAR_KEY": "the secret key of clients, workers and commands",
    "BSTAR_SERVER_KEYS": "the public keys of the nodes that they trust, separated by commas",
}
"""``BSTAR_…`` variables that name no key."""

RoleName = Literal["primary", "backup"]


class Endpoints(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where this node listens, and where its peer is."""

    clients: Annotated[
        str,
        Meta(
            description="Where clients and workers connect: an endpoint to bind, tcp://ADDRESS:PORT or "
            "ipc://PATH. Beyond loopback every endpoint needs security.key, or insecure: "
            "true."
        ),
    ]
    state: Annotated[
        str,
        Meta(
            description="Where this node publishes its state: an endpoint to bind. The other node's "
            "peer_state leads here."
        ),
    ]
    peer_state: Annotated[
        str,
        Meta(
            description="The other node's endpoints.state as seen from this machine: an address to "
            "connect to."
        ),
    ]
    arbiter: Annotated[
        str | None,
        Meta(
            description="Where the arbiter listens, the same on both nodes. With it at most one node "
            "serves, and only while its peer or the arbiter confirms it. null: none, and "
            "both may serve while the link between them is cut."
        ),
    ] = None


class SecuritySettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect, and as what (docs/security.md). key and principals: both or none."""

    key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Path of this node's secret key (bstar keys new), which only its user may read."
            " null: nothing is encrypted or authenticated."
        ),
    ] = None
    principals: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Path of the list of keys that may connect, and as what; the same list on both "
            "nodes. The node reads it again when it changes."
        ),
    ] = None
    orders: Annotated[
        bool,
        Meta(
            description="true lets keys whose entry says orders: true give this node orders over the network "
            "(bstar switchover -e …). Otherwise orders come from its own machine alone."
        ),
    ] = False


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients and workers can make this node hold. None of them can be switched off."""

    services_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Services known at once; a request for one more is refused. Workers may bring "
            "as many of their own.",
        ),
    ] = 1_000
    workers_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Workers registered at once. One more is sent away.")
    ] = 10_000
    queue_length_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Requests that wait in the queue of one service, at about 600 bytes each. One "
            "more is refused as busy, or dropped and counted (plain Majordomo). Keep it an eighth above "
            "requests_per_client_max.",
        ),
    ] = 125_000
    queue_bytes_max: Annotated[
        int,
        Meta(
            ge=KIB,
            le=1024 * GIB,
            description="Bytes of the bodies that wait in all queues, and of unread replies, and never more "
            "than half of the memory that the node has for them. Beyond it requests are refused as busy, and "
            "replies dropped. Default 1 GiB.",
        ),
    ] = GIB
    requests_per_client_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Requests of one client that wait or execute at once. More from a plain "
            "Majordomo client are dropped and counted.",
        ),
    ] = 100_000
    deliveries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="After so many lost workers that had it alone a request ends as poison. 1 never "
            "gives a request to a second worker.",
        ),
    ] = 5
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=KIB,
            le=4 * GIB,
            description="Bytes of the largest message frame; a peer that sends a larger one is "
            "disconnected. Half of the memory that is left at the start, if that is less. "
            "Default 64 MiB.",
        ),
    ] = 64 * MIB
    message_frames_max: Annotated[
        int,
        Meta(
            ge=16,
            le=10_000_000,
            description="Frames of the largest message. A larger one is dropped and counted; a native "
            "client gets INVALID, a worker is disconnected.",
        ),
    ] = 65_536
    partials_buffer_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=64 * GIB,
            description="Bytes of PARTIALs kept for one request of MDP/0.1 or a durable one, joined when "
            "the final one comes. Beyond it the request has no reply; a durable attempt has failed. 0 keeps "
            "none. Default 16 MiB.",
        ),
    ] = 16 * MIB


class Http(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Health, status and metrics."""

    bind: Annotated[
        str | None,
        Meta(
            description="ADDRESS:PORT of health probes, status and metrics. Port 0 takes any free one "
            "(the log says which). null serves none. An address that is not loopback needs "
            "allow_remote: true."
        ),
    ] = "127.0.0.1:9401"
    allow_remote: Annotated[
        bool,
        Meta(
            description="true lets bind be an address that is not loopback: whoever reaches the port or"
            " sees its traffic can then read status and metrics."
        ),
    ] = False


class Log(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(
            description="The least important event that is written: debug, info (one line per change of "
            "state), warning or error."
        ),
    ] = "info"
    format: Annotated[
        Literal["console", "json"],
        Meta(description="console for people, json (one object a line) for programs."),
    ] = "console"


class Hooks(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of yours that runs when something happens."""

    on_role_change: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="A program that runs at each change of state, as PROGRAM OLD NEW EPOCH REASON, "
            "with BSTAR_PAIR and BSTAR_ROLE in its environment. OLD and NEW: primary, "
            "backup, active, passive, error. What it prints goes to the log."
        ),
    ] = None
    timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3_600,
            description="Seconds after which the program is killed. A stopping node waits that long for it.",
        ),
    ] = 30.0


class Journal(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happened, for later: records in files of JSON lines (docs/journal.md)."""

    directory: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Directory of the journal, made when missing. Nodes, clients and workers may "
            "share one. null keeps none."
        ),
    ] = None
    sample: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the requests that get a record of their own, chosen by their "
            "identity: the same on nodes, clients and workers. Counts per service, and all "
            "else, are always recorded.",
        ),
    ] = 1.0
    interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3_600,
            description="Seconds between two records of each service's load, of refusals and of the "
            "node's pulse.",
        ),
    ] = 10.0
    flush_interval_s: Annotated[
        float,
        Meta(
            ge=0.01,
            le=10,
            description="Seconds that the record of a request may wait before the operating system gets"
            " it; a killed node loses that much. Changes of state are written at once.",
        ),
    ] = 0.1
    buffer_records: Annotated[
        int,
        Meta(
            ge=1_000,
            le=10_000_000,
            description="Records that may wait while the disk is slow, of half a KiB each; a quarter is"
            " for those that are not about single requests.",
        ),
    ] = 50_000
    rotate_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=16 * GIB,
            description="Bytes after which a file is closed and the next one begun. Default 64 MiB.",
        ),
    ] = 64 * MIB
    rotate_s: Annotated[
        float, Meta(ge=1, le=86_400, description="Seconds after which a file is closed even if it is small.")
    ] = 300.0
    gzip: Annotated[
        bool, Meta(description="Whether closed files are packed, to about a tenth of their size.")
    ] = True
    keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * GIB,
            description="Bytes of this node's closed files to keep; the oldest go first. 0 keeps all. "
            "Default 10 GiB.",
        ),
    ] = 10 * GIB
    keep_days: Annotated[
        float, Meta(ge=0, le=3_650, description="Days that this node's closed files are kept. 0 keeps all.")
    ] = 30.0


class Settings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one node."""

    pair: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z",
            description="Name of the pair, the same on both nodes: a node ignores every other pair.",
        ),
    ] = "bstar"
    role: Annotated[
        RoleName, Meta(description="Which node this is. When both start together the primary becomes active.")
    ]
    profile: Annotated[
        ProfileName,
        Meta(
            description="Timing of the link between the nodes, the same on both. auto adapts the "
            "failover timeout from 0.3 s to 2 s. lan is fixed, for machines of the pair's "
            "own; wan for jitter of a second; guide is the published Binary Star's."
        ),
    ] = "auto"
    insecure: Annotated[
        bool,
        Meta(
            description="true lets a node without security.key bind beyond loopback: whoever reaches "
            "the port can then send requests, register as a worker or pose as the peer."
        ),
    ] = False
    state_dir: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Directory in which the node keeps its epoch across restarts, made when "
            "missing, one per node. null keeps nothing: after a restart of both nodes they "
            "learn the epoch from the workers."
        ),
    ] = None
    on_dual_active: Annotated[
        Literal["yield", "exit"],
        Meta(
            description="What to do when both nodes are active, as after a cut link. yield: the lower "
            "epoch steps down. exit: the process ends with status 70."
        ),
    ] = "yield"
    on_clients_cut_off: Annotated[
        Literal["handover", "stay"],
        Meta(
            description="What the active node does when native clients reach its peer only. handover "
            "gives the role to the peer after 10 failover timeouts (30 for a single "
            "client), then not for 200. stay leaves it to an operator."
        ),
    ] = "handover"
    services: Annotated[
        dict[str, ServiceOptions],
        Meta(
            description="Limits of single services, the same on both nodes: patterns (a name, or the "
            "beginning of names and *), each with its limits, such as {'mail.*': {running_max: 10, "
            "requests_per_s: 5, queue_length_max: 100, expires_s: 30}}. A name counts before every pattern, "
            "a longer pattern before a shorter one, and the entry as a whole."
        ),
    ] = msgspec.field(default_factory=dict)
    endpoints: Endpoints
    security: SecuritySettings = SecuritySettings()
    timing: Timing
    limits: Limits = Limits()
    http: Http = Http()
    log: Log = Log()
    hooks: Hooks = Hooks()
    journal: Journal = Journal()
    store: StoreOptions = StoreOptions()
    fronts: Fronts = Fronts()
