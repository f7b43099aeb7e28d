"""Neutral messages: the messages of a broker's peers, independent of the dialect.

The codecs beside this module turn frames into these and back. A body is the list of frames as it came: no
code looks into it or copies it. ``sender`` is the ROUTER's routing id, opaque bytes. ``envelope`` holds the
frames between the routing id and the header, delimiter included. A reply carries the same ones, so it fits
REQ clients and peers with a leading empty frame.
"""

import enum

import msgspec

from bstar.wire.progress import Progress

# "Never" and "no time limit known" in fields of milliseconds.
NEVER_MS = 0xFFFF_FFFF
# In ``Failure.retry_ms``: the handler leaves the time of the next attempt to the request.
OWN_BACKOFF = -1


class ErrorCode(enum.IntEnum):
    """Why the native dialect answers ERROR. The numbers are on the wire and never change."""

    HANDLER_FAILED = 1  # executed: the handler raised; the text says what
    HANDLER_TIMEOUT = 2  # executed in part: the handler ran past its own deadline
    WORKER_LOST = 3  # the worker died after PARTIALs were sent, or the request expired with it
    POISON = 4  # every worker that got it died; the delivery limit is reached
    EXPIRED = 5  # it expired in the queue: not executed
    INVALID = 6  # the request breaks a bound or a rule: not executed
    NOT_ALLOWED = 7  # the client may not call this service: not executed
    RETRY = 8  # executed: the handler asks for another attempt
    CANCELLED = 9  # executed in part or not at all: it was cancelled at its worker
    WORKER_GONE = 10  # the one worker that it was for is not registered: not executed


class Reason(enum.IntEnum):
    """Why a native DISCONNECT is sent. The numbers are on the wire and never change."""

    GOODBYE = 0  # the sender leaves in good order
    UNKNOWN = 1  # the broker has no record of this worker: register again
    UNEXPECTED = 2  # a valid command at a moment that does not allow it
    INVALID = 3  # a command whose frames could not be read
    RESERVED = 4  # the service name belongs to the broker (mmi.)
    FULL = 5  # a table of the broker is full: try again later
    NOT_ALLOWED = 6  # the worker may not offer this service


# What a node can do: bits of a byte of its status, which nodes of earlier releases do not send.
READS_BATCHES = 0x01  # REQUESTS and FINALS
OBEYS_ONCE = 0x02  # it dispatches a request with ONCE at most once
READS_EXTENDED = 0x04  # rows with extensions in REQUESTS
READS_CANCELS = 0x08
READS_PROGRESS = 0x10
READS_DIRECTED = 0x20
ALL_FEATURES = 0x3F


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """A node's status: state codes 1..5 (5 is ERROR), times in milliseconds.

    ``peer_state`` is 0 while the peer is silent, ``peer_age_ms`` is NEVER_MS when it was never heard.
    ``retry_after_ms`` is the time until a request could make this node active: 0 at once, NEVER_MS never.
    ``heartbeat_ms`` and ``failover_timeout_ms`` are the pair's timing, from which clients derive their own.
    ``features``: what it can do, of ALL_FEATURES.
    """

    state: int
    epoch: int
    peer_state: int
    peer_age_ms: int
    retry_after_ms: int
    heartbeat_ms: int
    failover_timeout_ms: int
    features: int = ALL_FEATURES


class Request(msgspec.Struct, gc=False):
    """A client asks for work. ``identity`` is empty for dialects without request numbers.

    ``ttl_ms`` is how long the client still waits (0: unknown). ``extensions`` are the native header's
    extension bytes, passed on unread. ``is_repeated``: an earlier attempt, here or at the other node, may
    have been executed. ``is_urgent``: it goes before requests that are not urgent. ``is_once``: it is
    dispatched at most once. ``is_whole``: its client drops the PARTIALs of a lost execution, so the broker
    may redeliver it after some PARTIALs.
    """

    sender: bytes
    dialect: int
    envelope: tuple[bytes, ...]
    service: bytes
    body: list[bytes]
    identity: bytes = b""
    ttl_ms: int = 0
    epoch: int = 0
    extensions: bytes = b""
    is_repeated: bool = False
    is_urgent: bool = False
    is_once: bool = False
    is_whole: bool = False


class Directed(Request, gc=False):
    """A Request for one worker alone, which listings call ``worker``. No other worker ever gets it."""

    worker: bytes = b""


