"""The outputs of the Binary Star machine: orders to its shell, in the order in which they must happen.

``PersistEpoch`` comes before everything that depends on it. ``Deactivated`` comes before the ``Publish`` that
tells the peer, ``Activated`` after it. So a node stops serving before it says so, and says so before it
serves.

Most outputs are a ``Report``: a level and a sentence for the log. INFO is for normal events: a start, a stop,
an operator's handover, a peer that arrives. WARNING is for events that may need an operator or explain an
incident: the role moved by itself, a node is lost, clients are cut off.
"""

from logging import ERROR, INFO, WARNING

import msgspec

from bstar.errors import PairError
from bstar.star.rules import Event, State
from bstar.wire.arbiter import Question
from bstar.wire.peer import PeerState

# Events that move the role without an operator: away from this node, or to it.
_GIVEN_UP = frozenset(
    {Event.PEER_ACTIVE, Event.STALL, Event.MAJORITY_LOST, Event.EPOCH_LEARNED, Event.CLIENTS_CUT_OFF}
)
_TAKEN_OVER = frozenset(
    {Event.CLIENT_REQUEST, Event.PEER_PRIMARY, Event.PEER_BACKUP, Event.MAJORITY_WON, Event.PROMOTE}
)


# --- what the shell does ------------------------------------------------------------------------------------


class PersistEpoch(msgspec.Struct, frozen=True, gc=False):
    """Keep ``epoch`` across restarts before anything below is carried out."""

    epoch: int


class PersistPause(msgspec.Struct, frozen=True, gc=False):
    """Keep across restarts that order ``number`` pauses takeovers for ``for_s`` seconds from now on."""

    number: int
    for_s: float
    why: str


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Send ``message`` to the peer."""

    message: PeerState


class AskArbiter(msgspec.Struct, frozen=True, gc=False):
    """Send ``question`` to the arbiter, now or never: a late answer is for an earlier claim."""

    question: Question


class Fatal(msgspec.Struct, frozen=True):
    """The node is in ERROR for good: end the process with ``error.exit_code``."""

    error: PairError


# --- what the shell logs ------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True, gc=False):
    """An output that people read: the log gets ``text`` at ``level`` (the numbers of ``logging``)."""

    @property
    def level(self) -> int:
        """How much it matters."""
        return INFO

    @property
    def text(self) -> str:
        """One sentence."""
        return str(self)


class Alert(Report, frozen=True, gc=False):
    """A report that may need an operator."""

    @property
    def level(self) -> int:
        """How much it matters."""
        return WARNING


class Activated(Report, frozen=True, gc=False):
    """Serve in ``epoch`` from now on. A node that learns a higher epoch while it is active gives out
    another one, without a Deactivated between them.
    """

    epoch: int
    reason: str

    def __str__(self) -> str:
        return f"active in epoch {self.epoch}: {self.reason}"


class Deactivated(Report, frozen=True, gc=False):
    """Serve no more."""

    reason: str

    def __str__(self) -> str:
        return f"no longer active: {self.reason}"


class StateChanged(Report, frozen=True, gc=False):
    """The node went from ``old`` to ``new`` on ``event``; ``reason`` is the rule's sentence."""

    old: State
    new: State
    event: Event
    reason: str

    @property
    def level(self) -> int:
        """How much it matters."""
        is_given_up = self.old is State.ACTIVE and self.event in _GIVEN_UP
        is_taken_over = self.old is State.PASSIVE and self.new is State.ACTIVE and self.event in _TAKEN_OVER
        return WARNING if is_given_up or is_taken_over or self.new is State.ERROR else INFO

    def __str__(self) -> str:
        return f"{self.old.name} -> {self.new.name} on {self.event.name}: {self.reason}"


class PeerAsked(Report, frozen=True, gc=False):
    """The node has asked its peer whether it serves, and waits for the answer."""

    reason: str

    def __str__(self) -> str:
        return f"asked the peer whether it serves: {self.reason}"


class PeerSeen(Report, frozen=True, gc=False):
    """The node hears its peer: for the first time, again after silence, or as a new process.
    ``differs`` says what only one of the two is configured to serve.
    """

    state: State
    node: str | None
    differs: str = ""

    @property
    def level(self) -> int:
        """How much it matters."""
        return WARNING if self.differs else INFO

    def __str__(self) -> str:
        differs = f"; {self.differs}" if self.differs else ""
        return f"peer is there: {self.state.name}, run {self.node or 'unknown'}{differs}"


