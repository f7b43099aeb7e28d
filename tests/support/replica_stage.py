"""Two replicas of a store, their disks and links, and the arbiter if there is one: a line of a script each.

``pair`` is a new pair whose primary leads, ``pair arbiter`` one beside an arbiter. ``sets`` is what an
earlier leader had the arbiter keep; ``marks``: there is no arbiter; ``node ROLE`` a replica on a new disk, or
with a mark (``in-sync``, ``alone``, ``doubtful``, ``out``) and so many entries. Beside an arbiter disks sync
at once until ``hold``, otherwise when ``sync`` says so; ``lose`` loses what a node has sent. Every other line
begins with its time, or with several with commas between: ``talk`` lets all messages arrive, ``settle`` syncs
as well, ``live`` lets timers run before, ``meet`` and hear the arbiter after it; a node and a word is an
input of that node.

Seen is what has changed: of the nodes, of what they mark on their disks, and of the arbiter's set.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Literal

from bstar.star.arbiter import Reply
from bstar.star.in_sync import InSyncSets
from bstar.wire.arbiter import Question, SetClaim
from bstar_broker.core.outputs import Output
from bstar_broker.store.core.entries import START, Position
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    AskArbiter,
    Damaged,
    Mark,
    Opened,
    Rebuild,
    ToPeer,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.replica import Replica, ReplicaSettings

Role = Literal["primary", "backup"]
ROLES: tuple[Role, ...] = ("primary", "backup")
STORE = b"store" * 2


class Node:
    """A replica with a disk, beside the arbiter ``sets`` if there is one; ``asked`` waits for that."""

    def __init__(
        self,
        role: Role,
        sets: InSyncSets | None = None,
        mark: Mark | None = None,
        last: int = 0,
        *,
        is_held: bool | None = None,
    ) -> None:
        self.role: Role = role
        self.sets = sets
        settings = ReplicaSettings(heartbeat_s=0.25, peer_timeout_s=2.0, has_arbiter=sets is not None)
        self.replica = Replica(pair="p", role=role, settings=settings, new_store=role.encode() * 2, now=0.0)
        self.outbox: list[list[bytes]] = []
        self.orders: list[Write] = []
        self.trims: list[int] = []
        self.rebuilt: list[Mark] = []
        self.asked: list[AskArbiter] = []
        # Its disk takes orders and syncs nothing.
        self.is_held = sets is None if is_held is None else is_held
        at = Position(1, last) if last else START
        epochs = [Position(1, 1)] if last else []
        self.do(self.replica.opened(Opened(mark, at, 1, last, 0, epochs, Totals(), {}), 0.0))

    def do(self, outputs: list[Output], now: float = 0.0) -> None:
        for output in outputs:
            if isinstance(output, Write):
                self.orders.append(output)
            elif isinstance(output, Rebuild):
                # The disk drops what was ordered before, and opens an empty copy.
                self.rebuilt.append(output.mark)
                self.orders.clear()
                self.do(self.replica.opened(Opened(output.mark, START, 1, 0, 0, [], Totals(), {}), 0.0))
            elif isinstance(output, ToPeer):
                self.outbox.append(output.frames)
            elif isinstance(output, Trim):
                self.trims.append(output.number)
            elif isinstance(output, AskArbiter):
                self.asked.append(output)
        if not self.is_held:
            self.sync(now)

    def sync(self, now: float = 0.0) -> None:
        """The disk syncs what was ordered."""
        while self.orders:
            order = self.orders.pop(0)
            for number in range(self.replica.applied_to + 1, order.apply_to + 1):
                self.do(self.replica.applied(Applied(number, [], Totals()), now), now)
            self.do(self.replica.written(Written(self.replica.last, order.order), now), now)

    def hear_arbiter(self, now: float) -> None:
        """Let the arbiter answer."""
        while self.asked:
            asked = self.asked.pop(0)
            assert self.sets is not None
            question = Question("look", "p", self.role, "run", asked.number, 2_000, asked.claim)
            reply = self.sets.receive(question, asked.claim, now)[-1]
            assert isinstance(reply, Reply)
            self.do(self.replica.arbiter_said(ArbiterSaid(asked.number, reply.answer.store), now), now)

    def wait(self, now: float) -> None:
        """Let the timer find that it is so late."""
        self.do(self.replica.handle_timer(now), now)


def talk(one: Node, two: Node, now: float = 0.0) -> None:
    """Let all messages arrive."""
    while one.outbox or two.outbox:
        for sender, reader in ((one, two), (two, one)):
            while sender.outbox:
                reader.do(reader.replica.receive(sender.outbox.pop(0), now), now)


def settle(one: Node, two: Node, now: float = 0.0) -> None:
    """Let all messages arrive and all orders be synced."""
    while one.outbox or two.outbox or one.orders or two.orders:
        talk(one, two, now)
        one.sync(now)
        two.sync(now)


def live(one: Node, two: Node, now: float) -> None:
    """Let both live and talk."""
    for node in (one, two):
        node.wait(now)
    talk(one, two, now)


def meet(one: Node, two: Node, now: float) -> None:
    """Let both live, talk and hear the arbiter."""
    live(one, two, now)
    for node in (one, two):
        node.hear_arbiter(now)


def pair(*, has_arbiter: bool = False) -> tuple[Node, Node]:
    """A new pair in sync, whose primary leads. Without an arbiter their disks are held."""
    sets = InSyncSets({}, now=0.0) if has_arbiter else None
    primary, backup = Node("primary", sets), Node("backup", sets)
    primary.do(primary.replica.lead(1, 0.0))
    for _ in range(3):
        settle(primary, backup)
        primary.hear_arbiter(0.0)
    assert primary.replica.copies == 2
    return primary, backup


def mark_of(role: Role, kind: str) -> Mark:
    """What a disk says of its copy."""
    is_in_sync = kind in ("in-sync", "alone")
    return Mark("p", role, STORE, is_in_sync, kind == "alone", "primary", kind == "doubtful")


class ReplicaStage:
    """``run`` carries one line out and returns what is seen of it."""

    def __init__(self) -> None:
        self.sets = InSyncSets({}, now=0.0)
        self._has_arbiter = True
        self.nodes: dict[str, Node] = {}
        self._facts: dict[str, dict[str, object]] = {}

    def run(self, line: str) -> list[str]:
        """Carry the line out; what is seen."""
        if line.startswith("# "):
            return []
        first, *words = shlex.split(line)
        match first:
            case "pair":
                primary, backup = pair(has_arbiter=words == ["arbiter"])
                self.nodes = {"primary": primary, "backup": backup}
                self.sets = primary.sets or self.sets
                self._changes()
                return []
            case "sets":
                self._register(words[0], int(words[1]), words[2].split(","))
            case "marks":
                self._has_arbiter = False
            case "node":
                self._make(*words)
            case "look":
                self._facts = {name: {} for name in (*self.nodes, "arbiter")}
            case "hold":
                self.nodes[words[0]].is_held = True
            case "lose":
                self.nodes[words[0]].outbox.clear()
            case _:
                for now in map(float, first.split(",")):
                    self._at(now, words)
        return self._changes()

    def _register(self, role: Any, epoch: int, in_sync: list[Any]) -> None:
        marks = [node.replica.mark for node in self.nodes.values()]
        store = next((mark.store for mark in marks if mark is not None), STORE)
        claim = SetClaim(store.hex(), epoch, in_sync)
        self.sets.receive(Question("look", "p", role, "former", 9, 2_000, claim), claim, 0.0)

    def _make(self, role: Any, kind: str = "", last: str = "0") -> None:
        sets = self.sets if self._has_arbiter else None
        self.nodes[role] = Node(role, sets, mark_of(role, kind) if kind else None, int(last))
        self._facts.pop(role, None)

    def _at(self, now: float, words: Sequence[str]) -> None:
        together: dict[str, Callable[[Node, Node, float], None]] = {
            "talk": talk,
            "settle": settle,
            "live": live,
            "meet": meet,
        }
        if words[0] in together:
            one, two = self.nodes.values()
            together[words[0]](one, two, now)
            return
        node, word, rest = self.nodes[words[0]], words[1], words[2:]
        replica = node.replica
        inputs: dict[str, Callable[[], list[Output]]] = {
            "lead": lambda: replica.lead(int(rest[0]), now),
            "follow": lambda: replica.follow(now),
            "propose": lambda: replica.propose(b"x", 1, now),
            "peer-lost": lambda: replica.peer_lost(now),
            "peer-serves": lambda: replica.peer_serves(now),
            "timer": lambda: replica.handle_timer(now),
            "force": lambda: replica.force(now),
            "damaged": lambda: replica.damaged(Damaged(rest[0]), now),
            "disk-says": lambda: replica.written(Written(replica.last, 0, *rest), now),
            "old-arbiter": lambda: replica.arbiter_said(ArbiterSaid(node.asked.pop().number, None), now),
        }
        if word in inputs:
            node.do(inputs[word](), now)
        elif word == "arbiter":
            node.hear_arbiter(now)
        else:
            node.is_held = node.is_held and word != "release"
            node.sync(now)

    def _changes(self) -> list[str]:
        """What of which node, and of the arbiter, is not as it was."""
        seen = []
        found = {name: _facts_of(node) for name, node in self.nodes.items()}
        sets = [f"{' and '.join(sorted(each.in_sync))} in {each.epoch}" for each in self.sets.all.values()]
        found["arbiter"] = {"in sync": sets[-1] if sets else "none"}
        for name, facts in found.items():
            before = self._facts.get(name, {})
            changed = [f"{fact} {value}" for fact, value in facts.items() if value != before.get(fact)]
            if changed and name in self._facts:
                seen.append(f"{name}: {', '.join(changed)}")
        self._facts = found
        return seen


def _facts_of(node: Node) -> dict[str, object]:
    replica, mark = node.replica, node.replica.mark
    flags = ("is_in_sync", "is_alone", "is_doubtful")
    words = "" if mark is None else " ".join(flag[3:] for flag in flags if getattr(mark, flag))
    given_up = [f"{mark.gave_up.epoch}.{mark.gave_up.number}" for mark in node.rebuilt if mark.gave_up]
    return {
        "leads in": replica.epoch if replica.is_leading else "none",
        "last": f"{replica.last.epoch}.{replica.last.number}",
        "committed": replica.committed,
        "applied": replica.applied_to,
        "copies": replica.copies,
        "mark": words.replace("_", "-") or "none",
        "says": f'"{replica.trouble}"',
        "copies set aside": " at ".join([f"{len(node.rebuilt)}", *given_up]),
    }
