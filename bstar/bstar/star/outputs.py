"""What the Binary Star machine asks its shell to do, in the order in which it must happen.

``PersistEpoch`` comes before everything that depends on it. ``Deactivated`` comes before the ``Publish`` that
tells the peer, and ``Activated`` after it: a node stops serving before it says so, and says so before it
serves.
"""

import msgspec

from bstar.errors import PairError
from bstar.star.rules import Event, State
from bstar.wire.arbiter import Question
from bstar.wire.peer import PeerState

__all__ = [
    "Activated",
    "ArbiterLost",
    "ArbiterSeen",
    "AskArbiter",
    "Claimed",
    "ClientsCutOff",
    "Deactivated",
    "Fatal",
    "HandoverRefused",
    "Output",
    "PeerAsked",
    "PeerLost",
    "PeerRejected",
    "PeerSeen",
    "PersistEpoch",
    "Publish",
    "StateChanged",
]


class PersistEpoch(msgspec.Struct, frozen=True, gc=False):
    """Keep ``epoch`` across restarts before anything below is carried out."""

    epoch: int


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Send ``message`` to the peer."""

    message: PeerState


class AskArbiter(msgspec.Struct, frozen=True, gc=False):
    """Send ``question`` to the arbiter, now or never: one that waits would be answered for a claim of old."""

    question: Question


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The node has a reason to serve and claims the majority. Once per claim."""

    reason: str


class ArbiterSeen(msgspec.Struct, frozen=True, gc=False):
    """The arbiter answers: for the first time, or again."""


class ArbiterLost(msgspec.Struct, frozen=True, gc=False):
    """The arbiter has not answered for the failover timeout. Nothing else happens because of it."""

    silent_s: float


class StateChanged(msgspec.Struct, frozen=True, gc=False):
    """The node went from ``old`` to ``new`` on ``event``; ``reason`` is the rule's sentence."""

    old: State
    new: State
    event: Event
    reason: str


class Activated(msgspec.Struct, frozen=True, gc=False):
    """Serve from now on, in ``epoch``. Comes again, with a higher epoch, without a Deactivated in between
    when a higher epoch was learned while active.
    """

    epoch: int
    reason: str


class Deactivated(msgspec.Struct, frozen=True, gc=False):
    """Serve no more."""

    reason: str


class PeerAsked(msgspec.Struct, frozen=True, gc=False):
    """The node has asked its peer whether it serves, and waits for the answer."""

    reason: str


class PeerSeen(msgspec.Struct, frozen=True, gc=False):
    """The peer is to be heard: for the first time, again after silence, or as a new process."""

    state: State
    node: str | None


class PeerLost(msgspec.Struct, frozen=True, gc=False):
    """The peer has been silent for the failover timeout, ``has_left`` and said so, or ``is_gone``: its
    process no longer exists.
    """

    silent_s: float
    has_left: bool = False
    is_gone: bool = False


class PeerRejected(msgspec.Struct, frozen=True, gc=False):
    """A node that cannot be our peer speaks. ``text`` says both values and what to change where; once per run
    of that node and reason.
    """

    reason: str
    text: str


class HandoverRefused(msgspec.Struct, frozen=True, gc=False):
    """The role stays where it is; ``text`` says why."""

    text: str


class ClientsCutOff(msgspec.Struct, frozen=True, gc=False):
    """Clients reach the passive node and not the active one, and what this node does about it. ``clients``
    could be served by the passive node; for ``unserved`` others it has no worker. Once per verdict.
    """

    clients: int
    unserved: int
    for_s: float
    verdict: str


class Fatal(msgspec.Struct, frozen=True):
    """The node is in ERROR for good: end the process with ``error.exit_code``."""

    error: PairError


Output = (
    PersistEpoch
    | Publish
    | StateChanged
    | Activated
    | Deactivated
    | PeerAsked
    | PeerSeen
    | PeerLost
    | PeerRejected
    | HandoverRefused
    | ClientsCutOff
    | AskArbiter
    | Claimed
    | ArbiterSeen
    | ArbiterLost
    | Fatal
)