class PeerLost(Report, frozen=True, gc=False):
    """The peer has been silent for the failover timeout. ``has_left``: it said that it leaves. ``is_gone``:
    its process has ended.
    """

    silent_s: float
    has_left: bool = False
    is_gone: bool = False

    @property
    def level(self) -> int:
        """How much it matters."""
        return INFO if self.has_left else WARNING

    def __str__(self) -> str:
        if self.has_left:
            return "peer has left"
        if self.is_gone:
            after = f"{self.silent_s:.3f} s after its last message"
            return f"peer is gone: its endpoint refuses connections, {after}"
        return f"peer silent for {self.silent_s:.3f} s"


class TimeoutAdapted(Report, frozen=True, gc=False):
    """The failover timeout went from ``old_s`` to ``new_s``: messages between the nodes were late, or have
    not been for minutes.
    """

    old_s: float
    new_s: float

    def __str__(self) -> str:
        why = "state messages come late" if self.new_s > self.old_s else "state messages come in time"
        return f"the failover timeout is {self.new_s:g} s now, it was {self.old_s:g} s: {why}"


class PeerRejected(Report, frozen=True, gc=False):
    """A node that cannot be our peer speaks. ``why`` names both values and what to change. Once per run of
    that node and reason.
    """

    reason: str
    why: str

    @property
    def level(self) -> int:
        """How much it matters."""
        return ERROR

    def __str__(self) -> str:
        return f"peer rejected: {self.why}"


class HandoverRefused(Alert, frozen=True, gc=False):
    """The role stays; ``why`` says the reason."""

    why: str

    def __str__(self) -> str:
        return f"the role stays: {self.why}"


class TakeoversPaused(Report, frozen=True, gc=False):
    """Takeovers are paused for ``for_s`` seconds from now on."""

    for_s: float
    why: str

    def __str__(self) -> str:
        return f"takeovers are paused for {self.for_s:.0f} s: {self.why}"


class TakeoversResumed(Report, frozen=True, gc=False):
    """The pause of takeovers is over."""

    why: str

    def __str__(self) -> str:
        return f"takeovers are resumed: {self.why}"


class Drained(Report, frozen=True, gc=False):
    """An operator has taken this node out of the pair."""

    why: str

    def __str__(self) -> str:
        return f"this node is drained and neither serves nor stands by: {self.why}"


class Rejoined(Report, frozen=True, gc=False):
    """The node is back in the pair."""

    why: str

    def __str__(self) -> str:
        return f"this node is drained no more: {self.why}"


class ClientsCutOff(Alert, frozen=True, gc=False):
    """Clients reach only the passive node; ``verdict`` says what this node does. ``clients`` could be served
    by the passive node; for ``unserved`` others it has no worker. Once per verdict.
    """

    clients: int
    unserved: int
    for_s: float
    verdict: str

    def __str__(self) -> str:
        others = f"; {self.unserved} more ask for services without a worker there" if self.unserved else ""
        return (
            f"{self.clients} clients have reached only the passive node for {self.for_s:.1f} s{others}: "
            f"this node {self.verdict}"
        )


class Claimed(Report, frozen=True, gc=False):
    """The node has a reason to serve and claims the majority. Once per claim."""

    reason: str

    def __str__(self) -> str:
        return f"claims the majority: {self.reason}"


class ArbiterSeen(Report, frozen=True, gc=False):
    """The arbiter answers: for the first time, or again."""

    def __str__(self) -> str:
        return "arbiter is there"


class ArbiterLost(Alert, frozen=True, gc=False):
    """The arbiter has not answered for the failover timeout. Nothing else happens because of it."""

    silent_s: float

    def __str__(self) -> str:
        return (
            f"arbiter has not answered for {self.silent_s:.3f} s: if the peer is lost as well, no node serves"
        )


Output = (
    PersistEpoch
    | PersistPause
    | Publish
    | StateChanged
    | Activated
    | Deactivated
    | PeerAsked
    | PeerSeen
    | PeerLost
    | TimeoutAdapted
    | PeerRejected
    | HandoverRefused
    | TakeoversPaused
    | TakeoversResumed
    | Drained
    | Rejoined
    | ClientsCutOff
    | AskArbiter
    | Claimed
    | ArbiterSeen
    | ArbiterLost
    | Fatal
)
