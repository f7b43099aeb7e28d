"""Partitions by nftables, in the namespace of the host that is to hear nothing.

    with firewall.partition({"primary"}, {"backup"}, action="reset"):

Two ways of not being reached. ``drop`` is silence, as a cut cable is, but at the receiver's end: the packet
has gone through the whole wire. ``reset`` answers TCP with a reset, as a host does whose program is gone or a
firewall that is strict: connections break at once instead of hanging. Rules match what comes in, because a
rule against what goes out would tell the sender (EPERM), which no network does.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from chaos.netns import NetnsHost

Action = Literal["drop", "reset"]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    source: str
    action: Action

    def rules(self) -> str:
        # Reset is a word of TCP; what is not TCP is dropped.
        reset = (
            f"ip saddr {self.source} meta l4proto tcp reject with tcp reset\n"
            if self.action == "reset"
            else ""
        )
        return reset + f"ip saddr {self.source} drop\n"


class Firewall:
    """The rules of all hosts of a network. Any thread may use it."""

    def __init__(self, hosts: Mapping[str, NetnsHost]) -> None:
        self._hosts = dict(hosts)
        self._blocks: dict[str, list[_Block]] = {name: [] for name in hosts}
        self._lock = threading.Lock()

    @contextmanager
    def partition(
        self, a: Collection[str], b: Collection[str], *, one_way: bool = False, action: Action = "drop"
    ) -> Iterator[None]:
        """``b`` takes nothing from ``a`` (nor the other way round, unless ``one_way``)."""
        ways = {(source, to) for source in a for to in b}
        if not one_way:
            ways |= {(to, source) for source, to in ways}
        placed = [(to, _Block(self._hosts[source].address, action)) for source, to in sorted(ways)]
        with self._lock:
            for to, block in placed:
                self._blocks[to].append(block)
            self._load({to for to, _ in placed})
        try:
            yield
        finally:
            with self._lock:
                for to, block in placed:
                    self._blocks[to].remove(block)
                self._load({to for to, _ in placed})

    def _load(self, names: Collection[str]) -> None:
        """Replace the rules of these hosts, each in one transaction."""
        for name in sorted(names):
            rules = "".join(block.rules() for block in self._blocks[name])
            text = (
                "table inet chaos\ndelete table inet chaos\n"
                "table inet chaos {\nchain input {\n"
                f"type filter hook input priority 0; policy accept;\n{rules}}}\n}}\n"
            )
            subprocess.run(
                self._hosts[name].command(["nft", "-f", "-"]),
                input=text,
                check=True,
                capture_output=True,
                text=True,
            )
