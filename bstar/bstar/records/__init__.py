"""The events of a pair as a journal keeps them: one JSON object a line, one type here for each kind.

Brokers write them, and clients and workers if configured. Every record says which process wrote it
(``pair``, ``node``, ``boot``) and where it stands among that process's records (``seq``), so a record that
came twice is known by ``boot`` and ``seq``, and one that is missing leaves a gap. It has two times: ``at`` of
the wall clock, to lay the journals of several machines side by side, and ``mono`` of the monotonic clock, for
everything that is measured. Fields with their default value are left out of the line.

``VERSION`` goes up when a line can no longer be read as it was: when a field changes its meaning, its unit or
its type, or goes away. A new kind and a new field with a default do not change it, and readers skip what they
do not know.

Names of fields mean the same in every kind. Times are in microseconds, identities in hexadecimal.
"""

import msgspec

from bstar.records.base import VERSION, Base
from bstar.records.broker import (
    BrokerRecord,
    Load,
    OrderGiven,
    Refused,
    Request,
    ServiceOrdered,
    WorkerLost,
    WorkerRegistered,
)
from bstar.records.client import (
    ActiveFound,
    ActiveLost,
    Call,
    ClientRecord,
    Connected,
    Disconnected,
    FailedOver,
)
from bstar.records.pair import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    Claimed,
    ClientsCutOff,
    Deactivated,
    Drained,
    Fatal,
    HandoverRefused,
    PairRecord,
    PeerAsked,
    PeerLost,
    PeerRejected,
    PeerSeen,
    Rejoined,
    StateChanged,
    TakeoversPaused,
    TakeoversResumed,
    TimeoutAdapted,
)
from bstar.records.process import (
    ClockStepped,
    Dropped,
    ProcessRecord,
    Pulse,
    SegmentClosed,
    Stalled,
    Started,
    Stopped,
    Stopping,
)
from bstar.records.store import Durable, StorePulse, StoreRecord
from bstar.records.worker import Execution, Fenced, Registered, Unregistered, WorkerRecord

__all__ = [
    "KINDS", "VERSION", "Activated", "ActiveFound", "ActiveLost", "ArbiterLost", "ArbiterSeen", "Base",
    "Call", "Claimed", "ClientsCutOff", "ClockStepped", "Connected", "Deactivated", "Disconnected",
    "Drained", "Dropped", "Durable", "Execution", "FailedOver", "Fatal", "Fenced", "HandoverRefused",
    "Load", "OrderGiven", "PeerAsked", "PeerLost", "PeerRejected", "PeerSeen", "Pulse", "Record",
    "Refused", "Registered", "Rejoined", "Request", "SegmentClosed", "ServiceOrdered", "Stalled", "Started",
    "StateChanged", "Stopped", "Stopping", "StorePulse", "TakeoversPaused", "TakeoversResumed",
    "TimeoutAdapted", "Unregistered", "WorkerLost", "WorkerRegistered", "decode", "encode",
]  # fmt: skip

Record = ProcessRecord | PairRecord | BrokerRecord | StoreRecord | ClientRecord | WorkerRecord

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
