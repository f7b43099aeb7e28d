"""The Binary Star: decides which of two nodes serves. Pure: no socket, no clock, no randomness.

``rules`` is the table, ``chart`` finds the rule with a library, ``machine`` does what the rule says,
``outputs`` are what a shell carries out. docs/binary-star.md shows the table.

The machine's parts: ``settings`` has a node's configuration. ``peer`` knows whether the peer lives and whose
messages count; ``failure_detector`` adapts the failover timeout. ``epochs`` says whose claim is better,
``quorum`` who has the majority. ``publisher`` speaks, asks and answers. ``cut_off`` notices clients that
reach one node only, ``takeover_pause`` holds the role where it is. ``texts`` has the texts for operators.
``arbiter`` is the third voter.
"""

from bstar.star.machine import StarMachine
from bstar.star.outputs import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    ClientsCutOff,
    Deactivated,
    Drained,
    Fatal,
    HandoverRefused,
    Output,
    PeerAsked,
    PeerLost,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
    PersistPause,
    Publish,
    Rejoined,
    Report,
    StateChanged,
    TakeoversPaused,
    TakeoversResumed,
    TimeoutAdapted,
)
from bstar.star.peer import Ignored
from bstar.star.rules import (
    RULES,
    ArbiterAnswer,
    Drain,
    Effect,
    EpochHeard,
    Event,
    Facts,
    Guard,
    Handover,
    Input,
    Leave,
    LinkLost,
    PauseKept,
    PauseTakeovers,
    PeerGarbage,
    PeerMessage,
    PeerRefused,
    Promotion,
    Refusal,
    Rejoin,
    ResumeTakeovers,
    Role,
    Rule,
    Stall,
    State,
    Subscription,
    Tick,
    Vote,
    holds,
)
from bstar.star.settings import StarSettings
from bstar.wire.epochs import EPOCH_MAX, EPOCH_STEP_MAX

__all__ = [
    "EPOCH_MAX", "EPOCH_STEP_MAX", "RULES", "Activated", "ArbiterAnswer", "ArbiterLost", "ArbiterSeen",
    "AskArbiter", "Claimed", "ClientsCutOff", "Deactivated", "Drain", "Drained", "Effect", "EpochHeard",
    "Event", "Facts", "Fatal", "Guard", "Handover", "HandoverRefused", "Ignored", "Input", "Leave",
    "LinkLost", "Output", "PauseKept", "PauseTakeovers", "PeerAsked", "PeerGarbage", "PeerLost",
    "PeerMessage", "PeerRefused", "PeerRejected", "PeerSeen", "PersistEpoch", "PersistPause", "Promotion",
    "Publish", "Refusal", "Rejoin", "Rejoined", "Report", "ResumeTakeovers", "Role", "Rule", "Stall",
    "StarMachine", "StarSettings", "State", "StateChanged", "Subscription", "TakeoversPaused",
    "TakeoversResumed", "Tick", "TimeoutAdapted", "Vote", "holds",
]  # fmt: skip
