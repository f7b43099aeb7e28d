"""What two nodes say to each other: scripts and transcripts that people have read and agreed with.

A file in tests/golden/star has the script, a line of hyphens, and the transcript. Commands: ``start``,
``kill``, ``freeze``, ``thaw``, ``client`` (one asks this node), ``handover``, ``leave``, ``cut`` and
``mend`` (what these nodes say is lost), ``choke`` and ``unchoke`` (it waits) name nodes; ``run`` takes
seconds, ``worker`` a node and the epoch that it names, ``disk`` a node and the epoch that it kept,
``settings`` nodes and what differs. ``settled`` and ``failed over`` bring the pair there. ``thaw NODE
client``: one asks before the node has read what came meanwhile. ``look`` writes the states down; the
end of each script does.

After a change that is meant to alter transcripts, run this module with BSTAR_WRITE_GOLDEN=1, read the
difference line by line, and commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.star import EpochHeard, Handover, Leave, Role, StarSettings
from support.starwire import Node, Wire, settings_of

GOLDEN = Path(__file__).parent / "golden" / "star"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))
END = "-" * 40
SETTLED = ("start primary backup", "run 3.0")
FAILED_OVER = (*SETTLED, "kill primary", "run 2.5", "client backup", "run 1.0")


def wire_of(script: list[str]) -> Wire:
    """The pair before anything starts, with what the lines ``settings`` say."""
    settings = {role.value: settings_of(role) for role in Role}
    for line in script:
        command, *words = line.split()
        if command == "settings":
            changes: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
            for name in words:
                if name in settings:
                    fields = msgspec.structs.asdict(settings[name]) | changes
                    settings[name] = msgspec.convert(fields, StarSettings, strict=False)
    return Wire(settings["primary"], settings["backup"])


class Stage:
    """One script while it is played."""

    def __init__(self, script: list[str]) -> None:
        self.wire = wire_of(script)

    def play(self, line: str) -> None:
        wire = self.wire
        command, *words = line.split()
        if command in ("#", "settings"):
            return
        if command == "run":
            wire.run_for(float(words[0]))
        elif command in ("settled", "failed"):
            for step in SETTLED if command == "settled" else FAILED_OVER:
                self.play(step)
            wire.trace.clear()
        elif command == "look":
            self.look()
        elif command in ("worker", "disk"):
            node, epoch = self.nodes(words[:1])[0], int(words[1])
            if command == "worker":
                wire.call(node, lambda machine: machine.step(EpochHeard(epoch), wire.now))
            node.is_durable, node.disk = (True, epoch) if command == "disk" else (node.is_durable, node.disk)
        elif command in ("cut", "mend"):
            wire.set_cut(*self.nodes(words), is_cut=command == "cut")
        else:
            for node in self.nodes(words):
                self.befall(command, node, is_asked=words[-1] == "client")

    def befall(self, command: str, node: Node, *, is_asked: bool) -> None:
        wire = self.wire
        commands: dict[str, Callable[[], object]] = {
            "start": lambda: wire.start(node),
            "kill": lambda: wire.kill(node),
            "freeze": lambda: wire.freeze(node),
            "thaw": lambda: wire.thaw(node, first=lambda: self.ask([node] if is_asked else [])),
            "client": lambda: wire.request(node),
            "choke": lambda: wire.set_choked(node, is_choked=True),
            "unchoke": lambda: wire.set_choked(node, is_choked=False),
            "handover": lambda: wire.call(node, lambda machine: machine.step(Handover(), wire.now)),
            "leave": lambda: wire.call(node, lambda machine: machine.step(Leave(), wire.now)),
        }
        commands[command]()

    def ask(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.wire.request(node)

    def nodes(self, words: list[str]) -> list[Node]:
        return [node for node in self.wire.nodes if node.name in words]

    def look(self) -> None:
        for node in self.wire.nodes:
            machine = node.machine
            state = "down" if node.error is None else f"ended with {type(node.error).__name__}"
            if machine is not None:
                left = ", has left" if machine.has_left(self.wire.now) else ""
                state = f"{machine.state.name}, epoch {machine.epoch}{left}"
            self.wire.trace.append(f"look: {node.name} {state}, epoch on disk {node.disk}")
        self.wire.trace.append(f"look: both served for {self.wire.dual_s_max:.3f} s at most")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_conversation_goes_as_written_down(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    script, _, transcript = text.partition(f"{END}\n")
    lines = [line for line in script.splitlines() if line]
    stage = Stage(lines)
    for line in [*lines, "look"]:
        stage.play(line)
    played = "\n".join(stage.wire.trace) + "\n"
    if os.environ.get("BSTAR_WRITE_GOLDEN"):
        path.write_text(f"{script}{END}\n{played}", encoding="utf-8")
    else:
        assert played == transcript


def test_there_are_as_many_conversations_as_were_read() -> None:
    assert len(SCRIPTS) == 33
