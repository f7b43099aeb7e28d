"""The Binary Star's rules as one table, with the reasons beside them.

Two nodes, a primary and a backup, tell each other their states; at most one serves. A node's next step
follows from its own state, the event, and facts about the peer (the guards). The rules are tried from top to
bottom: the first one for the state and the event whose guard holds applies. If no rule applies, nothing
changes.

This is the published table (PROTOCOLS 9.3, BST-S-03) with rules for what it leaves open: which node yields
when both are active, what a node does after it was away, handovers, and epochs. For a peer of the published
one-frame message only the published rows and the rules for yielding apply.

With an arbiter a node may serve only with the majority of three voters (``quorum``). So before every rule
that begins to serve stands one for a missing majority: the node keeps its state and claims. ``_with_claims``
writes these rules, so that none can be forgotten.

``chart`` builds a state chart of ``transitions`` from this table, and ``StarMachine`` obeys the chart.
docs/binary-star.md shows the table. The tests compare the chart with a twin written by hand.
"""

import enum

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState


class Role(enum.Enum):
    """Which of the two nodes this is. It is configured and never changes."""

    PRIMARY = "primary"
    BACKUP = "backup"

    @property
    def peer(self) -> "Role":
        """The other node's role."""
        return Role.BACKUP if self is Role.PRIMARY else Role.PRIMARY


class State(enum.IntEnum):
    """A node's state. The numbers 1 to 4 are the published wire codes; ERROR is never sent to the peer."""

    PRIMARY = 1  # the primary, and it has not met its peer
    BACKUP = 2  # the backup, and it has not met its peer
    ACTIVE = 3  # serves clients
    PASSIVE = 4  # stands by
    ERROR = 5  # cannot go on; the process ends


# --- what the shell tells a node ----------------------------------------------------------------------------


class PeerMessage(msgspec.Struct, frozen=True, gc=False):
    """A state message of the peer, as ``bstar.wire.peer.decode`` read it."""

    message: PeerState


class PeerGarbage(msgspec.Struct, frozen=True):
    """Something that is no state message arrived on the peer link."""

    error: RemoteProtocolError


class LinkLost(msgspec.Struct, frozen=True, gc=False):
    """The connection on which the peer was heard broke."""


class PeerRefused(msgspec.Struct, frozen=True, gc=False):
    """After ``LinkLost`` the peer's endpoint refused a new connection: no process listens there."""


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """Somebody has subscribed to this node's state; ``is_published``: as published servers do."""

    is_published: bool = False


class ArbiterAnswer(msgspec.Struct, frozen=True, gc=False):
    """The arbiter's answer to a question of this node."""

    answer: Answer


class Vote(msgspec.Struct, frozen=True, gc=False):
    """A client asks to be served while this node is not active. ``serve_until`` is the verdict."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A native client's vote was refused. ``has_worker``: a worker here could serve it."""

    client: bytes
    has_worker: bool


class EpochHeard(msgspec.Struct, frozen=True, gc=False):
    """A worker remembers ``epoch``."""

    epoch: int


