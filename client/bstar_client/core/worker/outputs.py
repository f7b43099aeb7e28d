"""The outputs of a worker's core: small frozen orders to its shell, in sequence."""

import msgspec

from bstar.errors import BstarError
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job


class Open(msgspec.Struct, frozen=True, gc=False):
    """Make a new socket to this node and connect it."""

    node: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the socket to this node."""

    node: int


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """Connect the keepalive to this node, as ``routing_id``. It replaces an earlier one.

    It is a second connection that only libzmq uses: it sends a PING each ``interval_ms``. The broker closes
    the connection if no PING follows within ``ttl_ms``. A PING needs no interpreter, so a handler that holds
    the GIL does not look like a dead process (BSN-W-13).
    """

    node: int
    routing_id: bytes
    interval_ms: int
    ttl_ms: int


class Late(msgspec.Struct, frozen=True, gc=False):
    """The process sent a heartbeat this much too late.

    ``is_busy``: a handler ran meanwhile.
    """

    late_s: float
    is_busy: bool


class Begin(msgspec.Struct, frozen=True, gc=False):
    """Run the handler on each of these requests, in order. Claim each one first (``WorkerCore.claim``).

    ``are_one_clients``: one client sent all of them.
    """

    jobs: list[Job]
    are_one_clients: bool = False


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """This request's handler is stuck: give it up and make room for another."""

    job: Job


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """No client waits for this request any more: notify its handler, which runs."""

    job: Job


class Fenced(msgspec.Struct, frozen=True, gc=False):
    """The worker refused a request of a superseded node; ``epoch_seen`` is the higher epoch."""

    job: Job
    epoch_seen: int


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A node has registered the worker (plain MDP: it got READY, and does not confirm)."""

    endpoint: str


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The session with a node ended. ``reason``: disconnected, silent, or the text of its DISCONNECT."""

    endpoint: str
    reason: str


class Unregistered(msgspec.Struct, frozen=True, gc=False):
    """These nodes have not had the worker on their lists for some time: warn."""

    endpoints: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The worker has ended: drained, or with an error."""

    error: BstarError | None = None


WorkerOutput = (
    Send
    | Open
    | Close
    | KeepAlive
    | Late
    | Begin
    | Abandon
    | Cancel
    | Fenced
    | Registered
    | Lost
    | Unregistered
    | Ended
)
