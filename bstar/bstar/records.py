"""The events of a pair as a journal keeps them: one JSON object a line, one type here for each kind.

Brokers write them, and clients and workers if they are told to. Every record says which process wrote it
(``pair``, ``node``, ``boot``) and where it stands among that process's records (``seq``), so a record that
came twice is known by ``boot`` and ``seq``, and one that is missing leaves a gap. It has two times: ``at`` of
the wall clock, to lay the journals of several machines side by side, and ``mono`` of the monotonic clock, for
everything that is measured. Fields with their default value are left out of the line.

``VERSION`` goes up when a line can no longer be read as it was: when a field changes its meaning, its unit or
its type, or goes away. A new kind and a new field with a default do not change it, and readers skip what they
do not know.

Names of fields mean the same in every kind. Times are in microseconds, identities in hexadecimal.
"""

from typing import Literal

import msgspec

__all__ = [
    "KINDS",
    "VERSION",
    "Activated",
    "ActiveFound",
    "ActiveLost",
    "ArbiterLost",
    "ArbiterSeen",
    "Call",
    "Claimed",
    "ClientsCutOff",
    "ClockStepped",
    "Connected",
    "Deactivated",
    "Disconnected",
    "Dropped",
    "Execution",
    "FailedOver",
    "Fatal",
    "Fenced",
    "HandoverRefused",
    "Load",
    "PeerAsked",
    "PeerLost",
    "PeerRejected",
    "PeerSeen",
    "Pulse",
    "Record",
    "Refused",
    "Registered",
    "Request",
    "SegmentClosed",
    "Stalled",
    "Started",
    "StateChanged",
    "Stopped",
    "Stopping",
    "Unregistered",
    "WorkerLost",
    "WorkerRegistered",
    "decode",
    "encode",
]

VERSION = 1


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """What every record has.

    ``pair`` names the pair, ``node`` the process in it: "primary" or "backup" for a broker, its own name for
    a client or a worker. ``boot`` (32 hex digits) is new at every start of the process. ``seq`` counts the
    process's records from 1. ``at``: microseconds since 1970 (UTC). ``mono``: microseconds of the machine's
    monotonic clock, which goes on while the machine sleeps.
    """

    v: int
    pair: str
    node: str
    boot: str
    seq: int
    at: int
    mono: int


# --- the life of a process ----------------------------------------------------------------------------------


class Started(Base, frozen=True, tag="started"):
    """A process begins its journal.

    ``machine`` is the kernel's id of this boot: records with the same one share their monotonic clock.
    ``config`` is a digest (16 hex digits) of the configuration, ``sample`` the share of requests recorded
    (0 to 1), ``service`` a worker's service. Brokers tell their timing and the highest ``epoch`` they know.
    """

    source: Literal["broker", "client", "worker"]
    version: str
    machine: str
    host: str
    pid: int
    config: str = ""
    sample: float = 1.0
    service: str = ""
    endpoints: str = ""
    epoch: int = 0
    heartbeat_us: int = 0
    failover_timeout_us: int = 0


class Stopping(Base, frozen=True, tag="stopping"):
    """A broker was asked to end in good order. It finishes what it has, hands the role over, and ends."""


class Stopped(Base, frozen=True, tag="stopped"):
    """It ended in good order; nothing of its journal is missing at the end."""

    reason: str = ""


class SegmentClosed(Base, frozen=True, tag="closed"):
    """The last line of a whole file. ``lines`` counts the lines before it."""

    lines: int


class Dropped(Base, frozen=True, tag="dropped"):
    """The journal could not keep up: ``count`` records since ``since_us`` (monotonic) were not written,
    ``requests`` of them about requests, calls and executions. The others have a part of the buffer for
    themselves, so state changes are among them only if that was full, too.
    """

    count: int
    requests: int
    since_us: int


class ClockStepped(Base, frozen=True, tag="clock"):
    """The wall clock was set: it moved by ``step_us`` against the monotonic one."""

    step_us: int


class Stalled(Base, frozen=True, tag="stall"):
    """The process was away for ``gap_us``, up to now."""

    gap_us: int


class Pulse(Base, frozen=True, tag="pulse"):
    """A broker lives: its state, and what it holds. Once in a while, whether anything happens or not."""

    state: str
    epoch: int
    workers: int
    queued: int
    in_flight: int
    lag_us: int = 0


# --- the pair -----------------------------------------------------------------------------------------------


class StateChanged(Base, frozen=True, tag="state"):
    """The node went from state ``old`` to ``new`` on ``event``; ``text`` is the rule's sentence.

    ``peer`` is what the peer last said it was, ``votes`` how many client requests have been votes so far.
    """

    old: str
    new: str
    event: str
    text: str
    epoch: int
    votes: int = 0
    peer: str = ""


