"""The Binary Star: who of two nodes serves. Pure: no socket, no clock, no randomness.

``rules`` is the table, ``machine`` obeys it, ``outputs`` are what a shell carries out, ``diagram`` writes the
table into the documentation.
"""

from bstar.star.machine import EPOCH_MAX, EPOCH_STEP_MAX, Ignored, StarMachine, StarSettings
from bstar.star.outputs import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    Deactivated,
    Fatal,
    HandoverRefused,
    Output,
    PeerAsked,
    PeerLost,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
    Publish,
    StateChanged,
)
from bstar.star.rules import RULES, Effect, Event, Facts, Guard, Role, Rule, State, holds

__all__ = [
    "EPOCH_MAX",
    "EPOCH_STEP_MAX",
    "RULES",
    "Activated",
    "ArbiterLost",
    "ArbiterSeen",
    "AskArbiter",
    "Claimed",
    "Deactivated",
    "Effect",
    "Event",
    "Facts",
    "Fatal",
    "Guard",
    "HandoverRefused",
    "Ignored",
    "Output",
    "PeerAsked",
    "PeerLost",
    "PeerRejected",
    "PeerSeen",
    "PersistEpoch",
    "Publish",
    "Role",
    "Rule",
    "StarMachine",
    "StarSettings",
    "State",
    "StateChanged",
    "holds",
]
