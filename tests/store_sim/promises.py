"""What is promised of acknowledged commands, and what may be lost by which failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar_broker.store.core.entries import History, Position
from sim.checks import Violation

if TYPE_CHECKING:
    from store_sim.node import SimNode


# Entries at the end of the logs that are compared each time.
_CHECKED = 100


class _Acknowledged:
    """A command that a client was told of. ``excuse``: why it may be lost."""

    def __init__(self, number: int, body: bytes, copies: int) -> None:
        self.number = number
        self.body = body
        self.copies = copies
        self.excuse = ""
        # The node whose disk was lost with the last copy.
        self.lost_with = ""


class Promises:
    """Hears what happens, and raises ``Violation``.

    ``has_arbiter``: one that keeps its sets. Then nothing may be lost before an operator says so, unless both
    disks are lost.
    """

    def __init__(self, *, has_arbiter: bool = False) -> None:
        self.has_arbiter = has_arbiter
        self.nodes: list[SimNode] = []
        self.acknowledged: list[_Acknowledged] = []
        self.on_one_disk = 0
        self.excused = 0
        # Of each node: what it proposed in which epoch, by number.
        self._proposed: dict[str, dict[int, tuple[int, bytes]]] = {"primary": {}, "backup": {}}
        # Since when a node commits alone, 0 if it does not; and whether the other heard of it since.
        self._alone_since: dict[str, float] = {"primary": 0.0, "backup": 0.0}
        self._has_heard: dict[str, bool] = {"primary": False, "backup": False}
        # Of each node: the log that the other's disk had when it was lost. What was there was on both disks.
        self._lost: dict[str, History] = {"primary": History(), "backup": History()}
        # Both nodes have gone on apart, and have not met since.
        self.is_split = False

    def other(self, node: SimNode) -> SimNode:
        """The other node."""
        return self.nodes[1] if node is self.nodes[0] else self.nodes[0]

    # --- what happens ---------------------------------------------------------------------------------------

    def proposed(self, node: SimNode, at: Position, body: bytes) -> None:
        """A client's command is on its way."""
        self._proposed[node.name][at.number] = (node.replica.epoch, body)

    def crashed(self, node: SimNode) -> None:
        """Its process is gone, and so is what it had to answer."""
        self._proposed[node.name].clear()

    def heard(self, node: SimNode, sent_at: float) -> None:
        """It heard something that the other sent then."""
        self._look_for_split()
        since = self._alone_since[self.other(node).name]
        if since and sent_at > since:
            self._has_heard[node.name] = True

    def led(self, node: SimNode, began: int) -> None:
        """It begins, or ends, to lead the store."""
        if not began:
            self._proposed[node.name].clear()

    def applied(self, node: SimNode, number: int) -> None:
        """An entry was applied: if it is that of a client, the client is told."""
        replica = node.replica
        if not replica.epoch:
            return
        self._check_committed(node, number)
        self._look_for_split()
        epoch, body = self._proposed[node.name].pop(number, (0, b""))
        if epoch != replica.epoch:
            return
        copies = replica.copies_of(number)
        if self._is_just_lost(node):
            copies = 1
        on_disks = [each for each in self.nodes if each.disk.durable.has(number, body)]
        if copies > len(on_disks):
            raise Violation(
                "copies", f"{node.name} says that {number} is on {copies} disks: it is on {len(on_disks)}"
            )
        self.acknowledged.append(_Acknowledged(number, body, copies))
        self.on_one_disk += copies == 1

    def _check_committed(self, node: SimNode, number: int) -> None:
        """Nobody commits alone without a stored mark."""
        durable, other = node.disk.durable, self.other(node)
        position = durable.history.epoch_at(number)
        if other.disk.durable.history.epoch_at(number) == position:
            return
        if self._lost[node.name].epoch_at(number) == position:
            return
        if durable.mark is None or not durable.mark.is_alone:
            if self._is_just_lost(node):
                return
            raise Violation(
                "alone", f"{node.name} applies {number}, which is on its disk only, without a mark"
            )
        if not self._alone_since[node.name]:
            self._alone_since[node.name] = node.world.now
            self._has_heard[other.name] = False

    def _is_just_lost(self, node: SimNode) -> bool:
        """True if the other's disk was replaced so lately that this node cannot know."""
        return node.world.now - self.other(node).disk.replaced_at < 10.0

    def ready(self, node: SimNode) -> None:
        """It serves: it must have all that was acknowledged."""
        other = self.other(node)
        table = node.disk.durable
        self._look_for_split()
        is_blind = bool(self._alone_since[other.name]) and not self._has_heard[node.name]
        missing = [
            each for each in self.acknowledged if not each.excuse and not table.has(each.number, each.body)
        ]
        for each in missing:
            if each.copies == 1 and (self.is_split or (is_blind and not self.has_arbiter)):
                self.is_split = True
                each.excuse = "both went on apart"
                self.excused += 1
                continue
            text = f"{node.name} leads in {node.replica.epoch} without entry {each.number}, {each.body!r}"
            raise Violation("acknowledged", f"{text}, which was acknowledged on {each.copies} disks")

    def _look_for_split(self) -> None:
        """Both say that they are alone: each was blind when it began, or ``ready`` has said so."""
        if self.has_arbiter:
            return
        marks = [node.replica.mark if node.is_alive else node.disk.durable.mark for node in self.nodes]
        self.is_split |= all(mark is not None and mark.is_alone for mark in marks)

    def in_sync(self) -> None:
        """Both disks are the same and count."""
        if self.is_split:
            for each in self.acknowledged:
                is_lost = not self.nodes[0].disk.durable.has(each.number, each.body)
                if each.copies == 1 and not each.excuse and is_lost:
                    each.excuse = "both went on apart"
                    self.excused += 1
        self.is_split = False
        for node in self.nodes:
            node.disk.replaced_at = -1e9
        self._alone_since = {"primary": 0.0, "backup": 0.0}
        self._has_heard = {"primary": False, "backup": False}

    def replaced(self, node: SimNode) -> None:
        """Its disk is lost: what the other disk has not may be lost, once an operator says so.

        Without an arbiter also if the other node has not heard that this one went on alone.
        """
        other, lost = self.other(node).disk.durable, node.disk.durable.history
        is_blind = bool(self._alone_since[node.name]) and not self._has_heard[self.other(node).name]
        self._lost[self.other(node).name] = History(lost.epochs, lost.last)
        for each in self.acknowledged:
            if each.excuse or other.has(each.number, each.body):
                continue
            is_other_new = self.other(node).disk.replaced_at > 0.0
            is_waited_for = self.has_arbiter or not is_blind
            if is_waited_for and not is_other_new and each.lost_with in ("", node.name):
                each.lost_with = node.name
                continue
            each.excuse = "its only disk was lost"
            self.excused += 1

    def forced(self, node: SimNode) -> None:
        """An operator gave up what this node lacks."""
        table = node.disk.durable
        for each in self.acknowledged:
            if not each.excuse and not table.has(each.number, each.body):
                each.excuse = "forced"
                self.excused += 1
        self.is_split = True

    # --- from time to time ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Entries of one epoch and number are the same on both disks."""
        one, two = (node.disk.durable for node in self.nodes)
        self._look_for_split()
        ends = (one.history.last.number, two.history.last.number)
        numbers = range(max(1, max(ends) - _CHECKED), min(ends) + 1)
        entries, twins = [*map(one.log.get, numbers)], [*map(two.log.get, numbers)]
        if entries == twins:
            return
        for entry, twin in zip(entries, twins, strict=True):
            if entry is not None and twin is not None and twin.epoch == entry.epoch and twin != entry:
                raise Violation("log matching", f"two entries are {entry.position}")