class Activated(Base, frozen=True, tag="active"):
    """The node serves from now on, in ``epoch``; again, with a higher epoch, while it serves already."""

    epoch: int
    text: str


class Deactivated(Base, frozen=True, tag="inactive"):
    """The node has stopped serving."""

    epoch: int
    text: str


class PeerSeen(Base, frozen=True, tag="peer-seen"):
    """The node hears its peer: for the first time, again, or as a new process."""

    peer: str
    peer_boot: str = ""


class PeerLost(Base, frozen=True, tag="peer-lost"):
    """The peer was last heard ``silent_us`` ago. ``reason``: it is "silent", has "left", or is "gone"."""

    reason: Literal["silent", "left", "gone"]
    silent_us: int


class PeerAsked(Base, frozen=True, tag="peer-asked"):
    """The node asked its peer whether it serves."""

    text: str


class PeerRejected(Base, frozen=True, tag="peer-rejected"):
    """A node that cannot be the peer spoke."""

    reason: str
    text: str


class HandoverRefused(Base, frozen=True, tag="handover-refused"):
    """An operator wanted to move the role, and it stayed."""

    text: str


class ClientsCutOff(Base, frozen=True, tag="clients-cut-off"):
    """``clients`` clients have reached the passive node and not the active one for ``for_us``.

    ``unserved`` others ask for what no worker there offers. ``text`` is what the node does about it.
    """

    clients: int
    unserved: int
    for_us: int
    text: str


class Claimed(Base, frozen=True, tag="claimed"):
    """The node claims the majority."""

    text: str


class ArbiterSeen(Base, frozen=True, tag="arbiter-seen"):
    """The arbiter answers."""


class ArbiterLost(Base, frozen=True, tag="arbiter-lost"):
    """The arbiter has been silent for ``silent_us``."""

    silent_us: int


class Fatal(Base, frozen=True, tag="fatal"):
    """The node cannot go on; its process ends with ``exit_code``."""

    exit_code: int
    text: str


# --- the broker's work --------------------------------------------------------------------------------------


class WorkerRegistered(Base, frozen=True, tag="worker-registered"):
    """``worker`` is its routing id; ``credit`` how many requests it takes at once."""

    worker: str
    service: str
    dialect: str
    credit: int = 1


class WorkerLost(Base, frozen=True, tag="worker-lost"):
    """A worker is off the list, and ``held`` requests went back to the queue.

    ``reason``: "drained" (it said goodbye and held nothing), "left" (it said goodbye with work in hand),
    "expired" (silent), "stuck" (silent for longer than its handler may keep it from answering),
    "unreachable" (its connection was gone), "invalid" or "unexpected" (sent away).
    """

    worker: str
    service: str
    reason: Literal["drained", "left", "expired", "stuck", "unreachable", "invalid", "unexpected"]
    held: int = 0


class Request(Base, frozen=True, tag="request"):
    """An accepted request has ended at this node; ``at`` and ``mono`` are that moment.

    Its identity is ``client`` (32 hex digits) and ``number``, the same at both nodes, in every repetition
    and in the records of client and worker. A plain Majordomo client has no numbers: then ``client`` is
    "mdp-" with its routing id, and ``number`` this process's own. ``sender`` is the routing id it came from,
    ``worker`` the one that had it last. A ``number`` of 2^62 or more comes from a key of the caller
    (BSN-G-14): all requests with that key have the same identity.

    ``outcome``: "answered"; "failed" (the handler raised); "expired", "poison". "lost": the worker died after
    PARTIALs, at the request's end, or with a request that must not be executed twice. "returned": the node
    gave up its role, or the request left the queue for its client to send it again; ``worker`` is empty if
    no worker had it. "late": a worker answered after "returned", and nobody got the reply.

    ``total_us`` counts from acceptance to the end, ``queued_us`` until the last dispatch, ``busy_us`` after
    it. ``deliveries`` counts those to workers, 0 if none. ``is_repeated``: the client said that an earlier
    attempt may have been executed. ``weight``: for how many requests this record stands (sampling).
    """

    client: str
    number: int
    service: str
    sender: str
    outcome: Literal["answered", "failed", "expired", "poison", "lost", "returned", "late"]
    epoch: int
    total_us: int
    queued_us: int = 0
    busy_us: int = 0
    worker: str = ""
    deliveries: int = 1
    is_repeated: bool = False
    partials: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    weight: float = 1.0


class Refused(Base, frozen=True, tag="refused"):
    """``count`` messages led to nothing for ``reason`` since the last such record; ``service`` if known."""

    reason: str
    count: int
    service: str = ""


class Load(Base, frozen=True, tag="load"):
    """One service in the ``interval_us`` that ends now. The counts are exact whatever the sampling.

    ``queued``, ``in_flight``, ``workers`` and ``credit`` (the requests that all workers take at once) are of
    this moment, ``busy_us`` is the time that workers held requests, summed over workers.
    """

    service: str
    interval_us: int
    workers: int
    credit: int
    queued: int
    in_flight: int
    busy_us: int
    accepted: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    expired: int = 0
    poisoned: int = 0
    lost: int = 0
    returned: int = 0
    redelivered: int = 0
    duplicates: int = 0


