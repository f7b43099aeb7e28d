"""bstar: a pair of processes, one of which serves, with brokers, clients and workers for it.

The error classes load at once. Names that need sockets or the state machine library load on first use (PEP
562). So a client that only catches errors loads neither.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand
from bstar.errors import (
    BstarError,
    BulkCallError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    DeadLetterError,
    DeclinedError,
    DualActiveError,
    DualPassiveError,
    DurableError,
    ForkedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    PairError,
    PeerMismatchError,
    PipelineError,
    ProtocolError,
    RefusedError,
    RejectedError,
    RemoteProtocolError,
    RequestCancelledError,
    StoreEndedError,
    StoreError,
    StreamInterruptedError,
    UnknownRequestError,
    WorkerError,
)

if TYPE_CHECKING:
    from bstar.net.reactor import Reactor
    from bstar.pair.binary_star import BinaryStar
    from bstar.star import Role, State

__all__ = [
    "BinaryStar", "BstarError", "BulkCallError", "BusyError", "CallError", "CallTimeoutError", "ClosedError",
    "ConfigurationError", "DeadLetterError", "DeclinedError", "DualActiveError", "DualPassiveError",
    "DurableError", "ForkedError", "HandlerError", "LocalProtocolError", "NoActiveNodeError",
    "OutcomeUnknownError", "PairError", "PeerMismatchError", "PipelineError", "ProtocolError", "Reactor",
    "RefusedError", "RejectedError", "RemoteProtocolError", "RequestCancelledError", "Role", "State",
    "StoreEndedError", "StoreError", "StreamInterruptedError", "UnknownRequestError", "WorkerError",
    "__version__",
]  # fmt: skip

__version__ = "0.1.0"

__getattr__ = on_demand(
    __name__,
    {
        "bstar.pair.binary_star": ["BinaryStar"],
        "bstar.net.reactor": ["Reactor"],
        "bstar.star": ["Role", "State"],
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