class Stall(msgspec.Struct, frozen=True, gc=False):
    """The process was away for ``gap_s`` seconds. It comes before everything that queued up meanwhile."""

    gap_s: float


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The time is ``next_deadline`` or later."""


class Handover(msgspec.Struct, frozen=True, gc=False):
    """The operator asks to give the role to the peer."""


class Promotion(msgspec.Struct, frozen=True, gc=False):
    """The operator vouches that the primary does not run: a backup that never met it may serve.
    ``is_trial``: change nothing, only tell whether it would be refused.
    """

    is_trial: bool = False


class PauseTakeovers(msgspec.Struct, frozen=True, gc=False):
    """The operator pauses takeovers for ``for_s`` seconds, because of ``why`` (``takeover_pause``)."""

    for_s: float
    why: str


class ResumeTakeovers(msgspec.Struct, frozen=True, gc=False):
    """The operator ends the pause of takeovers, because of ``why``."""

    why: str


class PauseKept(msgspec.Struct, frozen=True, gc=False):
    """Before this run, order ``number`` paused takeovers, and ``for_s`` seconds of that are left."""

    number: int
    for_s: float
    why: str


class Drain(msgspec.Struct, frozen=True, gc=False):
    """The operator takes this node, which does not serve, out of the pair, because of ``why``."""

    why: str


class Rejoin(msgspec.Struct, frozen=True, gc=False):
    """The operator puts the node back, because of ``why``."""

    why: str


class Leave(msgspec.Struct, frozen=True, gc=False):
    """The process is about to end."""


Input = (
    PeerMessage
    | PeerGarbage
    | LinkLost
    | PeerRefused
    | Subscription
    | ArbiterAnswer
    | Vote
    | Refusal
    | EpochHeard
    | Stall
    | Tick
    | Handover
    | Promotion
    | PauseTakeovers
    | ResumeTakeovers
    | PauseKept
    | Drain
    | Rejoin
    | Leave
)


# --- what that means to the table ---------------------------------------------------------------------------


class Event(enum.Enum):
    """The events of the rules. The value is its description."""

    PEER_PRIMARY = "the peer says PRIMARY"
    PEER_BACKUP = "the peer says BACKUP"
    PEER_ACTIVE = "the peer says ACTIVE"
    PEER_PASSIVE = "the peer says PASSIVE"
    PEER_MISMATCH = "a node that cannot be our peer speaks"
    PEER_TAKEN = "the peer goes on hearing another node in our place"
    CLIENT_REQUEST = "a client asks to be served"
    STALL = "this process was away for the failover timeout"
    HANDOVER = "the operator asks to hand over"
    CLIENTS_CUT_OFF = "the peer says that clients reach it and not us"
    PROMOTE = "the operator vouches that the primary does not run"
    LEAVE = "this process is about to end"
    EPOCH_LEARNED = "an epoch above our own turned up"
    MAJORITY_WON = "with an arbiter: the majority that we claimed is ours"
    MAJORITY_LOST = "with an arbiter: neither the peer nor the arbiter confirms us any more"


class Guard(enum.Enum):
    """A condition of a rule: the name, in small letters, of a fact in ``Facts``. The value is its
    description.
    """

    ALWAYS = "always"
    PEER_SILENT = "the peer has been silent for the failover timeout"
    HELD = "takeovers are paused, and another node has served since this one did"
    PEER_LEAVING = "the peer gave the role up and its process ends"
    PEER_OUTRANKS = "the stranger is ACTIVE with a higher epoch"
    POLICY_EXIT = "on_dual_active is exit"
    PEER_WINS = "the peer's epoch is higher (equal or unknown: the peer is the primary)"
    PEER_DEAF = "the peer has gone on for a failover timeout although our epoch is higher"
    PEER_READY = "the peer was heard of late, is PASSIVE and speaks our dialect"
    NO_CLIENT_SERVED = (
        "no client was served here in that time, and the role has settled since the last handover"
    )
    PEER_MAY_BE_ACTIVE = "the learned epoch is of the peer's parity and not the word of a PASSIVE peer itself"
    PEER_RELEASED = "the peer gave the role up, in an epoch above our own"
    RELEASED = "we gave the role up and the peer has not taken it yet"
    ANSWERED = "the peer answered our question (and, if it asks as well, our epoch is higher)"
    ASKING = "we have asked the peer"
    PEER_ASKING = "the peer asks us"
    PEER_NATIVE = "the peer speaks our dialect"
    MAJORITY_MISSING = "there is an arbiter, and the majority is not ours"


class Effect(enum.Enum):
    """A rule's effect beside the change of state. Entering ACTIVE always takes a new epoch."""

    NONE = "–"
    ASK = "asks the peer"
    RELEASE = "gives the role up"
    SETTLE = "neither asks nor offers any more"
    CLAIM = "claims the majority"
    DUAL_ACTIVE = "ends with status 70"
    DUAL_PASSIVE = "ends with status 71"
    MISMATCH = "ends with status 72"