# --- clients ------------------------------------------------------------------------------------------------


class Call(Base, frozen=True, tag="call"):
    """A client's request has ended for its caller; ``at`` and ``mono`` are that moment.

    ``outcome``: "answered"; "failed" (the handler raised); certainly not executed: "busy", "rejected",
    "no-active"; not known: "timeout", "unknown", "interrupted" (a stream), "closed", "abandoned" (the caller
    went away). ``attempts`` counts how often it was sent (0: refused before it was, or it shared the request
    of another call with its key), ``busy`` how often a broker said BUSY. ``endpoint`` is where the reply came
    from, or the last attempt went to. ``reply_crc`` is the CRC-32 of the frames of an answered call's reply
    joined, ``bytes_out`` counts its octets, PARTIALs included.
    """

    client: str
    number: int
    service: str
    outcome: Literal[
        "answered",
        "failed",
        "busy",
        "rejected",
        "no-active",
        "timeout",
        "unknown",
        "interrupted",
        "closed",
        "abandoned",
    ]
    total_us: int
    attempts: int = 1
    busy: int = 0
    endpoint: str = ""
    epoch: int = 0
    is_idempotent: bool = True
    bytes_in: int = 0
    bytes_out: int = 0
    reply_crc: int | None = None
    weight: float = 1.0


class Connected(Base, frozen=True, tag="connected"):
    """The client's connection to a node is up."""

    endpoint: str


class Disconnected(Base, frozen=True, tag="disconnected"):
    """It broke, or could not be made."""

    endpoint: str
    reason: str


class ActiveFound(Base, frozen=True, tag="active-found"):
    """The client follows this node."""

    endpoint: str
    epoch: int


class ActiveLost(Base, frozen=True, tag="active-lost"):
    """The client stops following it; ``outstanding`` requests waited for replies."""

    endpoint: str
    reason: str
    outstanding: int


class FailedOver(Base, frozen=True, tag="failed-over"):
    """The client follows another node than before; for ``gap_us`` it knew of none."""

    endpoint: str
    from_endpoint: str
    reason: str
    epoch: int
    outstanding: int
    gap_us: int


# --- workers ------------------------------------------------------------------------------------------------


class Registered(Base, frozen=True, tag="registered"):
    """A node has this worker on its list."""

    endpoint: str


class Unregistered(Base, frozen=True, tag="unregistered"):
    """The worker's session with a node ended."""

    endpoint: str
    reason: str


class Execution(Base, frozen=True, tag="execution"):
    """A handler has ended: once for each time that a request was executed.

    ``outcome``: "answered", "failed" (it raised), "stuck" (it ran past its time and was given up).
    ``is_repeated``: the worker was told that the request may have been executed before. ``reply_crc`` is the
    CRC-32 of the reply's frames joined. Of a plain MDP request, which has no identity, ``client`` begins with
    "mdp-", as in Call, and cannot be joined to what others recorded.
    """

    client: str
    number: int
    service: str
    outcome: Literal["answered", "failed", "stuck"]
    epoch: int
    busy_us: int
    endpoint: str = ""
    is_repeated: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    reply_crc: int | None = None
    weight: float = 1.0


class Fenced(Base, frozen=True, tag="fenced"):
    """The worker refused a request of a node that has been superseded: ``epoch_seen`` is higher."""

    client: str
    number: int
    service: str
    epoch: int
    epoch_seen: int
    endpoint: str = ""


Record = (
    Started
    | Stopping
    | Stopped
    | SegmentClosed
    | Dropped
    | ClockStepped
    | Stalled
    | Pulse
    | StateChanged
    | Activated
    | Deactivated
    | PeerSeen
    | PeerLost
    | PeerAsked
    | PeerRejected
    | HandoverRefused
    | Claimed
    | ClientsCutOff
    | ArbiterSeen
    | ArbiterLost
    | Fatal
    | WorkerRegistered
    | WorkerLost
    | Request
    | Refused
    | Load
    | Call
    | Connected
    | Disconnected
    | ActiveFound
    | ActiveLost
    | FailedOver
    | Registered
    | Unregistered
    | Execution
    | Fenced
)

KINDS: dict[str, type[Base]] = {str(kind.__struct_config__.tag): kind for kind in Record.__args__}
"""Every type by the word that its lines carry."""

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Record)


def decode(line: bytes) -> Record:
    """Read one line. Raises msgspec.DecodeError for one that is no record of this version."""
    record: Record = _decoder.decode(line)
    if record.v != VERSION:
        raise msgspec.ValidationError(f"a record of version {record.v}; this program reads version {VERSION}")
    return record
