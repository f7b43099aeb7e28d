"""A worker's keepalive: a connection over which libzmq's I/O threads alone talk (``KeepAlive``).

A PING reaches the node whenever the worker's process runs, even if a handler keeps the interpreter to itself;
the node's end closes it when its time to live is over. It comes back with the next PING that gets through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar_client.core.worker.outputs import KeepAlive

if TYPE_CHECKING:
    from sim.network import Link


class Keepalive:
    """One of them, until ``end``."""

    def __init__(self, link: Link, told: KeepAlive) -> None:
        self._link = link
        self._routing_id = told.routing_id
        self._interval_s = told.interval_ms / 1000
        self._ttl_s = told.ttl_ms / 1000
        self._is_ended = False
        self._ping()

    def _ping(self) -> None:
        link = self._link
        owner, node = link.owner, link.node
        if self._is_ended or not owner.is_alive:
            return
        link.world.after(self._interval_s, self._ping)
        is_cut = link.there.is_blocked or link.back.is_blocked
        if (owner.is_awake or owner.is_held) and node.is_awake and not is_cut:
            node.keepalives[self._routing_id] = link.world.now + link.there.delay_s + self._ttl_s

    def end(self, *, is_silent: bool) -> None:
        """Its socket is closed, or its process has ended; ``is_silent``: and nobody can say so."""
        self._is_ended = True
        if not is_silent and not self._link.there.is_blocked:
            self._link.node.keepalives.pop(self._routing_id, None)
