"""The seeds of the tests: a run that breaks an invariant fails with the command that repeats it."""

from __future__ import annotations

from typing import Any

from sim.faults import Mood
from sim.run import Outcome, play
from sim.setup import setup_of

# As ``make sim`` has them.
_WORDS = {"keys": {True: "on", False: "off"}}


def played(seed: int, mood: Mood, **chosen: Any) -> Outcome:  # Any: what ``setup_of`` takes
    """The outcome of a run over a fast network that broke no invariant."""
    outcome = play(setup_of(seed, mood=mood, profile="lan", **chosen))
    answers = {
        name.upper(): _WORDS.get(name, {True: "yes", False: "no"})[answer] for name, answer in chosen.items()
    }
    words = {"SEED": seed, "MOOD": mood.value, "PROFILE": "lan", **answers}
    repeat = " ".join(f"{name}={word}" for name, word in words.items())
    assert outcome.violation is None, f"{outcome.violation}\nrepeat: make sim {repeat}"
    return outcome
