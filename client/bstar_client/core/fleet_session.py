"""Several pairs behind one client: a session for each, and nothing between them.

Each pair has a session of its own, which knows nothing of the others: its own nodes, its own votes, its own
outstanding calls. This only hands things on: a call to the session of its pair (``call.pair``), what a node
says to the session of that node's pair, and what the sessions put out to the shell, with the nodes numbered
through, pair by pair. So a pair that is down concerns its own calls alone. Which pair a call belongs to was
decided before (``bstar.fleet``).
"""

import math
from collections.abc import Sequence

from bstar_client.core.calls import Call
from bstar_client.core.mdp02_session import Mdp02Session
from bstar_client.core.outputs import Output, Reset, Send
from bstar_client.core.session import Counters, Session

__all__ = ["FleetSession"]


class FleetSession:
    """Sessions with the number of nodes of each. See ``ClientCore``. They count in common."""

    def __init__(self, sessions: "Sequence[tuple[Session | Mdp02Session, int]]") -> None:
        self.counters = Counters()
        self._sessions = [session for session, _ in sessions]
        # Of each pair its first node among all; of each node its pair.
        self._first: list[int] = []
        self._pair_of: list[int] = []
        for pair, (session, nodes) in enumerate(sessions):
            session.counters = self.counters
            self._first.append(len(self._pair_of))
            self._pair_of += [pair] * nodes
        # A session's deadline changes only when it is told something: asking a hundred each time would cost
        # more than the message that came.
        self._due = [_due(session) for session in self._sessions]

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return sum(session.outstanding for session in self._sessions)

    @property
    def actives(self) -> list[str | None]:
        """The endpoint that is followed now, of each pair."""
        return [session.active for session in self._sessions]

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call at its pair."""
        return self._told(call.pair, self._sessions[call.pair].submit(call, now))

    def abandon(self, call: Call, now: float) -> list[Output]:
        """Nobody waits for this call any more."""
        return self._told(call.pair, self._sessions[call.pair].abandon(call, now))

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        pair = self._pair_of[node]
        return self._told(pair, self._sessions[pair].connected(node - self._first[pair], now))

    def disconnected(self, node: int, now: float) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed."""
        pair = self._pair_of[node]
        return self._told(pair, self._sessions[pair].disconnected(node - self._first[pair], now))

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node."""
        pair = self._pair_of[node]
        return self._told(pair, self._sessions[pair].receive(node - self._first[pair], frames, now))

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline passed."""
        outputs: list[Output] = []
        for pair, due in enumerate(self._due):
            if due <= now:
                outputs += self._told(pair, self._sessions[pair].handle_timer(now))
        return outputs

    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``."""
        due = min(self._due)
        return None if due == math.inf else due

    def close(self, now: float) -> list[Output]:
        """End every outstanding call."""
        outputs: list[Output] = []
        for pair, session in enumerate(self._sessions):
            outputs += self._told(pair, session.close(now))
        return outputs

    def _told(self, pair: int, outputs: list[Output]) -> list[Output]:
        """The pair's session was told something: look when it wants to be woken, number its nodes through."""
        self._due[pair] = _due(self._sessions[pair])
        first = self._first[pair]
        if first:
            for place, output in enumerate(outputs):
                if isinstance(output, Send):
                    outputs[place] = Send(first + output.node, output.frames)
                elif isinstance(output, Reset):
                    outputs[place] = Reset(first + output.node)
        return outputs


def _due(session: Session | Mdp02Session) -> float:
    due = session.next_deadline()
    return math.inf if due is None else due
