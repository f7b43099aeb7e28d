"""The standard configurations: what may befall the pair in each, and what is known to come of it.

Each has so few faults that everything it allows can be visited, in seconds to some minutes. What a pair of
two cannot prevent is expected, by name: a configuration that no longer finds it is as wrong as one that
finds more.
"""

from __future__ import annotations

from explorer.model import SETTLED, UNBOUNDED, Budget, Configuration, Finding

_MESSAGE = frozenset({Finding.TWO_SERVE_FOR_A_MESSAGE})
_UNHEARD = frozenset({Finding.TWO_SERVE_UNHEARD})

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(name="calm", about="no fault at all", budget=Budget()),
    Configuration(
        name="slow",
        about="no fault; words and connections take up to one interval",
        budget=Budget(),
        travel=1,
        reconnect=1,
        in_flight=3,
        expected=_MESSAGE,
    ),
    Configuration(
        name="slow-3",
        about="the same; the timeout is 3 intervals",
        budget=Budget(),
        timeout=3,
        travel=1,
        reconnect=1,
        in_flight=3,
    ),
    Configuration(
        name="quick",
        about="from a settled pair on, 2 of: pause, handover, cut",
        budget=Budget(freezes=1, handovers=1, cuts=1, total=2),
        prefix=SETTLED,
        expected=_UNHEARD | _MESSAGE,
    ),
    Configuration(name="pauses", about="2 pauses of any length", budget=Budget(freezes=2), expected=_MESSAGE),
    Configuration(
        name="pauses-3",
        about="2 pauses; the timeout is 3 intervals",
        budget=Budget(freezes=2),
        timeout=3,
        expected=_MESSAGE,
    ),
    Configuration(name="crashes", about="2 crashes", budget=Budget(crashes=2), expected=_MESSAGE),
    Configuration(
        name="crash-pause", about="1 crash, 1 pause", budget=Budget(crashes=1, freezes=1), expected=_MESSAGE
    ),
    Configuration(
        name="operator",
        about="2 of: 2 handovers, stop, pause, crash; from a settled pair on",
        budget=Budget(handovers=2, stops=1, freezes=1, crashes=1, total=2),
        prefix=SETTLED,
        expected=_MESSAGE,
    ),
    Configuration(
        name="cut-off",
        about="2 of: clients reach the passive node only (2 times), cut, pause, crash; settled at first",
        budget=Budget(witnesses=2, cuts=1, freezes=1, crashes=1, total=2),
        prefix=SETTLED,
        expected=_UNHEARD | _MESSAGE,
    ),
    Configuration(
        name="cut",
        about="1 cut of both directions, 1 crash",
        budget=Budget(cuts=1, crashes=1),
        expected=_UNHEARD | _MESSAGE,
    ),
    Configuration(
        name="one-way",
        about="1 cut of either or both directions; workers",
        budget=Budget(cuts=1, learns=UNBOUNDED),
        cuts=(1, 2, 3),
        expected=_UNHEARD,
    ),
    Configuration(
        name="bad-link",
        about="1 word lost, 1 repeated, 1 interval of delay",
        budget=Budget(losses=1, repeats=1, delays=1),
        expected=_UNHEARD,
    ),
    Configuration(
        name="adaptive",
        about="no fault; the failover timeout adapts, from 2 to 3 intervals, and changes 3 times",
        budget=Budget(turns=3),
        timeout_max=3,
    ),
    Configuration(
        name="adaptive-pause",
        about="the same, 1 change and 1 pause",
        budget=Budget(turns=1, freezes=1),
        timeout_max=3,
        expected=_MESSAGE,
    ),
    Configuration(
        name="adaptive-crash",
        about="the same, 1 change and 1 crash",
        budget=Budget(turns=1, crashes=1),
        timeout_max=3,
        expected=_MESSAGE,
    ),
    Configuration(
        name="adaptive-cut",
        about="the same, 1 change and 1 cut of both directions",
        budget=Budget(turns=1, cuts=1),
        timeout_max=3,
        expected=_UNHEARD,
    ),
    Configuration(
        name="forgetful",
        about="2 crashes, with or without the state directory; workers tell 2 times",
        budget=Budget(crashes=2, learns=2),
        memory="either",
        expected=_MESSAGE | {Finding.EPOCH_TAKEN_AGAIN},
    ),
)


def configuration_of(name: str) -> Configuration:
    """KeyError if there is none of this name."""
    return {configuration.name: configuration for configuration in CONFIGURATIONS}[name]
