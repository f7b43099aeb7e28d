"""Carries out what the durable store asks: orders to its disk, messages to the peer's store and the arbiter.

The disk's thread wakes the loop once for a heap of answers. Orders of one turn go to the disk together.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, cast

import zmq

from bstar.base.closing import Closing
from bstar.errors import ClosedError, StoreEndedError
from bstar.net.agenda import LAG_BOUNDS_S
from bstar.net.reactor import Reactor
from bstar.pair.arbiter_link import ArbiterLink
from bstar.settings.schema import Settings
from bstar.wire.arbiter import Answer, Question
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import StoreInput, StoreOutput
from bstar_broker.core.snapshot import DiskState
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    AskArbiter,
    DiskOutput,
    PeerLost,
    PeerSaid,
    ToPeer,
)
from bstar_broker.store.core.replica import Replica, ReplicaSettings
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.tally import StoreObserver
from bstar_broker.store.disk import Disk
from bstar_broker.store.fail_points import Point, reach
from bstar_broker.store.link import open_link

if TYPE_CHECKING:
    from bstar.net.curve import Gate

_log = logging.getLogger("bstar.store")

# Whether the disk's thread lives and answers is checked this often.
_CHECK_INTERVAL_S = 0.5
# The disk is asked for its free room this often.
_LOOK_INTERVAL_S = 5.0


class StoreShell(Closing):
    """The disk and the link of one node's store. ``hear`` gets their inputs, in the loop's thread.

    ConfigurationError or StoreError if the directory cannot be used, zmq.ZMQError if the endpoint cannot be
    bound.
    """

    def __init__(
        self,
        settings: Settings,
        hear: Callable[[StoreInput, float], object],
        *,
        reactor: Reactor,
        context: "zmq.Context[zmq.Socket[bytes]]",
        gate: "Gate | None",
    ) -> None:
        options = settings.store
        assert options.directory is not None
        assert options.link is not None
        self._settings = settings
        self._hear = hear
        self._reactor = reactor
        self._free_bytes = self._file_bytes = 0
        self._looked_at = -inf
        self._orders: list[DiskOutput] = []
        # Set if the disk's thread has ended: then the reactor is asked to stop, so the node hands its role
        # over and ends.
        self.failure: StoreEndedError | None = None
        with ExitStack() as resources:
            self._disk = Disk(options.directory, pair=settings.pair, wake=self._wake)
            resources.callback(self._disk.close)
            timing = settings.timing
            self._link = open_link(
                context,
                reactor,
                options.link,
                is_bound=settings.role == "primary",
                timing=(round(timing.heartbeat_interval_s * 1000), round(timing.failover_timeout_s * 1000)),
                security=None if gate is None else gate.security,
                handlers=(self._on_message, lambda now: self._hear(PeerLost(), now)),
            )
            resources.callback(self._link.close)
            self._run = os.urandom(16)
            self._arbiter = None
            if settings.endpoints.arbiter is not None:
                self._arbiter = self._connect(context, settings.endpoints.arbiter, gate)
                resources.callback(self._arbiter.close)
            resources.callback(reactor.add_timer(_CHECK_INTERVAL_S, self._check).cancel)
            self._resources = resources.pop_all()

    def _check(self, now: float) -> None:
        self._disk.watch(_CHECK_INTERVAL_S)
        if self._disk.has_ended and self.failure is None:
            self.failure = StoreEndedError(
                self._disk.error or "the thread of the store's disk has ended; restart the node"
            )
            _log.critical("this node gives its role away and ends: %s", self.failure)
            self._reactor.stop()

    def _connect(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, gate: "Gate | None"
    ) -> ArbiterLink:
        timing = self._settings.timing
        arbiter = ArbiterLink(
            context,
            endpoint,
            heartbeat_ms=round(timing.heartbeat_interval_s * 1000),
            timeout_ms=round(timing.failover_timeout_s * 1000),
            security=None if gate is None else gate.security.to_arbiter(),
        )
        arbiter.open(self._reactor, self._on_answer)
        if gate is not None:
            gate.security.on_change(lambda _: arbiter.follow_trust())
        return arbiter

    def _on_answer(self, answer: Answer) -> None:
        if answer.node == self._run.hex():
            self._hear(ArbiterSaid(answer.number, answer.store), self._reactor.now())

    def _ask(self, asked: AskArbiter) -> None:
        assert self._arbiter is not None, "a replica with an arbiter needs a shell with one"
        settings = self._settings
        ttl_ms = round(settings.timing.failover_timeout_max_s * 1000)
        question = Question(
            "look", settings.pair, settings.role, self._run.hex(), asked.number, ttl_ms, asked.claim
        )  # fmt: skip
        self._arbiter.ask(question)

    def make(self, broker: Broker) -> DurableStore:
        """The store of this node's broker."""
        settings, options = self._settings, self._settings.store
        self._store = DurableStore(
            broker,
            StoreSettings(
                when_alone=options.when_alone,
                requests_max=options.requests_max,
                bytes_max=options.bytes_max,
                keep_answers_s=options.keep_answers_s,
                keep_dead_s=options.keep_dead_s,
                attempts_max=options.attempts_max,
                backoff_s=options.backoff_s,
                backoff_max_s=options.backoff_max_s,
                expires_s=options.expires_s,
            ),
            Replica(
                pair=settings.pair,
                role=settings.role,
                settings=ReplicaSettings(
                    heartbeat_s=options.peer_timeout_s / 8,
                    peer_timeout_s=options.peer_timeout_s,
                    log_bytes=options.log_bytes,
                    has_arbiter=self._arbiter is not None,
                ),
                new_store=self._run,
                now=self._reactor.now(),
            ),
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=os.urandom,
            disk_state=self.disk_state,
            now=self._reactor.now(),
        )
        return self._store

    def observe(self, observer: StoreObserver) -> None:
        """Report to it from now on. After ``make``."""
        self._store.observe(observer)

    def perform(self, output: StoreOutput) -> None:
        """Carry it out: a message at once, an order to the disk with the next ``hand_over``."""
        if isinstance(output, ToPeer):
            reach(Point.BEFORE_SEND)
            self._link.send(output.frames)
            reach(Point.AFTER_SEND)
        elif isinstance(output, AskArbiter):
            self._ask(output)
        else:
            self._orders.append(cast("DiskOutput", output))

    def hand_over(self) -> None:
        """Give the disk its orders: after the messages of the same turn, so that both disks sync at once.

        An entry that only the peer has, because this process ended before, is as good as one that this disk
        did not sync: no message says that it is on this disk before the disk says so.
        """
        if self._orders:
            reach(Point.BEFORE_ORDER)
            orders, self._orders = self._orders, []
            self._disk.put(orders)

    def _on_message(self, frames: list[bytes], now: float) -> None:
        reach(Point.PEER_HEARD)
        self._hear(PeerSaid(frames), now)

    def _wake(self) -> None:
        # In the disk's thread. A reactor that is closed asks for nothing any more.
        with suppress(ClosedError):
            self._reactor.call_threadsafe(self._take)

    def _take(self) -> None:
        try:
            self.take()
        except Exception as error:  # noqa: BLE001  # the loop raises it, as that of any handler: see _raise
            self._reactor.call_at(self._reactor.now(), partial(_raise, error))

    def take(self) -> None:
        """Hand over what the disk has answered."""
        now = self._reactor.now()
        for given in self._disk.take():
            is_news = isinstance(given, Applied)
            if is_news:
                reach(Point.BEFORE_ANSWER)
            self._hear(given, now)
            if is_news:
                reach(Point.AFTER_ANSWER)

    def disk_state(self) -> DiskState:
        """A snapshot of the disk."""
        disk, now = self._disk, self._reactor.now()
        if now >= self._looked_at + _LOOK_INTERVAL_S:
            self._looked_at = now
            with suppress(OSError):
                self._free_bytes = disk.free_bytes()
        # If the directory is gone, what the disk's thread does next tells. It may be moving files right now.
        with suppress(OSError):
            self._file_bytes = disk.file_bytes()
        return DiskState(
            free_bytes=self._free_bytes,
            file_bytes=self._file_bytes,
            waiting=disk.orders_waiting,
            commits=disk.commits,
            sync_bounds_s=list(LAG_BOUNDS_S),
            sync_counts=list(disk.syncs.counts),
            sync_sum_s=disk.syncs.sum_s,
            damaged=disk.damaged,
            error=disk.error,
            oldest_due_ms=disk.oldest_due_ms,
            damage=disk.damage,
            repairs=disk.repairs,
            repaired=disk.repaired,
            is_in_memory=disk.is_in_memory,
        )

    def close(self) -> None:
        """Close the link, let the disk finish what waits, and end its thread."""
        self._resources.close()


def _raise(error: Exception, now: float) -> None:
    """For a call from another thread, whose future has no reader."""
    raise error
