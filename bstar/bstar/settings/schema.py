"""Every key of a node's configuration: its type, its bounds, its default and what it means.

The texts here are what users read: the comments of the sample configurations and the reference are made of
them. A text tells meaning, unit, relation to other keys, and what zero or null means.
"""

from typing import Annotated, Literal

from msgspec import Meta

from bstar.settings.fronts import Fronts
from bstar.settings.section import GIB, KIB, MIB, Section
from bstar.settings.store import StoreOptions
from bstar.settings.timing import ProfileName, Timing

RESERVED_VARIABLES = {
    "BSTAR_CONFIG": "the configuration file of commands that take one",
    "BSTAR_CLIENT_CONFIG": "the file that tells client commands where the pairs are",
    "BSTAR_ENDPOINTS": "the endpoints that client commands connect to, separated by commas",
    "BSTAR_KEY": "the secret key of client commands",
    "BSTAR_SERVER_KEYS": "the public keys of the nodes that client commands trust, separated by commas",
}
"""``BSTAR_…`` variables that name no key."""

RoleName = Literal["primary", "backup"]


class Endpoints(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where this node listens, and where its peer is."""

    clients: Annotated[
        str,
        Meta(
            description="Where clients and workers connect: a ZeroMQ endpoint to bind, tcp://ADDRESS:PORT "
            "or ipc://PATH. An address that is not loopback needs security.key, or insecure: true."
        ),
    ]
    state: Annotated[
        str,
        Meta(
            description="Where this node publishes its state to its peer: an endpoint to bind. The other "
            "node's peer_state must lead here."
        ),
    ]
    peer_state: Annotated[
        str,
        Meta(
            description="Where the peer publishes its state: the other node's endpoints.state as seen from "
            "this machine (an address to connect to, so never *)."
        ),
    ]
    arbiter: Annotated[
        str | None,
        Meta(
            description="Where the arbiter of the pair (bstar arbiter) listens: an address to connect to. "
            "Give both nodes the same words, or none. With an arbiter a node serves only while "
            "its peer or the arbiter confirms it, so at most one serves whatever the network "
            "does. null: no arbiter, and both nodes may serve while the link between them is "
            "cut."
        ),
    ] = None


class SecuritySettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect, and as what (docs/security.md). Both keys or none."""

    key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Path of this node's secret key (bstar keys new), which only its user may read. With "
            "a key every connection is encrypted and authenticated (CURVE). null: none is."
        ),
    ] = None
    principals: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Path of the list of those who may connect: their public keys, and whether each is a "
            "peer, an operator, a worker of certain services or a client of certain services. The "
            "same list on both nodes. The node reads it again when it changes."
        ),
    ] = None


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients and workers can make this node hold. None of them can be switched off."""

    services_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Services known at once. A request for one more is refused. Workers may bring as "
            "many of their own, whatever names clients mention.",
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
            description="Requests that wait in the queue of one service. One more is refused as busy "
            "(native dialect), or dropped and counted (plain Majordomo has no word for it). The "
            "last tenth is for clients that have fewer requests at the broker than that. Keep "
            "it an eighth above requests_per_client_max: a plain client that sends all of those "
            "at once then loses none. A waiting request costs about 600 octets with a small "
            "body.",
        ),
    ] = 125_000
    queue_bytes_max: Annotated[
        int,
        Meta(
            ge=KIB,
            le=1024 * GIB,
            description="Octets of the bodies that wait in all queues together, and of replies that clients "
            "have not read. Beyond it requests are refused as busy, and replies are dropped. The last tenth "
            "is for clients that have fewer octets waiting than that. At least message_bytes_max. The "
            "default is 1 GiB.",
        ),
    ] = GIB
    requests_per_client_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Requests that one client may have waiting or executing at once. More from a plain "
            "Majordomo client are dropped and counted.",
        ),
    ] = 100_000
    deliveries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="After so many lost workers that had it alone a request ends as poison, so that a "
            "request that kills its workers does not kill them all. A worker that is lost with many requests "
            "counts for none of them; they are then kept apart. 1 never gives a request to a second worker.",
        ),
    ] = 5
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=KIB,
            le=4 * GIB,
            description="Octets of the largest message frame that the node accepts. It disconnects a peer "
            "that sends a larger one. If half of the memory that is left at the start is less, "
            "that is the bound. The default is 64 MiB.",
        ),
    ] = 64 * MIB
    message_frames_max: Annotated[
        int,
        Meta(
            ge=16,
            le=10_000_000,
            description="Frames of the largest message that the node accepts, its routing id included. It "
            "drops and counts a larger one; a native client gets INVALID, and a worker is "
            "disconnected. A frame costs some 50 octets besides its own.",
        ),
    ] = 65_536
    partials_buffer_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=64 * GIB,
            description="Octets of PARTIALs kept for one client of MDP/0.1, which knows single replies "
            "only. They are joined when the final one comes. 0 keeps none. The default is 16 "
            "MiB.",
        ),
    ] = 16 * MIB


class Http(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Health, status and metrics."""

    bind: Annotated[
        str | None,
        Meta(
            description="ADDRESS:PORT where health probes, status and metrics are served. Port 0 takes any "
            "free one (the log says which). null serves none. Two nodes on one machine need two ports. An "
            "address that is not loopback needs allow_remote: true."
        ),
    ] = "127.0.0.1:9401"
    allow_remote: Annotated[
        bool,
        Meta(
            description="Must be true for a bind address that is not loopback: everybody who reaches the "
            "port or sees its traffic can then read status and metrics."
        ),
    ] = False


