"""Who serves, and what the nodes of a pair and its arbiter learn of each other."""

from typing import Literal

from bstar.records.base import Base


class StateChanged(Base, frozen=True, tag="state"):
    """The node went from state ``old`` to ``new`` on ``event``; ``text`` is the rule's sentence.

    ``peer`` is what the peer last said it was, ``votes`` how many client requests have been votes so far.
    """

    old: str
    new: str
    event: str
    text: str
    epoch: int
    votes: int = 0
    peer: str = ""


class Activated(Base, frozen=True, tag="active"):
    """The node serves in ``epoch`` from now on. If it serves already, its epoch has risen."""

    epoch: int
    text: str


class Deactivated(Base, frozen=True, tag="inactive"):
    """The node has stopped serving."""

    epoch: int
    text: str


class PeerSeen(Base, frozen=True, tag="peer-seen"):
    """The node hears its peer: for the first time, again, or as a new process."""

    peer: str
    peer_boot: str = ""


class PeerLost(Base, frozen=True, tag="peer-lost"):
    """The peer was last heard ``silent_us`` ago. ``reason``: it is "silent", has "left", or is "gone"."""

    reason: Literal["silent", "left", "gone"]
    silent_us: int


class PeerAsked(Base, frozen=True, tag="peer-asked"):
    """The node asked its peer whether it serves."""

    text: str


class PeerRejected(Base, frozen=True, tag="peer-rejected"):
    """A node that cannot be the peer spoke."""

    reason: str
    text: str


class HandoverRefused(Base, frozen=True, tag="handover-refused"):
    """An operator wanted to move the role, and it stayed."""

    text: str


class ClientsCutOff(Base, frozen=True, tag="clients-cut-off"):
    """``clients`` clients have reached the passive node and not the active one for ``for_us``.

    ``unserved`` others ask for what no worker there offers. ``text`` is what the node does about it.
    """

    clients: int
    unserved: int
    for_us: int
    text: str


class TakeoversPaused(Base, frozen=True, tag="takeovers-paused"):
    """An operator pauses takeovers for ``for_us``; ``text`` says who and why."""

    for_us: int
    text: str


class TakeoversResumed(Base, frozen=True, tag="takeovers-resumed"):
    """The pause of takeovers is over; ``text`` says because of whom, or of what."""

    text: str


class TimeoutAdapted(Base, frozen=True, tag="timeout-adapted"):
    """The failover timeout is ``timeout_us`` from now on; ``text`` says why."""

    timeout_us: int
    text: str


class Drained(Base, frozen=True, tag="drained"):
    """An operator has taken the node out of the pair; ``text`` says who and why."""

    text: str


class Rejoined(Base, frozen=True, tag="rejoined"):
    """The node is back in the pair; ``text`` says because of whom."""

    text: str


class Claimed(Base, frozen=True, tag="claimed"):
    """The node claims the majority."""

    text: str


class ArbiterSeen(Base, frozen=True, tag="arbiter-seen"):
    """The arbiter answers."""


class ArbiterLost(Base, frozen=True, tag="arbiter-lost"):
    """The arbiter has been silent for ``silent_us``."""

    silent_us: int


class Fatal(Base, frozen=True, tag="fatal"):
    """The node cannot go on; its process ends with ``exit_code``."""

    exit_code: int
    text: str


PairRecord = (
    StateChanged | Activated | Deactivated | PeerSeen | PeerLost | PeerAsked | PeerRejected |
    HandoverRefused | TakeoversPaused | TakeoversResumed | TimeoutAdapted | Drained | Rejoined | Claimed |
    ClientsCutOff | ArbiterSeen | ArbiterLost | Fatal
)  # fmt: skip
