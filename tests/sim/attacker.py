"""An outsider: a process with a listed key of another service, which does on purpose what it may not.

It knows everything: which requests are in flight and where, the routing ids of all connections, the epochs of
the nodes. What it sends is well-formed. So nothing but the rules of the list stands between it and the pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bstar.wire import native
from bstar.wire.mdp import MDP01, MDP02
from bstar_broker.core.records import WorkerRecord
from sim.dialects import body_of
from sim.keys import user_of
from sim.network import Frames, LinkOwner
from sim.world import World

if TYPE_CHECKING:
    from sim.node import SimNode

# What it adds to the epochs that nodes have seen: as little as an honest claim, or more than is believed.
_EPOCHS_AHEAD = (1, 2**20, 2**32 + 1)
_CREDIT = 100


class Attacker(LinkOwner):
    """One of them, with a link to each node of a pair. It may neither call nor offer ``service``."""

    def __init__(self, world: World, name: str, service: bytes) -> None:
        super().__init__(world, name)
        self.user_id = user_of(name)
        self._service = service
        self._numbers = 0
        # Of each link: whose requests to answer once the connection with a claimed routing id is up.
        self._answers_as: dict[int, bytes] = {}

    def start(self) -> None:
        """Connect, with a routing id of its own."""
        self.boot()
        for link in self.links:
            link.open()

    def deadline(self) -> float | None:
        return None

    def hear(self, node: int, frames: Frames) -> None:
        """What a node says changes nothing."""

    def change(self, node: int, is_up: bool) -> None:
        """Whoever has just got another's routing id speaks at once, mostly."""
        claimed = self._answers_as.pop(node, None)
        if is_up and claimed is not None and self.rng.random() < 0.7:
            self.rng.choice((self._answer, self._answer, self._register, self._ask, self._beat))(
                node, claimed
            )

    def catch_up(self) -> None:
        """It is never frozen."""

    # --- attacks ------------------------------------------------------------------------------------------

    def act(self, index: int) -> None:
        """One attack on the node that this link leads to."""
        acts: list[Callable[[int, bytes], None]] = [self._ask, self._register, self._beat, self._answer]
        if self.rng.random() < 0.4:
            self._claim(index)
        elif self.links[index].connection is not None:
            self.rng.choice(acts)(index, b"")

    def _node(self, index: int) -> SimNode:
        return self.links[index].node

    def _say(self, index: int, frames: Frames) -> None:
        self.links[index].send(frames)

    def _claim(self, index: int) -> None:
        """Connect again with the routing id of another one, which has just left, or is there."""
        node, link = self._node(index), self.links[index]
        taken = [each for each in node.router if each != (link.connection and link.connection.routing_id)]
        ids = list(node.vacant) if node.vacant and self.rng.random() < 0.8 else sorted(taken)
        if ids:
            link.claims = self._answers_as[index] = self.rng.choice(ids)
            link.open()

    def _ask(self, index: int, claimed: bytes) -> None:
        """A request, single or in a batch, of any dialect."""
        self._numbers += 1
        body = body_of(f"{self.name}.{self._numbers}", "echo")
        client_id = self.rng.randbytes(16)
        requests: tuple[Frames, ...] = (
            native.encode_request(native.identity(client_id, 1), self._service, [body], ttl_ms=5_000),
            native.encode_requests(client_id, self._service, [1, 2], [5_000, 5_000], [body, body]),
            MDP02.encode_request(self._service, [body]),
            MDP01.encode_request(self._service, [body]),
        )
        self._say(index, self.rng.choice(requests))

    def _register(self, index: int, claimed: bytes) -> None:
        """READY for the service, with an epoch that nobody took where the dialect has a word for it."""
        self._say(
            index,
            self.rng.choice(
                (
                    native.encode_ready(self._service, credit=_CREDIT, epoch=self._epoch(index)),
                    MDP02.encode_ready(self._service),
                    MDP01.encode_ready(self._service),
                )
            ),
        )

    def _beat(self, index: int, claimed: bytes) -> None:
        """A worker's words without a reply: a heartbeat or a refusal with an epoch, a farewell."""
        worker = self._worker(index, claimed)
        held = native.NO_IDENTITY
        if worker is not None and worker.names_requests and worker.in_flight:
            held = self.rng.choice(list(worker.in_flight))
        self._say(
            index,
            self.rng.choice(
                (
                    native.encode_heartbeat(self._epoch(index)),
                    native.encode_stale_epoch(held, self._epoch(index)),
                    native.encode_disconnect(is_unbegun=True),
                )
            ),
        )

    def _answer(self, index: int, claimed: bytes) -> None:
        """A worker's reply, part or failure, to a request that is in flight there."""
        worker = self._worker(index, claimed)
        if worker is None or not worker.held:
            self._beat(index, claimed)
            return
        forged = b"forged by " + self.name.encode()
        epoch = self._node(index).node.machine.epoch
        if not worker.in_flight:
            bundle = next(iter(worker.bundles))
            bodies = [forged] * len(bundle.numbers)
            self._say(index, native.encode_finals(bundle.client_id, epoch, bundle.numbers, bodies))
            return
        address = self.rng.choice(list(worker.in_flight))
        if not worker.names_requests:
            codec = MDP02 if worker.codec is MDP02 else MDP01
            self._say(index, codec.encode_final(address, [forged]))
            return
        replies: tuple[Frames, ...] = (
            native.encode_final(address, epoch, 0, [forged]),
            native.encode_partial(address, epoch, 0, [forged]),
            native.encode_error(address, epoch, 1, forged),
        )
        self._say(index, self.rng.choice(replies))

    def _worker(self, index: int, claimed: bytes) -> WorkerRecord | None:
        """The worker whose routing id was claimed; without one any that has something to do."""
        node = self._node(index)
        if not node.is_alive:
            return None
        workers = node.node.broker.ledger.workers
        if claimed:
            return workers.get(claimed)
        busy = [worker for worker in workers.values() if worker.held]
        return self.rng.choice(busy) if busy else None

    def _epoch(self, index: int) -> int:
        node = self._node(index)
        seen = node.node.machine.epochs.seen if node.is_alive else 0
        return int(seen + self.rng.choice(_EPOCHS_AHEAD))
