"""The broker without its sockets: pure, so that server, simulator and tests drive the same classes.

Its names load on first use: the command needs the types of a snapshot and no node.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand

if TYPE_CHECKING:
    from bstar_broker.core.node import Node
    from bstar_broker.core.outputs import Dispatch, HangUp, Notice, Output, Send, StoreOutput
    from bstar_broker.core.settings import BrokerSettings
    from bstar_broker.core.snapshot import NodeState

__getattr__ = on_demand(
    __name__,
    {
        "bstar_broker.core.node": ["Node"],
        "bstar_broker.core.outputs": ["Dispatch", "HangUp", "Notice", "Output", "Send", "StoreOutput"],
        "bstar_broker.core.settings": ["BrokerSettings"],
        "bstar_broker.core.snapshot": ["NodeState"],
    },
)

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
