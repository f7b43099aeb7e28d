"""The broker without its sockets: pure, so that server, simulator and tests drive the same classes."""

from bstar_broker.core.node import Node
from bstar_broker.core.outputs import Dispatch, HangUp, Notice, Output, Send, StoreOutput
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.snapshot import NodeState

__all__ = [
    "BrokerSettings",
    "Dispatch",
    "HangUp",
    "Node",
    "NodeState",
    "Notice",
    "Output",
    "Send",
    "StoreOutput",
]