class Log(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least important event that is written. info has one line per change of state."),
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
            description="A program that runs at each change of state of this node, as PROGRAM OLD NEW EPOCH "
            "REASON, with BSTAR_PAIR and BSTAR_ROLE in its environment. OLD and NEW are primary, backup, "
            "active, passive or error. It runs beside the node and never holds it up; what it prints goes to "
            "the log. null runs none."
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
            description="Directory of the journal, made when missing. A relative path starts where bstar is "
            "started. Nodes, clients and workers may share one. null keeps no journal."
        ),
    ] = None
    sample: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the requests that get a record of their own. Their identity chooses, so "
            "say the same on both nodes, for clients and for workers: all then record the same "
            "requests. 0 records none. Counts per service, and all that is not about single "
            "requests, are always recorded.",
        ),
    ] = 1.0
    interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3_600,
            description="Seconds between two records of each service's load, of refusals and of the node's "
            "own pulse.",
        ),
    ] = 10.0
    flush_interval_s: Annotated[
        float,
        Meta(
            ge=0.01,
            le=10,
            description="Seconds that the record of a request may wait before the operating system gets it. "
            "A node that is killed loses the records of this time. Changes of state are written "
            "at once.",
        ),
    ] = 0.1
    buffer_records: Annotated[
        int,
        Meta(
            ge=1_000,
            le=10_000_000,
            description="Records that may wait while the disk is slow. A quarter is for those that are not "
            "about single requests. What does not fit is dropped and counted. A record takes "
            "about half a KiB.",
        ),
    ] = 50_000
    rotate_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=16 * GIB,
            description="Octets after which a file is closed and the next one begun. The default is 64 MiB.",
        ),
    ] = 64 * MIB
    rotate_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="Seconds after which a file is closed even if it is small. Programs that read "
            "closed files only, as the streaming pipeline does, are that far behind.",
        ),
    ] = 300.0
    gzip: Annotated[
        bool, Meta(description="Whether closed files are packed, to about a tenth of their size.")
    ] = True
    keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * GIB,
            description="Octets of this node's closed files to keep. The oldest go first, and the log says "
            "so. At least rotate_bytes. 0 keeps all. The default is 10 GiB.",
        ),
    ] = 10 * GIB
    keep_days: Annotated[
        float, Meta(ge=0, le=3_650, description="Days that this node's closed files are kept. 0 keeps all.")
    ] = 30.0


class Settings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything one node is told."""

    pair: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z",
            description="Name of the pair, the same on both nodes: a node ignores the state of any other "
            "pair. Letters, digits, '.', '_', '-'; 64 at most.",
        ),
    ] = "bstar"
    role: Annotated[
        RoleName,
        Meta(
            description="Which node of the pair this is. The two must differ. When both start together the "
            "primary becomes active."
        ),
    ]
    profile: Annotated[
        ProfileName,
        Meta(
            description="A set of timing for the link between the nodes, the same on both. auto adapts the "
            "failover timeout to the machines: 0.3 s where no state message is late, 2 s at most. lan is "
            "fixed: for one switch and machines that the pair has to itself. wan is for links with jitter "
            "of a second. guide is what the published Binary Star uses."
        ),
    ] = "auto"
    insecure: Annotated[
        bool,
        Meta(
            description="Must be true before a node without security.key binds an address that is not "
            "loopback: anybody who reaches the port can then send requests, register as a worker "
            "or pose as the peer. For laboratories."
        ),
    ] = False
    state_dir: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Directory in which the node keeps its epoch across restarts, one per node, made "
            "when missing. A relative path starts where bstar is started. null keeps nothing: "
            "after a restart of both nodes they learn the epoch from the workers that are still "
            "there."
        ),
    ] = None
    on_dual_active: Annotated[
        Literal["yield", "exit"],
        Meta(
            description="What to do when both nodes turn out to be active, as after a cut link. yield: the "
            "lower epoch steps down. exit: the process ends with status 70 for an operator to "
            "look."
        ),
    ] = "yield"
    on_clients_cut_off: Annotated[
        Literal["handover", "stay"],
        Meta(
            description="What the active node does when native clients reach its peer and nobody reaches "
            "it. handover gives the role to the peer after 10 failover timeouts (30 if a single "
            "client says so), and not again for 200. stay leaves it to an operator."
        ),
    ] = "handover"
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
