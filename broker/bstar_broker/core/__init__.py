"""The broker without its sockets: pure, so that a server, a simulator and a test drive the very same classes."""

from bstar_broker.core.node import Node
from bstar_broker.core.outputs import Dispatch, Drained, Output, Send
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.snapshot import NodeState

__all__ = ["BrokerSettings", "Dispatch", "Drained", "Node", "NodeState", "Output", "Send"]
