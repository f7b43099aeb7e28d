"""Two Binary Star machines on a wire of their own, in virtual time: for scripts, storms and properties.

The wire carries state messages in order, after a delay, in each direction on its own. It can be cut (messages
are lost) or choked (they wait, and arrive in a burst when it is opened). A node can be killed, started again
and frozen; what reaches a frozen node waits for it. Nothing here sleeps, and everything is repeatable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bstar.star import (
    Activated,
    AskArbiter,
    Deactivated,
    Fatal,
    Output,
    PeerMessage,
    PersistEpoch,
    PersistPause,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    Subscription,
    Tick,
    Vote,
)
from bstar.wire.peer import PeerState, decode, encode

SETTINGS = StarSettings(pair="test", role=Role.PRIMARY, heartbeat_interval_s=1.0, failover_timeout_s=2.0)


def settings_of(role: Role, base: StarSettings = SETTINGS) -> StarSettings:
    return StarSettings(
        pair=base.pair,
        role=role,
        heartbeat_interval_s=base.heartbeat_interval_s,
        failover_timeout_s=base.failover_timeout_s,
        on_dual_active=base.on_dual_active,
    )


@dataclass
class Link:
    """One direction of the wire."""

    delay_s: float = 0.001
    is_cut: bool = False
    is_choked: bool = False
    arrives_at: float = 0.0
    held: list[PeerState] = field(default_factory=list)


class Node:
    """One node over all its runs: what stays when its process dies is its name, its settings and its disk."""

    def __init__(self, name: str, settings: StarSettings, *, is_durable: bool) -> None:
        self.name = name
        self.settings = settings
        self.is_durable = is_durable
        self.disk = 0
        self.runs = 0
        self.machine: StarMachine | None = None
        self.frozen_at: float | None = None
        self.inbox: list[PeerState | None] = []
        self.outputs: list[Output] = []
        self.error: Exception | None = None
        self.said: tuple[object, ...] | None = None

    @property
    def is_awake(self) -> bool:
        return self.machine is not None and self.frozen_at is None

    @property
    def is_active(self) -> bool:
        """Whether it serves: a frozen node serves nobody."""
        return self.is_awake and self.machine is not None and self.machine.is_active

    @property
    def state(self) -> State | None:
        return None if self.machine is None else self.machine.state


class Wire:
    """A primary and a backup, the two links between them, and the time."""

    def __init__(
        self,
        primary: StarSettings | None = None,
        backup: StarSettings | None = None,
        *,
        is_durable: bool = False,
        delay_s: float = 0.001,
    ) -> None:
        self.now = 0.0
        self.primary = Node("primary", primary or settings_of(Role.PRIMARY), is_durable=is_durable)
        self.backup = Node("backup", backup or settings_of(Role.BACKUP), is_durable=is_durable)
        self.nodes = (self.primary, self.backup)
        self.links = {"primary": Link(delay_s), "backup": Link(delay_s)}
        self.trace: list[str] = []
        self.dual_since: float | None = None
        self.dual_s_max = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def other(self, node: Node) -> Node:
        return self.backup if node is self.primary else self.primary

    # --- what befalls nodes and links ---------------------------------------------------------------------

    def start(self, *nodes: Node) -> None:
        for node in nodes:
            assert node.machine is None
            node.runs += 1
            node.error = None
            node.inbox.clear()
            self._note(node, "starts")
            node.machine = StarMachine(
                node.settings, node=f"{node.name}-{node.runs}", epoch=node.disk, now=self.now
            )
            node.said = None
            self._connect(node, self.other(node))
            self._connect(self.other(node), node)

    def kill(self, node: Node) -> None:
        self._note(node, "is killed")
        node.machine = None
        node.frozen_at = None
        node.inbox.clear()
        self._watch()

    def freeze(self, node: Node) -> None:
        self._note(node, "freezes")
        node.frozen_at = self.now
        self._watch()

    def thaw(self, node: Node, *, first: Callable[[], None] = lambda: None) -> None:
        """Wake the node up. ``first`` happens before it reads what the peer has said meanwhile."""
        assert node.frozen_at is not None
        gap_s = self.now - node.frozen_at
        node.frozen_at = None
        self._note(node, f"wakes after {gap_s:.1f} s")
        inbox, node.inbox = node.inbox, []
        self.call(node, lambda machine: machine.step(Stall(gap_s), self.now))
        first()
        for message in inbox:
            if message is None:
                self.call(node, lambda machine: machine.step(Subscription(), self.now))
            else:
                self._deliver(node, message)

    @contextmanager
    def cut(self, *senders: Node) -> Iterator[None]:
        """What these nodes say is lost."""
        self.set_cut(*senders, is_cut=True)
        yield
        self.set_cut(*senders, is_cut=False)

    def set_cut(self, *senders: Node, is_cut: bool) -> None:
        for node in senders or self.nodes:
            self._note(node, "is cut off: nobody hears it" if is_cut else "can be heard again")
            self.links[node.name].is_cut = is_cut
            if not is_cut:
                self._connect(node, self.other(node))

    def set_choked(self, sender: Node, *, is_choked: bool) -> None:
        link = self.links[sender.name]
        self._note(sender, "is choked: its words wait" if is_choked else "is heard again, all at once")
        link.is_choked = is_choked
        if not is_choked:
            held, link.held = link.held, []
            for message in held:
                self._carry(sender, message)

    def request(self, node: Node) -> bool:
        """A client asks this node; was it served?"""
        if not node.is_awake or node.machine is None:
            return False
        if not node.machine.is_active:
            self.call(node, lambda machine: machine.step(Vote(), self.now))
        is_served = node.is_active
        self._note(node, "serves a client" if is_served else "refuses a client")
        return is_served

    def call(self, node: Node, action: Callable[[StarMachine], list[Output]]) -> None:
        """Do something with a machine and carry out its outputs."""
        if node.machine is not None and node.frozen_at is None:
            self._carry_out(node, action(node.machine))

    def hear(self, node: Node, frames: list[bytes]) -> None:
        """Let a node hear these frames, as from a scripted peer."""
        self.call(node, lambda machine: machine.step(PeerMessage(decode(frames)), self.now))

    # --- time ---------------------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            at = min([until, *self._deadlines(), *(entry[0] for entry in self._queue[:1])])
            if at >= until:
                break
            self._turn(at)
        self.now = until
        self._watch()

    def _deadlines(self) -> list[float]:
        return [
            deadline
            for node in self.nodes
            if node.machine is not None and node.is_awake
            if (deadline := node.machine.next_deadline()) is not None
        ]

    def _turn(self, at: float) -> None:
        self.now = max(self.now, at)
        if self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
            return
        for node in self.nodes:
            machine = node.machine
            if machine is not None and node.is_awake:
                deadline = machine.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.call(node, lambda machine: machine.step(Tick(), self.now))

    # --- carrying -----------------------------------------------------------------------------------------

    def _connect(self, sender: Node, receiver: Node) -> None:
        """The receiver's subscription reaches the sender."""
        if sender.machine is None or receiver.machine is None or self.links[sender.name].is_cut:
            return
        if not sender.is_awake:
            sender.inbox.append(None)
            return
        machine = sender.machine
        self._at(
            self.now + self.links[receiver.name].delay_s,
            lambda: self.call(sender, lambda m: m.step(Subscription(), self.now) if m is machine else []),
        )

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action))

    def _carry(self, sender: Node, message: PeerState) -> None:
        link = self.links[sender.name]
        if link.is_choked:
            link.held.append(message)
            return
        receiver = self.other(sender)
        if link.is_cut or receiver.machine is None:
            return
        machine = receiver.machine
        link.arrives_at = max(self.now + link.delay_s, link.arrives_at)

        def arrive() -> None:
            if receiver.machine is not machine:
                return
            if receiver.is_awake:
                self._deliver(receiver, message)
            else:
                receiver.inbox.append(message)

        self._at(link.arrives_at, arrive)

    def _deliver(self, node: Node, message: PeerState) -> None:
        # Through the wire format, as in life.
        received = decode(encode(message))
        self.call(node, lambda machine: machine.step(PeerMessage(received), self.now))

    def _carry_out(self, node: Node, outputs: list[Output]) -> None:
        node.outputs += outputs
        for output in outputs:
            self._trace(node, output)
            if isinstance(output, Publish):
                self._carry(node, output.message)
            elif isinstance(output, PersistEpoch):
                node.disk = output.epoch if node.is_durable else 0
            elif isinstance(output, Fatal):
                node.error = output.error
                node.machine = None
        self._watch()

    def _watch(self) -> None:
        """Measure for how long both nodes serve at once."""
        if self.primary.is_active and self.backup.is_active:
            if self.dual_since is None:
                self.dual_since = self.now
            self.dual_s_max = max(self.dual_s_max, self.now - self.dual_since)
        elif self.dual_since is not None:
            self.dual_s_max = max(self.dual_s_max, self.now - self.dual_since)
            self.dual_since = None

    # --- the transcript -----------------------------------------------------------------------------------

    def _note(self, node: Node, text: str) -> None:
        self.trace.append(f"{self.now:7.3f}  {node.name:<8} {text}")

    def _trace(self, node: Node, output: Output) -> None:
        text = describe(output)
        if isinstance(output, Publish):
            message = output.message
            said = (
                message.state,
                message.epoch,
                message.asks,
                message.answers,
                message.released,
                message.leaving,
            )
            # A heartbeat that says nothing new is not worth a line.
            if said == node.said:
                return
            node.said = said
        if text:
            self._note(node, text)


def describe(output: Output) -> str:
    """An output as a line of a transcript; "" if nobody waits for it."""
    match output:
        case Publish(message):
            extras = [
                "asks" if message.asks else "",
                "answers" if message.answers else "",
                "released" if message.released else "",
                "leaving" if message.leaving else "",
            ]
            words = [State(message.state).name, f"epoch {message.epoch}", *filter(None, extras)]
            return "  says " + ", ".join(words)
        case PersistPause() | AskArbiter():
            return ""
        case StateChanged():
            return text_of(output)
        case _:
            return f"  {text_of(output)}"


def text_of(output: Any) -> str:
    """What an output that is no message comes to, as the log has it if the log has it."""
    match output:
        case PersistEpoch(epoch):
            return f"keeps epoch {epoch}"
        case Activated(epoch, _):
            return f"serves in epoch {epoch}"
        case Deactivated():
            return "serves no more"
        case PersistPause(number, for_s, why):
            return f"keeps order {number}, a pause for {for_s:g} s: {why}"
        case Fatal(error):
            return f"ends with status {error.exit_code}: {error}"
        case _:
            return str(output.text)