class Facts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The facts that guards ask about, as they are when the event is handled."""

    peer_silent: bool = False
    held: bool = False
    peer_leaving: bool = False
    peer_outranks: bool = False
    policy_exit: bool = False
    peer_wins: bool = False
    peer_deaf: bool = False
    peer_ready: bool = False
    no_client_served: bool = False
    peer_may_be_active: bool = False
    peer_released: bool = False
    released: bool = False
    answered: bool = False
    asking: bool = False
    peer_asking: bool = False
    peer_native: bool = False
    majority_missing: bool = False


def holds(guard: Guard, facts: Facts) -> bool:
    """True if ``guard`` lets its rule apply."""
    return guard is Guard.ALWAYS or bool(getattr(facts, guard.name.lower()))


class Rule(msgspec.Struct, frozen=True):
    """In ``state``, on ``event``, if ``guard`` and ``also`` hold: go to ``next_state`` with ``effect``,
    because of ``reason``.
    """

    state: State
    event: Event
    next_state: State
    reason: str
    guard: Guard = Guard.ALWAYS
    effect: Effect = Effect.NONE
    also: Guard = Guard.ALWAYS


def _with_claims(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Put a rule for a missing majority before every rule that begins to serve."""
    expanded: list[Rule] = []
    for rule in rules:
        if (
            rule.next_state is State.ACTIVE
            and rule.state is not State.ACTIVE
            and rule.event is not Event.MAJORITY_WON
        ):
            reason = f"{rule.reason.rstrip('.')}, but the majority is to be won."
            expanded.append(
                Rule(
                    rule.state,
                    rule.event,
                    rule.state,
                    reason,
                    rule.guard,
                    Effect.CLAIM,
                    Guard.MAJORITY_MISSING,
                )
            )
        expanded.append(rule)
    return tuple(expanded)


_PRIMARY, _BACKUP, _ACTIVE, _PASSIVE, _ERROR = State
on, when, then = Event, Guard, Effect

