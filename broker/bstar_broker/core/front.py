"""What a front is to the node, and the fronts of one node.

A front speaks another protocol on sockets of its own, its doors. It is sans-I/O: it turns frames into neutral
messages of peers with the dialect FRONT, and what the broker says to these peers (``bstar.wire.front``) into
frames. Queues, dispatch, deadlines, redelivery, roles and the durable store are the node's.

The broker knows a peer behind a front by its ``bstar.wire.front.peer_id``.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Protocol

from bstar import star
from bstar.wire import front as wire
from bstar.wire.front import Order
from bstar.wire.messages import FromPeer
from bstar_broker.core.outputs import FrontSend, Output, Send
from bstar_broker.core.records import WorkerRecord
from bstar_broker.core.snapshot import FrontState, StoreState


class Inlet(Protocol):
    """The node, as its fronts see it."""

    @property
    def is_active(self) -> bool:
        """True if the node serves."""

    @property
    def workers(self) -> Mapping[bytes, WorkerRecord]:
        """The node's workers of all dialects, by routing id or ``peer_id``: to read, not to change."""

    def receive_message(self, message: FromPeer, now: float, user_id: str) -> list[Output]:
        """Give it a message of a peer: of the dialect FRONT, from a ``bstar.wire.front.peer_id``."""

    def vet(self, message: FromPeer, user_id: str, now: float) -> list[Output] | None:
        """What follows if the owner of a connection may not send what this stands for; None if it may.

        For what a front then says in its own name (``OWN``).
        """

    def worker_unreached(self, peer: bytes, identity: bytes, now: float) -> list[Output]:
        """This REQUEST to this worker could not be sent: it never got it, and is gone."""

    def take_back(self, peer: bytes, identity: bytes, now: float) -> list[Output]:
        """The front has not passed this REQUEST on to this worker, which is about to leave."""

    def peer_unreached(self, peer: bytes, now: float, *, is_gone: bool) -> list[Output]:
        """Something else could not be sent to this peer: no connection (``is_gone``), or a full one."""

    def client_gone(self, peer: bytes, now: float) -> list[Output]:
        """This client's connection has ended: what it asked and no worker has leaves the queue."""

    def set_credit(self, peer: bytes, credit: int, now: float) -> list[Output]:
        """This worker takes so many requests at once from now on; 0 pauses it."""

    def is_offered(self, service: bytes) -> bool:
        """True if a worker of any dialect offers this service here."""

    def is_peer_serving(self, now: float) -> bool:
        """True if the other node is heard, and serves."""

    def note(self, reason: str, text: str) -> list[Output]:
        """Count bad input by its reason, one of our own words; the first goes to the log with ``text``."""

    def forget_stored(self, request: bytes) -> bool:
        """Forget the durable request with this id (16 bytes); False if the store cannot do so now."""

    def store_state(self, now: float) -> StoreState | None:
        """What the durable store holds; None without one."""


class Front(Protocol):
    """One protocol. Each method returns outputs in the order in which they must happen.

    It is made with the node's ``Inlet``. Bad input is counted by reason and never raises.
    """

    name: str

    def receive(self, door: str, frames: list[bytes], user_id: str, now: float) -> list[Output]:
        """A message has come through a door; ``user_id`` of its connection, "" without keys."""

    def deliver(self, order: Order, now: float) -> list[Output]:
        """The broker has something to say to one of its peers."""

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        """A FrontSend found no connection (``is_gone``) or no room in it."""

    def connected(self, door: str, count: int, now: float) -> list[Output]:
        """A door has so many connections now."""

    def peer_gone(self, door: str, routing_id: bytes, now: float) -> list[Output]:
        """The connection of this peer of a ROUTER door has ended. Messages of it may still be unread."""

    def activate(self, epoch: int, now: float) -> list[Output]:
        """The node serves from now on."""

    def deactivate(self, now: float) -> list[Output]:
        """The node serves no more."""

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline may have passed."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""

    def state(self, now: float) -> FrontState:
        """A snapshot."""


class Fronts:
    """The fronts of one node, by name."""

    def __init__(self, fronts: Sequence[Front]) -> None:
        self.all = {front.name: front for front in fronts}

    def follow(self, outputs: list[Output], now: float) -> list[Output]:
        """These outputs; what goes to peers behind fronts stands there in the fronts' own frames.

        What the fronts make of a change of the role follows it.
        """
        if not outputs:
            return outputs
        pending = deque(outputs)
        done: list[Output] = []
        while pending:
            output = pending.popleft()
            more: list[Output] = []
            if isinstance(output, Send) and wire.is_behind_front(output.frames[0]):
                order = wire.decode(output.frames)
                more = self.all[wire.split_peer_id(order.peer)[0]].deliver(order, now)
            else:
                done.append(output)
                if isinstance(output, star.Activated):
                    more = self.each(methodcaller("activate", output.epoch, now))
                elif isinstance(output, star.Deactivated):
                    more = self.each(methodcaller("deactivate", now))
            pending.extendleft(reversed(more))
        return done

    def each(self, ask: Callable[[Front], list[Output]]) -> list[Output]:
        """What all of them answer."""
        return [output for front in self.all.values() for output in ask(front)]

    def next_deadline(self) -> float | None:
        """When one of them has something to do."""
        due = [at for front in self.all.values() if (at := front.next_deadline()) is not None]
        return min(due, default=None)
