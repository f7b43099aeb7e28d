"""What a worker's core asks its shell to do. Small, frozen, to be carried out in order."""

import msgspec

from bstar.errors import BstarError
from bstar_client.core.outputs import Send
from bstar_client.core.worker_dialects import Job


class Open(msgspec.Struct, frozen=True, gc=False):
    """Make a new socket to this node and connect it."""

    node: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the socket to this node."""

    node: int


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """Connect the keepalive to this node, as ``routing_id``, in the place of an earlier one.

    It is a second connection over which libzmq alone talks: a PING each ``interval_ms``, which tells the
    broker to close it when none follows within ``ttl_ms``. It needs no interpreter, so a handler that holds
    the GIL does not look like a dead process (BSN-W-13).
    """

    node: int
    routing_id: bytes
    interval_ms: int
    ttl_ms: int


class Late(msgspec.Struct, frozen=True, gc=False):
    """The process did not come to send a heartbeat for so long after it was due.

    ``is_busy``: a handler ran meanwhile.
    """

    late_s: float
    is_busy: bool


class Begin(msgspec.Struct, frozen=True, gc=False):
    """Run the handler on each of these requests, in order, after it was claimed (``WorkerCore.claim``).

    ``are_one_clients``: one client sent all of them.
    """

    jobs: list[Job]
    are_one_clients: bool = False


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """This request's handler is stuck: leave it alone and make room for another."""

    job: Job


class Fenced(msgspec.Struct, frozen=True, gc=False):
    """A request of a superseded node was refused; ``epoch_seen`` is the epoch that superseded it."""

    job: Job
    epoch_seen: int


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A node has the worker on its list (plain MDP: it was told, and does not confirm)."""

    endpoint: str


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The session with a node ended. ``reason``: disconnected, silent, or what its DISCONNECT said."""

    endpoint: str
    reason: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The worker is done: drained, or with an error."""

    error: BstarError | None = None


WorkerOutput = Send | Open | Close | KeepAlive | Late | Begin | Abandon | Fenced | Registered | Lost | Ended