_RULES: tuple[Rule, ...] = (
    # --- starting as the primary ----------------------------------------------------------------------------
    Rule(_PRIMARY, on.PEER_BACKUP, _ACTIVE, "The backup waits for us to begin."),
    Rule(_PRIMARY, on.PEER_ACTIVE, _PASSIVE, "The backup took over; this node stands by."),
    Rule(_PRIMARY, on.PEER_PASSIVE, _ACTIVE, "The active backup leaves the role to us.", when.PEER_LEAVING),
    # Not before one expiry: an active backup's first message may be on its way (BST-R-01).
    Rule(_PRIMARY, on.CLIENT_REQUEST, _ACTIVE, "No backup is to be heard.", when.PEER_SILENT),
    Rule(_PRIMARY, on.PEER_MISMATCH, _ERROR, "The two nodes cannot be a pair.", effect=then.MISMATCH),
    Rule(_PRIMARY, on.PEER_TAKEN, _ERROR, "The peer is another node's.", effect=then.MISMATCH),
    Rule(_PRIMARY, on.MAJORITY_WON, _ACTIVE, "The majority that we claimed is ours."),
    # --- starting as the backup: alone it never serves, however long it waits -------------------------------
    Rule(_BACKUP, on.PEER_ACTIVE, _PASSIVE, "The primary serves."),
    Rule(_BACKUP, on.PEER_PASSIVE, _ACTIVE, "The active primary leaves the role to us.", when.PEER_LEAVING),
    Rule(_BACKUP, on.PEER_MISMATCH, _ERROR, "The two nodes cannot be a pair.", effect=then.MISMATCH),
    Rule(_BACKUP, on.PEER_TAKEN, _ERROR, "The peer is another node's.", effect=then.MISMATCH),
    # The one way to serve without having met the primary: somebody has looked (``bstar promote``).
    Rule(_BACKUP, on.PROMOTE, _ACTIVE, "The operator vouches that the primary is dead.", when.PEER_SILENT),
    Rule(_BACKUP, on.MAJORITY_WON, _ACTIVE, "The majority that we claimed is ours."),
    # --- serving --------------------------------------------------------------------------------------------
    Rule(_ACTIVE, on.PEER_ACTIVE, _ERROR, "Both are active.", when.POLICY_EXIT, then.DUAL_ACTIVE),
    Rule(_ACTIVE, on.PEER_ACTIVE, _PASSIVE, "Both are active; the peer's claim is better.", when.PEER_WINS),
    # A peer that hears us would have yielded, so the link works in one direction only; one of us must stop.
    Rule(_ACTIVE, on.PEER_ACTIVE, _PASSIVE, "Both are active; the peer is deaf.", when.PEER_DEAF, then.ASK),
    # The peer may have taken over meanwhile, so queued requests wait for its answer.
    Rule(_ACTIVE, on.STALL, _PASSIVE, "We were away; the peer may have taken over.", effect=then.ASK),
    # The peer may have the majority now, or only the network failed. So we ask.
    Rule(
        _ACTIVE, on.MAJORITY_LOST, _PASSIVE, "Neither the peer nor the arbiter confirms us.", effect=then.ASK
    ),
    Rule(_ACTIVE, on.HANDOVER, _PASSIVE, "The operator asked for it.", when.PEER_READY, then.RELEASE),
    # A client that is served here keeps the role here. One that lies, or sees one node only, moves nothing.
    Rule(
        _ACTIVE,
        on.CLIENTS_CUT_OFF,
        _PASSIVE,
        "Clients reach the peer and not us.",
        when.PEER_READY,
        then.RELEASE,
        when.NO_CLIENT_SERVED,
    ),
    Rule(_ACTIVE, on.LEAVE, _PASSIVE, "This process is about to end.", effect=then.RELEASE),
    # If it was only a memory, the peer's answer, or its silence and a vote, brings us back above it.
    Rule(_ACTIVE, on.EPOCH_LEARNED, _PASSIVE, "The peer may serve.", when.PEER_MAY_BE_ACTIVE, then.ASK),
    # Workers obey the highest epoch they have seen; without this they would refuse us for ever.
    Rule(_ACTIVE, on.EPOCH_LEARNED, _ACTIVE, "A higher epoch is remembered in which no node serves."),
    # A newcomer with a wrong configuration must not end a healthy node; but two must not both serve.
    Rule(_ACTIVE, on.PEER_MISMATCH, _ERROR, "A stranger serves above us.", when.PEER_OUTRANKS, then.MISMATCH),
    # Of two nodes in one role, this one has no peer, and only this one can notice it.
    Rule(_ACTIVE, on.PEER_TAKEN, _ERROR, "The peer is another node's.", effect=then.MISMATCH),
    # --- standing by ----------------------------------------------------------------------------------------
    Rule(_PASSIVE, on.PEER_PRIMARY, _ACTIVE, "The primary has just started again, so it does not serve."),
    Rule(_PASSIVE, on.PEER_BACKUP, _ACTIVE, "The backup has just started again, so it does not serve."),
    Rule(_PASSIVE, on.PEER_ACTIVE, _PASSIVE, "The peer serves.", effect=then.SETTLE),
    Rule(_PASSIVE, on.PEER_PASSIVE, _ACTIVE, "The peer gave us the role.", when.PEER_RELEASED),
    Rule(_PASSIVE, on.PEER_PASSIVE, _PASSIVE, "The peer has yet to read that we gave it up.", when.RELEASED),
    Rule(_PASSIVE, on.PEER_PASSIVE, _ACTIVE, "The peer answered that it does not serve.", when.ANSWERED),
    Rule(_PASSIVE, on.PEER_PASSIVE, _PASSIVE, "The answer is to come, or the peer goes first.", when.ASKING),
    Rule(_PASSIVE, on.PEER_PASSIVE, _PASSIVE, "The peer resumes when it has our answer.", when.PEER_ASKING),
    # With a native peer no operator is needed: both ask, and the last active node resumes.
    Rule(_PASSIVE, on.PEER_PASSIVE, _PASSIVE, "Neither is active.", when.PEER_NATIVE, then.ASK),
    Rule(_PASSIVE, on.PEER_PASSIVE, _ERROR, "Neither is active.", effect=then.DUAL_PASSIVE),
    # Queued messages may show a peer that was just starting. It may serve now.
    Rule(_PASSIVE, on.STALL, _PASSIVE, "We were away; what we know of the peer is old.", effect=then.ASK),
    # Its words, below and above, still count: only silence may be the network on which somebody works.
    Rule(
        _PASSIVE,
        on.CLIENT_REQUEST,
        _PASSIVE,
        "The peer is silent, but an operator has paused takeovers.",
        when.PEER_SILENT,
        also=when.HELD,
    ),
    Rule(_PASSIVE, on.CLIENT_REQUEST, _ACTIVE, "The peer is silent: failover.", when.PEER_SILENT),
    Rule(_PASSIVE, on.PEER_TAKEN, _ERROR, "The peer is another node's.", effect=then.MISMATCH),
    Rule(_PASSIVE, on.MAJORITY_WON, _ACTIVE, "The majority that we claimed is ours."),
)

RULES = _with_claims(_RULES)

_FIRST: dict[tuple[State, Event], Rule] = {}
for _rule in RULES:
    _FIRST.setdefault((_rule.state, _rule.event), _rule)


def asks_facts(state: State, event: Event) -> bool:
    """False if the facts do not matter: there is no rule, or the first one always applies."""
    rule = _FIRST.get((state, event))
    return rule is not None and not rule.guard is rule.also is Guard.ALWAYS
