"""A path as a text that people read, and the way back: the text replayed on machines that live through it.

A step stands behind the number of its tick; what the nodes do because of it stands below, indented.
Replaying knows nothing of canonical forms and restored memories: two machines are made and go on living,
with real names and tokens and a clock that goes on. So a script that still comes to the same is a proof
beside the explorer's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bstar.star import StarMachine
from explorer.configurations import configuration_of
from explorer.memory import LiveMachines
from explorer.model import HEAL, TICK, Action, Configuration, Finding, Model, Situation
from explorer.search import Found
from support.starwire import describe

FOLDER = Path(__file__).parent / "scripts"
_NUMBERS_MAX = 8
_STEP = re.compile(r" *\d+  (?P<text>\S.*)")
_HEAD = re.compile(r"# (?P<key>configuration|finding): (?P<value>\S+)")


@dataclass(frozen=True)
class Replay:
    """What came of a script: the last situation, all findings on the way, and the transcript."""

    situation: Situation
    findings: frozenset[Finding]
    text: str


def _texts() -> dict[Action, str]:
    texts: dict[Action, str] = {TICK: "a tick passes", HEAL: "the link heals"}
    for who, (name, peer) in enumerate((("primary", "backup"), ("backup", "primary"))):
        texts |= {
            ("start", who, 0): f"the {name} starts",
            ("start", who, 1): f"the {name} starts without its state directory",
            ("crash", who, 0): f"the {name} crashes; what it said last is lost",
            ("crash", who, 1): f"the {name} crashes; its last word is still to be read",
            ("end", who, 0): f"the {name}'s process ends",
            ("freeze", who, 0): f"the {name} freezes",
            ("thaw", who, 0): f"the {name} goes on",
            ("timer", who, 0): f"a timer of the {name} fires",
            ("vote", who, 0): f"a client asks the {name}",
            ("connect", who, 0): f"the {peer} connects to the {name}",
            ("missed", who, 0): f"the {name} notices that its connection broke",
            ("refuse", who, 0): f"the {name}'s new connection is refused",
            ("refused", who, 0): f"the {name} notices the refusal",
            ("learn", who, 0): f"a worker tells the {name} the highest epoch",
            ("handover", who, 0): f"the operator asks the {name} to hand over",
            ("witness", who, 0): f"clients reach the {name} and not the active node",
            ("stop", who, 0): f"the {name} is asked to stop",
            ("repeat", who, 0): f"the {name}'s oldest word under way will arrive twice",
        }
        for number in range(_NUMBERS_MAX):
            texts |= {
                ("hear", who, number): f"the {name} reads word {number + 1} of those under way",
                ("turn", who, number): f"the {name} reads word {number + 1}, and needs another timeout",
                ("stray", who, number): f"the {name} reads stray word {number + 1}",
                ("lose", who, number): f"word {number + 1} of the {name} under way is lost",
            }
    for which, words in ((1, "from the primary"), (2, "from the backup"), (3, "in both directions")):
        texts["cut", which, 0] = f"the link is cut {words}; what is under way is lost"
        texts["cut", which, 1] = f"the link is cut {words}; the last word is still to be read"
    return texts


_TEXTS = _texts()
_ACTIONS = {text: action for action, text in _TEXTS.items()}


def act_out(
    configuration: Configuration, path: tuple[Action, ...], machine_class: type[StarMachine] = StarMachine
) -> Replay:
    """Live through the path. KeyError or AssertionError if a step of it cannot happen."""
    machines = LiveMachines(
        float(configuration.timeout), machine_class, timeout_max_s=float(configuration.timeout_max)
    )
    model = Model(configuration, machines)
    situation = model.beginning()
    lines: list[str] = []
    findings: set[Finding] = set()
    tick = 0
    for action in path:
        assert action in model.actions(situation), f"{_TEXTS[action]!r} cannot happen at tick {tick}"
        lines.append(f"{tick:3d}  {_TEXTS[action]}")
        machines.outputs.clear()
        situation = model.next(situation, action)
        findings |= {finding for finding, _ in model.findings}
        tick += action == TICK
        for who, outputs in machines.outputs:
            name = ("primary", "backup")[who]
            lines += [f"{'':9}{name}: {describe(output).strip()}" for output in outputs]
    return Replay(situation, frozenset(findings), "\n".join(lines) + "\n")


def write(configuration: Configuration, found: Found, machine_class: type[StarMachine] = StarMachine) -> str:
    """The script of what was found."""
    ticks = " to ".join(f"{each}" for each in (configuration.timeout, configuration.timeout_max) if each)
    head = (
        f"# {found.finding.value}: {found.text}\n"
        f"# A tick is a heartbeat interval, the failover timeout {ticks} of them.\n"
        f"# configuration: {configuration.name}\n"
        f"# finding: {found.finding.name}\n"
    )
    return head + act_out(configuration, found.path, machine_class).text


def read(text: str) -> tuple[Configuration, Finding, tuple[Action, ...]]:
    """The configuration, what the script comes to, and its steps. KeyError for a step that is none."""
    head = {match["key"]: match["value"] for match in _HEAD.finditer(text)}
    steps = [match["text"] for line in text.splitlines() if (match := _STEP.fullmatch(line))]
    return (
        configuration_of(head["configuration"]),
        Finding[head["finding"]],
        tuple(_ACTIONS[step] for step in steps),
    )
