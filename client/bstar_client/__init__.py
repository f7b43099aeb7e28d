"""Clients and workers that find the active node of a pair by themselves.

    with HAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
        reply = client.request("echo", b"hello")

    Worker(["tcp://node1:5555", "tcp://node2:5555"], "echo", lambda request: request.body).run()

For several pairs, pass a list of such lists, a mapping from names to them, or a ``Fleet``.

The package is named ``bstar_client`` so that a program's own ``client.py`` cannot shadow it. It imports only
pyzmq and msgspec beside ``bstar``: no state machine library, no YAML, no metrics.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand
from bstar.errors import (
    BstarError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    DeadLetterError,
    DeclinedError,
    DurableError,
    ForkedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    ProtocolError,
    RefusedError,
    RejectedError,
    RemoteProtocolError,
    RequestCancelledError,
    StreamInterruptedError,
    UnknownRequestError,
    WorkerError,
)

if TYPE_CHECKING:
    from bstar.fleet import Fleet, Pair
    from bstar.security import Security
    from bstar.wire.progress import Progress
    from bstar_client.aio.brokerless import AsyncFreelance, AsyncLazyPirateClient, AsyncStarClient
    from bstar_client.aio.client import AsyncHAClient
    from bstar_client.aio.worker import AsyncHandler, AsyncWorker
    from bstar_client.app import App
    from bstar_client.arguments.declined import Declined
    from bstar_client.arguments.settings import LinkSettings
    from bstar_client.calls.durable import RetryPolicy, Task
    from bstar_client.calls.durable_answers import RequestStatus, Result
    from bstar_client.calls.status import NodeReport, node_states
    from bstar_client.core.calls import Ask, CallFailed, Reply
    from bstar_client.core.events import ActiveFound, ActiveLost, Connected, Disconnected, Event, FailedOver
    from bstar_client.journal import JournalSettings
    from bstar_client.sync.brokerless import Freelance, LazyPirateClient, StarClient
    from bstar_client.sync.client import HAClient
    from bstar_client.sync.freelance_server import FreelanceServer
    from bstar_client.sync.futures import CallFuture
    from bstar_client.sync.worker import Worker
    from bstar_client.workers.handlers import Handler, Request, Retry, WorkerHooks
    from bstar_client.workers.replies import ReplyMemory, ReplyStore
    from bstar_client.workers.reply_file import ReplyFile

__all__ = [
    "ActiveFound",
    "ActiveLost",
    "App",
    "Ask",
    "AsyncFreelance",
    "AsyncHAClient",
    "AsyncHandler",
    "AsyncLazyPirateClient",
    "AsyncStarClient",
    "AsyncWorker",
    "BstarError",
    "BusyError",
    "CallError",
    "CallFailed",
    "CallFuture",
    "CallTimeoutError",
    "ClosedError",
    "ConfigurationError",
    "Connected",
    "DeadLetterError",
    "Declined",
    "DeclinedError",
    "Disconnected",
    "DurableError",
    "Event",
    "FailedOver",
    "Fleet",
    "ForkedError",
    "Freelance",
    "FreelanceServer",
    "HAClient",
    "Handler",
    "HandlerError",
    "JournalSettings",
    "LazyPirateClient",
    "LinkSettings",
    "LocalProtocolError",
    "NoActiveNodeError",
    "NodeReport",
    "OutcomeUnknownError",
    "Pair",
    "Progress",
    "ProtocolError",
    "RefusedError",
    "RejectedError",
    "RemoteProtocolError",
    "Reply",
    "ReplyFile",
    "ReplyMemory",
    "ReplyStore",
    "Request",
    "RequestCancelledError",
    "RequestStatus",
    "Result",
    "Retry",
    "RetryPolicy",
    "Security",
    "StarClient",
    "StreamInterruptedError",
    "Task",
    "UnknownRequestError",
    "Worker",
    "WorkerError",
    "WorkerHooks",
    "node_states",
]

__getattr__ = on_demand(
    __name__,
    {
        "bstar.fleet": ["Fleet", "Pair"],
        "bstar.security": ["Security"],
        "bstar.wire.progress": ["Progress"],
        "bstar_client.aio.brokerless": ["AsyncFreelance", "AsyncLazyPirateClient", "AsyncStarClient"],
        "bstar_client.aio.client": ["AsyncHAClient"],
        "bstar_client.aio.worker": ["AsyncHandler", "AsyncWorker"],
        "bstar_client.app": ["App"],
        "bstar_client.core.calls": ["Ask", "CallFailed", "Reply"],
        "bstar_client.core.events": [
            "ActiveFound",
            "ActiveLost",
            "Connected",
            "Disconnected",
            "Event",
            "FailedOver",
        ],
        "bstar_client.calls.durable": ["RetryPolicy", "Task"],
        "bstar_client.calls.durable_answers": ["RequestStatus", "Result"],
        "bstar_client.workers.handlers": ["Handler", "Request", "Retry", "WorkerHooks"],
        "bstar_client.journal": ["JournalSettings"],
        "bstar_client.workers.replies": ["ReplyMemory", "ReplyStore"],
        "bstar_client.workers.reply_file": ["ReplyFile"],
        "bstar_client.arguments.declined": ["Declined"],
        "bstar_client.arguments.settings": ["LinkSettings"],
        "bstar_client.calls.status": ["NodeReport", "node_states"],
        "bstar_client.sync.brokerless": ["Freelance", "LazyPirateClient", "StarClient"],
        "bstar_client.sync.client": ["HAClient"],
        "bstar_client.sync.freelance_server": ["FreelanceServer"],
        "bstar_client.sync.futures": ["CallFuture"],
        "bstar_client.sync.worker": ["Worker"],
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
