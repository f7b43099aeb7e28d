"""bstar: two processes of which exactly one serves, and the brokers, clients and workers that live with that.

The error classes are here at once. What needs sockets or the state machine library is loaded when it is first
asked for (PEP 562), so a client that only wants to catch an error loads neither.
"""

from typing import TYPE_CHECKING

from bstar.errors import (
    BstarError,
    BulkCallError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    DualActiveError,
    DualPassiveError,
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
    StreamInterruptedError,
    WorkerError,
)
from bstar.on_demand import on_demand

if TYPE_CHECKING:
    from bstar.pair import BinaryStar
    from bstar.reactor import Reactor
    from bstar.star import Role, State

__all__ = [
    "BinaryStar", "BstarError", "BulkCallError", "BusyError", "CallError", "CallTimeoutError", "ClosedError",
    "ConfigurationError", "DualActiveError", "DualPassiveError", "ForkedError", "HandlerError",
    "LocalProtocolError", "NoActiveNodeError", "OutcomeUnknownError", "PairError", "PeerMismatchError",
    "PipelineError", "ProtocolError", "Reactor", "RefusedError", "RejectedError", "RemoteProtocolError",
    "Role", "State", "StreamInterruptedError", "WorkerError", "__version__",
]  # fmt: skip

__version__ = "0.1.0"

__getattr__ = on_demand(
    __name__, {"bstar.pair": ["BinaryStar"], "bstar.reactor": ["Reactor"], "bstar.star": ["Role", "State"]}
)


def __dir__() -> list[str]:
    return sorted(__all__)
