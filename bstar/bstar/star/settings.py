"""A node's part in its pair: its role, its heartbeat, and its failover timeout. Built once and never changed.
A wrong value is an error that says what to choose. Only when the nodes hear each other do they see whether
they agree (``texts.mismatch``).
"""

from functools import cached_property
from typing import Literal, get_args

import msgspec

from bstar.errors import ConfigurationError
from bstar.star.rules import Role
from bstar.wire.limits import HEARTBEAT_S_MAX, HEARTBEAT_S_MIN

OnDualActive = Literal["yield", "exit"]
OnClientsCutOff = Literal["handover", "stay"]


class StarSettings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How this node takes part in its pair. The two nodes differ in ``role`` and in nothing else.

    ``heartbeat_interval_s`` is the time between state messages (0.01 to 30). ``failover_timeout_s`` is the
    silence after which the peer counts as dead, at least two intervals (BST-S-02). It should exceed the
    longest pause of a process or the network that must not move the role. With a greater
    ``failover_timeout_max_s`` it is the minimum, and the nodes adapt the timeout to how late messages come
    (``failure_detector``); 0: the timeout is fixed. ``on_dual_active`` says what
    happens when both nodes turn out to be active: ``yield`` lets the one with the lower epoch step down,
    ``exit`` ends the process. ``on_clients_cut_off`` says what the active node does when clients reach its
    peer and none reaches it: ``handover`` or ``stay``. ``arbiter`` names the third voter: a node serves
    only with the peer's or the arbiter's confirmation. Both nodes must name the same one. Empty: none.
    ``fronts`` names what the node serves on sockets of their own. The peer compares it; it decides nothing.
    """

    pair: str
    role: Role
    heartbeat_interval_s: float = 1.0
    failover_timeout_s: float = 2.0
    failover_timeout_max_s: float = 0.0
    on_dual_active: OnDualActive = "yield"
    on_clients_cut_off: OnClientsCutOff = "handover"
    arbiter: str = ""
    fronts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not HEARTBEAT_S_MIN <= self.heartbeat_interval_s <= HEARTBEAT_S_MAX:
            raise ConfigurationError(
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}: "
                f"choose {HEARTBEAT_S_MIN:g} to {HEARTBEAT_S_MAX:g} seconds"
            )
        # Compared in milliseconds, as on the wire: 3 × 0.1 must not be less than 0.3.
        if self.failover_timeout_ms < 2 * self.heartbeat_ms:
            raise ConfigurationError(
                f"failover_timeout_s is {self.failover_timeout_s:g}: choose at least two times "
                f"heartbeat_interval_s ({self.heartbeat_interval_s:g}), or one lost message moves the role"
            )
        if (
            self.failover_timeout_max_s
            and round(self.failover_timeout_max_s * 1000) < self.failover_timeout_ms
        ):
            raise ConfigurationError(
                f"failover_timeout_max_s is {self.failover_timeout_max_s:g}: choose at least "
                f"failover_timeout_s ({self.failover_timeout_s:g}), or 0 for a fixed timeout"
            )
        if self.on_dual_active not in get_args(OnDualActive):
            raise ConfigurationError(f"on_dual_active is {self.on_dual_active!r}: choose 'yield' or 'exit'")
        if self.on_clients_cut_off not in get_args(OnClientsCutOff):
            raise ConfigurationError(
                f"on_clients_cut_off is {self.on_clients_cut_off!r}: choose 'handover' or 'stay'"
            )

    @cached_property
    def heartbeat_ms(self) -> int:
        """The heartbeat interval in state messages."""
        return round(self.heartbeat_interval_s * 1000)

    @cached_property
    def failover_timeout_ms(self) -> int:
        """The failover timeout in state messages: the fixed one, or the minimum."""
        return round(self.failover_timeout_s * 1000)

    @cached_property
    def failover_timeout_max_ms(self) -> int:
        """The maximum in state messages; the timeout itself if it is fixed."""
        return max(self.failover_timeout_ms, round(self.failover_timeout_max_s * 1000))

    @cached_property
    def is_adaptive(self) -> bool:
        """True if the nodes adapt the timeout."""
        return self.failover_timeout_max_ms > self.failover_timeout_ms
