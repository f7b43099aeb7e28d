"""Sentences for people when two nodes cannot be a pair: who, what, and what to do about it.

``mismatch`` also decides whether they can, because each reason has its own text. ``rules`` says when that
ends a node.
"""

from bstar.errors import DualActiveError, DualPassiveError, PairError, PeerMismatchError
from bstar.star.quorum import Quorum
from bstar.star.rules import Effect, State
from bstar.star.settings import StarSettings
from bstar.wire.peer import PeerState

# How many characters of a stranger's text go into ours.
_TEXT_MAX = 100


def mismatch(message: PeerState, ours: StarSettings, node: str) -> tuple[str, str] | None:
    """Why the sender cannot be the peer of ``node``: a slug and a text that says what to change."""
    if message.node is None:
        if not ours.arbiter:
            return None
        return "published", (
            "the other node speaks the published one-frame message, which knows no leases: run this "
            "release on both nodes, or none with an arbiter"
        )
    if message.node == node:
        return (
            "self",
            "this node hears itself: its peer's state endpoint must be the other node's, not its own",
        )
    if message.pair != ours.pair:
        return "pair", _unequal("pair", ours.pair, message.pair)
    if message.role == ours.role.value:
        return "role", (
            f"role is {ours.role.value} on both nodes: make it {ours.role.peer.value} on one of them"
        )
    if message.heartbeat_ms != ours.heartbeat_ms:
        return "heartbeat", _unequal("heartbeat_interval_s", ours.heartbeat_ms, message.heartbeat_ms, " ms")
    if message.timeout_ms != ours.failover_timeout_ms:
        return "timeout", _unequal("failover_timeout_s", ours.failover_timeout_ms, message.timeout_ms, " ms")
    # A peer whose timeout is fixed fits, and then ours is fixed as well.
    if ours.is_adaptive and message.timeout_max_ms not in (0, ours.failover_timeout_max_ms):
        return "timeout-max", _unequal(
            "failover_timeout_max_s", ours.failover_timeout_max_ms, message.timeout_max_ms, " ms"
        )
    if message.arbiter != ours.arbiter:
        return "arbiter", _unequal(
            "endpoints.arbiter", ours.arbiter or "none", (message.arbiter or "none")[:_TEXT_MAX]
        )
    return None


def fronts_apart(ours: StarSettings, theirs: frozenset[str]) -> str:
    """Which fronts only one of the two nodes serves, and what to do; empty if they serve the same."""
    own = frozenset(ours.fronts)
    alone = ((own - theirs, ours.role), (theirs - own, ours.role.peer))
    only = [f"{', '.join(sorted(names))} on the {role.value} only" for names, role in alone if names]
    if not only:
        return ""
    return f"fronts: {' and '.join(only)}: configure the same on both, or their peers lose service with it"


def trouble(state: State, quorum: Quorum | None) -> str:
    """Why a node with a silent peer cannot play its part, and what to do; empty if it can."""
    if quorum is not None and quorum.is_arbiter_there is not True:
        return (
            "neither the peer nor the arbiter answers, and alone this node never serves: start one of them, "
            "or mend the network"
        )
    if state is State.BACKUP:
        return (
            "this backup has not met its primary and never starts alone: start the primary, or mend the link "
            "between their state endpoints; if the primary is dead for good: bstar promote"
        )
    return ""


def rivalry(rival: str, ours: StarSettings) -> str:
    """What to do when the peer hears the run ``rival`` and not ours."""
    role, peer = ours.role.value, ours.role.peer.value
    return (
        f"two nodes with role {role} name one {peer} in endpoints.peer_state (BinaryStar: remote). It hears "
        f"the other one, run {rival[:_TEXT_MAX]}, and not this one: stop one of the two, or correct its "
        "endpoints.peer_state"
    )


def fatal_error(effect: Effect, text: str, settings: StarSettings) -> PairError:
    """The error of a node that a rule with ``effect`` led into ERROR; ``text`` is that of the mismatch."""
    pair = f"pair {settings.pair!r}, {settings.role.value}"
    if effect is Effect.MISMATCH:
        return PeerMismatchError(f"{pair}: {text}")
    if effect is Effect.DUAL_ACTIVE:
        return DualActiveError(
            f"{pair}: both nodes are active and on_dual_active is exit. The other node ends as well: "
            "find out why they could not hear each other, then start first the one whose work you keep"
        )
    assert effect is Effect.DUAL_PASSIVE
    return DualPassiveError(
        f"{pair}: both nodes are passive, and the peer speaks the published dialect, in which neither "
        "can take over. The peer ends as well: start both again"
    )


def _unequal(key: str, ours: object, theirs: object, unit: str = "") -> str:
    return f"{key} is {ours}{unit} here and {theirs}{unit} on the other node: give both nodes the same {key}"
