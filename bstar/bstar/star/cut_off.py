"""Clients that reach only the passive node: which node notices, and when the role follows them.

A native client asks a passive node for work only while it finds no active one. So while the peer is ACTIVE
and heard, such requests show that clients are cut off from it. Each node knows half of it:

* The passive node counts the clients that it refused, one per connection. A client counts only if a worker
  here offers its service: others would gain nothing. The node reports several clients after PATIENCE failover
  timeouts, a single one after LONE_PATIENCE. The report, with the time since the first refusal, is in every
  state message.
* The active node knows whether it serves. It gives the role up (the rule CLIENTS_CUT_OFF) only if no client
  reached it in all that time: no request came, and no sign of life of a client with a request here. After a
  handover it waits for SETTLING failover timeouts. So a client that lies, or sees one node only, cannot take
  the role from clients that are served. An alternating cut moves the role at most once per SETTLING.

Clients of plain MDP do not count, because they cannot tell a passive node from a slow one.
"""

import math

import msgspec

from bstar.star.outputs import ClientsCutOff
from bstar.wire.peer import PeerState

# In failover timeouts. Longer than a client needs to find the active node after a start, a failover or a full
# accept queue. Shorter than most callers' deadlines.
PATIENCE = 10
# One client may see one node only because of its own network or configuration.
LONE_PATIENCE = 30
# A handover for these clients disturbs no other client, but workers may have to execute requests again.
SETTLING = 200
# It is enough to know that there are many, and connections cost a liar nothing.
CLIENTS_MAX = 256


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """``clients`` clients were refused in the last ``for_s`` seconds, and none is known to be served.

    ``unserved``: those for whose service no worker is registered here; they are not among ``clients``.
    """

    clients: int = 0
    for_s: float = 0.0
    unserved: int = 0

    @classmethod
    def of(cls, message: PeerState) -> "Evidence":
        """The passive peer's report."""
        return cls(message.cut_off, message.cut_off_ms / 1000)


_NONE = Evidence()


class _Client:
    """One connection: its first and last refusal, and whether it could be served here."""

    __slots__ = ("first", "has_worker", "last")

    def __init__(self, now: float, *, has_worker: bool) -> None:
        self.first = self.last = now
        self.has_worker = has_worker


class CutOff:
    """One node's half of it. ``served_at``: when this active node last heard a client that it serves; a plain
    attribute, because the request path sets it. ``is_suspended``: the node drains.
    """

    def __init__(self, failover_timeout_s: float, now: float, *, is_off: bool) -> None:
        self.served_at = now
        self.is_suspended = False
        self.handovers = 0
        self._is_off = is_off
        self._reported = ""
        self.adapt(failover_timeout_s)
        self._moved_at = -math.inf
        self._clients: dict[bytes, _Client] = {}

    def adapt(self, failover_timeout_s: float) -> None:
        """Set the failover timeout of the pair."""
        self._patience_s = PATIENCE * failover_timeout_s
        self._lone_patience_s = LONE_PATIENCE * failover_timeout_s
        self._settling_s = SETTLING * failover_timeout_s

    # --- the passive node -----------------------------------------------------------------------------------

    def refuse(self, client: bytes, now: float, *, has_worker: bool) -> None:
        """A native client asked here while the peer is active."""
        known = self._clients.get(client)
        if known is not None:
            known.last = now
            known.has_worker = has_worker
        elif len(self._clients) < CLIENTS_MAX or self._drop_silent(now):
            self._clients[client] = _Client(now, has_worker=has_worker)

    def forget(self) -> None:
        """The peer is not active or not heard, or this node was away: the counts mean nothing."""
        self._clients.clear()

    def evidence(self, now: float) -> Evidence:
        """The evidence to report; none before it has lasted long enough."""
        if not self._clients:
            return _NONE
        self._drop_silent(now)
        served = [client for client in self._clients.values() if client.has_worker]
        listed = served or list(self._clients.values())
        if not listed:
            return _NONE
        first = min(client.first for client in listed)
        asked_for_s = max(client.last for client in listed) - first
        if asked_for_s < (self._patience_s if len(listed) > 1 else self._lone_patience_s):
            return _NONE
        return Evidence(len(served), now - first, len(self._clients) - len(served))

    def _drop_silent(self, now: float) -> bool:
        """Forget clients that have not asked for a while: they gave up, or found the active node."""
        silent = [name for name, client in self._clients.items() if now - client.last > self._lone_patience_s]
        for name in silent:
            del self._clients[name]
        return bool(silent)

    # --- the active node ------------------------------------------------------------------------------------

    def activate(self, now: float) -> None:
        """This node begins to serve."""
        self._clients.clear()
        self.served_at = now

    def moved(self, now: float) -> None:
        """One of the two nodes has handed the role to the other."""
        self._moved_at = now

    def why_stay(self, evidence: Evidence, now: float) -> str:
        """Why the active node keeps the role; empty if it may give it up."""
        if self._is_off:
            return "stays: on_clients_cut_off is stay"
        if self.is_suspended:
            return "stays: this node is stopping"
        if self.served_at > now - evidence.for_s:
            return "stays: other clients are served here"
        if now < self._moved_at + self._settling_s:
            return f"stays: the role was handed over less than {self._settling_s:g} s ago"
        return ""

    # --- what is reported of it, each verdict once ----------------------------------------------------------

    def tell(self, evidence: Evidence) -> list[ClientsCutOff]:
        """The passive node says so to its peer, or why not."""
        if evidence.clients:
            return self._report(evidence, "asks the active node to hand over")
        if evidence.unserved:
            return self._report(evidence, "no worker is registered here for what they ask, so the role stays")
        return self._report(evidence, "")

    def heed(self, evidence: Evidence, why_not_ready: str, now: float) -> list[ClientsCutOff]:
        """The active node has heard it; ``why_not_ready`` says why the peer cannot take the role."""
        if not evidence.clients:
            return self._report(evidence, "")
        stays = self.why_stay(evidence, now) or (f"stays: {why_not_ready}" if why_not_ready else "")
        self.handovers += not stays
        return self._report(evidence, stays or "hands the role over")

    def _report(self, evidence: Evidence, verdict: str) -> list[ClientsCutOff]:
        if verdict == self._reported:
            return []
        self._reported = verdict
        if not verdict:
            return []
        return [ClientsCutOff(evidence.clients, evidence.unserved, evidence.for_s, verdict)]
