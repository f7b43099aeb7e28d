"""PZQ while consumers are killed at random and both nodes are killed, one after the other.

``make chaos SCENARIO=pzq COUNT=100000`` produces so many messages, and SEED=7 draws other victims.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bstar.wire import pzq
from bstar_testing.nodes import Node
from bstar_testing.pairs import Pair
from bstar_testing.processes import HarnessError, Process
from chaos.report import new_folder, remove
from chaos.toxiproxy import say
from support.pzq_peers import Monitor, Producer, context

COUNT = int(os.environ.get("COUNT") or 20_000)
SEED = int(os.environ.get("SEED") or 1)
# Messages without an answer, and consumers.
WINDOW = 256
CONSUMERS = 3
LIMIT_S = 60.0
DOORS = ("fronts.pzq.producers", "fronts.pzq.consumers", "fronts.pzq.monitor")

pytestmark = pytest.mark.timeout(420 + COUNT // 50)


class Run:
    """One producer in this process, consumers in processes of their own."""

    def __init__(self, pair: Pair, producer: Producer, folder: Path) -> None:
        self.pair = pair
        self.producer = producer
        self.chance = random.Random(SEED)
        self.sent = 0
        self.kills = 0
        self.longest_s = 0.0
        self._stored_at = time.monotonic()
        self._kill_after = 0
        self.files = [folder / f"consumer{number}" for number in range(CONSUMERS)]
        self.consumers = [self._consumer(file) for file in self.files]

    def _consumer(self, file: Path) -> Process:
        argv = [sys.executable, "-m", "chaos.pzq_consumer", str(file), *self.pair.doors(DOORS[1])]
        return self.pair.start_process(file.name, argv)

    def turn(self) -> None:
        """Produce, and kill a consumer now and then; it is started again at once."""
        before = len(self.producer.stored)
        while self.sent < COUNT and len(self.producer) < WINDOW:
            self.producer.send(b"%d" % self.sent)
            self.sent += 1
        self.producer.turn(0.02)
        stored, now = len(self.producer.stored), time.monotonic()
        if stored > before:
            self.longest_s = max(self.longest_s, now - self._stored_at)
            self._stored_at = now
        if stored >= self._kill_after:
            self._kill_after = stored + self.chance.randint(COUNT // 40, COUNT // 10)
            consumer = self.chance.choice(self.consumers)
            consumer.kill()
            consumer.launch()
            self.kills += 1

    def until(self, happened: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Go on until this is so. The producer's messages are the votes."""
        began = time.monotonic()
        while not happened():
            if time.monotonic() > began + limit_s:
                raise HarnessError(f"did not come within {limit_s:g} s: {what}")
            self.turn()

    def until_stored(self, count: int) -> None:
        """Go on until so many messages were acknowledged to the producer."""
        while (before := len(self.producer.stored)) < count:
            self.until(partial(self._has_more, before), "a message is stored")

    def _has_more(self, before: int) -> bool:
        return len(self.producer.stored) > before

    def kill(self, node: Node) -> None:
        """Kill the node that serves, let the other one serve, start the node again."""
        node.kill()
        peer = self.pair.peer_of(node)
        self.until(lambda: (state := peer.look()) and state.pair.is_active, "the other node serves")
        node.launch()
        self.until(lambda: copies(peer) == 2, "the store is on both disks")

    def consumed(self) -> list[bytes]:
        """The bodies that consumers have written down, each as often as it came."""
        return [line.split()[1] for file in self.files if file.exists() for line in whole_lines(file)]


def whole_lines(file: Path) -> list[bytes]:
    """A consumer may have been killed within a line."""
    return [line for line in file.read_bytes().splitlines() if line.count(b" ") == 1]


def copies(node: Node) -> int:
    state = node.look()
    return state.store.copies if state and state.store and state.store.is_leading else 0


def test_pzq_loses_no_message_while_consumers_and_both_nodes_are_killed() -> None:
    folder = new_folder("pzq")
    began_at = time.monotonic()
    settings = {"fronts.pzq.ack_timeout_s": 2.0}
    with (
        Pair(folder, has_store=True, doors=DOORS, settings=settings) as pair,
        context() as zmq_context,
        Producer(zmq_context, pair.doors(DOORS[0])) as producer,
    ):
        pair.start()
        run = Run(pair, producer, folder)
        run.until(lambda: copies(pair.primary) == 2, "the store is on both disks")
        run.until_stored(COUNT // 3)
        run.kill(pair.primary)
        run.until_stored(2 * COUNT // 3)
        run.kill(pair.backup)
        run.until_stored(COUNT)
        stored = set(producer.stored)
        assert len(stored) == COUNT == len(producer.stored)
        run.until(lambda: stored <= set(run.consumed()), "all are consumed", LIMIT_S + COUNT / 50)
        bodies = run.consumed()
        assert set(bodies) == stored
        with Monitor(zmq_context, pair.doors(DOORS[2])[0]) as monitor:
            run.until(lambda: pzq.read_figures(monitor.ask())["messages"] == 0, "nothing is left")
        store = pair.primary.state().store
        assert store is not None
        assert store.pending + store.answered + store.dead + store.cancelled == 0
    took_s = time.monotonic() - began_at
    say(
        f"pzq: {COUNT} messages acknowledged, all consumed, {len(bodies) - COUNT} of them repeatedly; "
        f"{run.kills} consumers and 2 nodes killed; at most {run.longest_s:.1f} s between acknowledgements; "
        f"{took_s:.0f} s"
    )
    remove(folder)
