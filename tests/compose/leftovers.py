"""What dockerd leaves behind when it ends: a bridge, packet filter rules, and forwarding switched on.

``Network`` notes before the start what is there, and takes away afterwards what was not. Only what bears
Docker's names is touched, so rules that somebody else adds meanwhile stay.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_LINKS = Path("/sys/class/net")
_BRIDGE = "docker0"

Run = Callable[[list[str]], str]


def removals(saved: str) -> list[list[str]]:
    """The iptables commands that take Docker's rules and chains out of what iptables-save printed."""
    rules: list[list[str]] = []
    chains: list[list[str]] = []
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":DOCKER"):
            name = line[1:].split()[0]
            rules.append(["iptables", "-t", table, "-F", name])
            chains.append(["iptables", "-t", table, "-X", name])
        elif line.startswith("-A ") and not line.startswith("-A DOCKER"):
            words = shlex.split(line)
            if any(word.startswith("DOCKER") or word == _BRIDGE for word in words):
                rules.append(["iptables", "-t", table, "-D", *words[1:]])
    return rules + chains


class Network:
    """The network as it was before the engine; ``run`` runs a command and returns what it printed."""

    def __init__(
        self, run: Run, *, forwarding: Path = _FORWARDING, links: Path = Path("/sys/class/net")
    ) -> None:
        self._run = run
        self._links = links
        self._forwarding = forwarding
        self._was_forwarding = forwarding.read_text()
        self._had_bridge = (links / _BRIDGE).exists()
        saved = run(["iptables-save"])
        self._had_rules = ":DOCKER" in saved
        self._was_open = ":FORWARD DROP" not in saved

    def restore(self) -> None:
        """Take away what the engine has left. What was Docker's before stays."""
        if not self._had_rules:
            for command in removals(self._run(["iptables-save"])):
                self._run(command)
            if self._was_open:
                self._run(["iptables", "-P", "FORWARD", "ACCEPT"])
        if not self._had_bridge and (self._links / _BRIDGE).exists():
            self._run(["ip", "link", "delete", _BRIDGE])
        if self._forwarding.read_text() != self._was_forwarding:
            self._forwarding.write_text(self._was_forwarding)
