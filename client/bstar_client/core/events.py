"""The events that a client's observers get: one for each change, none for a message."""

import msgspec


class Connected(msgspec.Struct, frozen=True, gc=False):
    """The connection to a node is up. Says nothing about its state."""

    endpoint: str


class Disconnected(msgspec.Struct, frozen=True, gc=False):
    """The connection to a node broke, or its first attempt failed.

    ``reason``: broken, refused (or out of reach), or untrusted (at the handshake: one side does not accept
    the other's key).
    """

    endpoint: str
    reason: str


class ActiveFound(msgspec.Struct, frozen=True, gc=False):
    """A node serves: the first one found, or the same one again after it was lost."""

    endpoint: str
    epoch: int


class ActiveLost(msgspec.Struct, frozen=True, gc=False):
    """The client stopped following the active node.

    ``reason``: disconnected, silent, not active, or interrupted (a signal interrupted the client at work).
    """

    endpoint: str
    reason: str
    outstanding: int


class FailedOver(msgspec.Struct, frozen=True, gc=False):
    """Another node took over.

    ``reason``: why the client left the first (disconnected, silent, not active, stale, interrupted).
    ``outstanding``: how many requests had no reply then. ``gap_s``: how long the client knew of no active
    node.
    """

    from_endpoint: str
    to_endpoint: str
    reason: str
    epoch: int
    outstanding: int
    gap_s: float


Event = Connected | Disconnected | ActiveFound | ActiveLost | FailedOver
