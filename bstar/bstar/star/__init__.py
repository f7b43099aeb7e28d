"""The Binary Star: who of two nodes serves. Pure: no socket, no clock, no randomness.

``rules`` is the table, ``machine`` does what it says, ``outputs`` are what a shell carries out. ``chart``
checks the table with a library, and ``diagram`` writes it into the documentation. Of the machine's parts
``settings`` says how a node takes part, ``pace`` how fast, ``peer`` whose messages count, ``epochs`` whose
claim is better, ``questions`` what is asked and answered, ``quorum`` who has the majority, ``cut_off``
whether clients reach one node only, ``texts`` what people are told. ``arbiter`` is the third voter.
"""

from bstar.star.epochs import EPOCH_MAX, EPOCH_STEP_MAX
from bstar.star.machine import StarMachine
from bstar.star.outputs import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    ClientsCutOff,
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
from bstar.star.peer import Ignored
from bstar.star.rules import RULES, Effect, Event, Facts, Guard, Role, Rule, State, holds
from bstar.star.settings import StarSettings

__all__ = [
    "EPOCH_MAX",
    "EPOCH_STEP_MAX",
    "RULES",
    "Activated",
    "ArbiterLost",
    "ArbiterSeen",
    "AskArbiter",
    "Claimed",
    "ClientsCutOff",
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