class Requests(msgspec.Struct, gc=False):
    """Several Requests of one client for one service in one message, as columns: the n-th entry of each
    belongs to the n-th request. An identity is ``client_id`` and a number. Each body is one frame, and
    ``blob`` has the bodies one after the other. ``table`` is what the columns were read from. None has a key.
    ``is_extended``: rows have extensions before their bodies (``batches.take_extensions``).
    """

    sender: bytes
    client_id: bytes
    service: bytes
    numbers: tuple[int, ...]
    ttls_ms: tuple[int, ...]
    lengths: tuple[int, ...]
    table: bytes
    blob: bytes
    epoch: int = 0
    is_repeated: bool = False
    is_once: bool = False
    is_whole: bool = False
    is_extended: bool = False


class Ping(msgspec.Struct, gc=False):
    """A native client asks how the node is; ``identity`` comes back unchanged. Never a vote."""

    sender: bytes
    identity: bytes
    epoch: int


class Cancel(msgspec.Struct, gc=False):
    """A native client has given up the request with this ``identity``."""

    sender: bytes
    identity: bytes


class Process(msgspec.Struct, frozen=True, gc=False):
    """What a worker tells of its process: words for people, which nothing relies on. Empty and 0: unknown."""

    host: str = ""
    pid: int = 0
    version: str = ""


NO_PROCESS = Process()


class Ready(msgspec.Struct, gc=False):
    """A worker registers for one service, ready for ``credit`` requests at once, in batches or not.

    ``keepalive``: the routing id of a second connection of its process, empty without one. Through a front:
    ``heartbeat_ms`` and ``expiry_ms`` are its lease, and ``beats_while_busy``: it is never silent. A worker
    with ``expiry_ms`` NEVER_MS may be silent while it is idle. Workers of one ``group`` are lost together.
    ``description``: the frame in which it describes the service, empty without one.
    ``elsewhere``: how many requests it executes that came by other connections; None: it does not tell.
    """

    sender: bytes
    dialect: int
    envelope: tuple[bytes, ...]
    service: bytes
    credit: int = 1
    epoch: int = 0
    takes_batches: bool = False
    keepalive: bytes = b""
    heartbeat_ms: int = 0
    expiry_ms: int = 0
    beats_while_busy: bool = False
    takes_extended: bool = False
    process: Process = NO_PROCESS
    group: bytes = b""
    description: bytes = b""
    elsewhere: int | None = None


class Partial(msgspec.Struct, gc=False):
    """A worker's reply before the last; ``address`` is the client's (MDP) or the identity (native)."""

    sender: bytes
    dialect: int
    envelope: tuple[bytes, ...]
    address: bytes
    body: list[bytes]
    header: bytes = b""


class ProgressMade(msgspec.Struct, gc=False):
    """A native worker's handler says how far it is. ``header`` and ``body`` are the frames that say so."""

    sender: bytes
    address: bytes
    progress: Progress
    header: bytes
    body: list[bytes]


class Final(msgspec.Struct, gc=False):
    """A worker's last reply to a request; MDP/0.1's REPLY is one of these. ``address`` as in Partial."""

    sender: bytes
    dialect: int
    envelope: tuple[bytes, ...]
    address: bytes
    body: list[bytes]
    header: bytes = b""


class Finals(msgspec.Struct, gc=False):
    """Several Finals without PARTIALs for requests of one client in one message, as columns again."""

    sender: bytes
    client_id: bytes
    numbers: tuple[int, ...]
    lengths: tuple[int, ...]
    table: bytes
    blob: bytes
    header: bytes


class Failure(msgspec.Struct, gc=False):
    """A native worker's handler failed. It ends the request, like a Final.

    ``retry_ms``, with code RETRY: the time until the next attempt, OWN_BACKOFF for the request's own.
    ``is_declined``: it declined, and ``data`` is the frame behind the text.
    """

    sender: bytes
    address: bytes
    code: int
    text: bytes
    header: bytes
    retry_ms: int = OWN_BACKOFF
    is_declined: bool = False
    data: bytes = b""


class Heartbeat(msgspec.Struct, gc=False):
    """A worker is alive. ``epoch`` is the highest it has seen (native), else 0. ``elsewhere`` as in Ready."""

    sender: bytes
    dialect: int
    envelope: tuple[bytes, ...]
    epoch: int = 0
    elsewhere: int = 0


class Disconnect(msgspec.Struct, gc=False):
    """A worker leaves; its requests go back to the queue. ``is_unbegun``: it has begun none of them."""

    sender: bytes
    dialect: int
    is_unbegun: bool = False


class StaleEpoch(msgspec.Struct, gc=False):
    """A native worker refused a request because it has seen a higher ``epoch`` than the request's."""

    sender: bytes
    address: bytes
    epoch: int


FromClient = Request | Directed | Requests | Cancel | Ping
FromWorker = Ready | Partial | ProgressMade | Final | Finals | Failure | Heartbeat | Disconnect | StaleEpoch
FromPeer = FromClient | FromWorker
