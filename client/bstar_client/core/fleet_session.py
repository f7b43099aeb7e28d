"""Several pairs behind one client: one independent session for each pair.

Each session has its own nodes, votes and outstanding calls. ``FleetSession`` hands a call to the session of
its pair (``call.pair``, from ``bstar.fleet``) and a message to the session of its node. It hands the
sessions' outputs to the shell and numbers the nodes through, pair by pair. A pair that is down affects its
own calls only.

The first call for a pair begins its session and connects to its nodes. So a client costs nothing at pairs
that it does not call.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from bstar_client.core.call_errors import already_closed
from bstar_client.core.calls import Call
from bstar_client.core.counters import Counters
from bstar_client.core.native.session import Session
from bstar_client.core.outputs import Fail, Output, Reset, Send
from bstar_client.core.plain.attempt_session import AttemptSession


class FleetSession:
    """The sessions of all pairs; ``nodes`` counts those of each. See ``ClientCore``.

    ``begin`` makes the session of a pair at a given time, with the ``Counters`` that all sessions share. A
    Reset opens the sockets of the pair's nodes; they are closed before.
    """

    def __init__(
        self, nodes: Sequence[int], begin: Callable[[int, float, Counters], Session | AttemptSession]
    ) -> None:
        self.counters = Counters()
        self._begin = begin
        self._sessions: list[Session | AttemptSession | None] = [None] * len(nodes)
        # The index of each pair's first node; the pair of each node.
        self._first = [sum(nodes[:pair]) for pair in range(len(nodes))]
        self._pair_of = [pair for pair, count in enumerate(nodes) for _ in range(count)]
        # A session's deadline changes only with an input: to ask a hundred sessions each time would cost more
        # than the message.
        self._due = [math.inf] * len(nodes)
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return sum(session.outstanding for session in self._sessions if session is not None)

    @property
    def actives(self) -> list[str | None]:
        """The endpoint that each session follows."""
        return [None if session is None else session.active for session in self._sessions]

    def open(self, pair: int, now: float) -> list[Output]:
        """Begin the pair's session and connect to its nodes."""
        assert self._sessions[pair] is None, "the session has begun already"
        self._sessions[pair] = self._begin(pair, now, self.counters)
        return self._renumbered(pair, [Reset(node) for node in range(self._pair_of.count(pair))])

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call at its pair."""
        return self.submit_all((call,), now)

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls, those of a pair together."""
        of_pairs: dict[int, list[Call]] = {}
        for call in calls:
            of_pairs.setdefault(call.pair, []).append(call)
        outputs: list[Output] = []
        for pair, of_pair in of_pairs.items():
            if self._sessions[pair] is None:
                # A call that was abandoned before its turn opens nothing.
                waiting = [call for call in of_pair if not call.is_done]
                if not waiting:
                    continue
                if self._is_closed:
                    outputs += [Fail(call, already_closed()) for call in waiting]
                    continue
                outputs += self.open(pair, now)
            outputs += self._renumbered(pair, self._of(pair).submit_all(of_pair, now))
        return outputs

    def abandon(self, call: Call, now: float) -> list[Output]:
        """No caller waits for this call any more."""
        if self._sessions[call.pair] is None:
            call.is_done = True  # its turn will come, and nothing will be done
            return []
        return self._renumbered(call.pair, self._of(call.pair).abandon(call, now))

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        pair = self._pair_of[node]
        return self._renumbered(pair, self._of(pair).connected(node - self._first[pair], now))

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed."""
        pair = self._pair_of[node]
        return self._renumbered(
            pair, self._of(pair).disconnected(node - self._first[pair], now, is_untrusted=is_untrusted)
        )

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node."""
        pair = self._pair_of[node]
        return self._renumbered(pair, self._of(pair).receive(node - self._first[pair], frames, now))

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline passed."""
        outputs: list[Output] = []
        for pair, due in enumerate(self._due):
            if due <= now:
                outputs += self._renumbered(pair, self._of(pair).handle_timer(now))
        return outputs

    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``."""
        due = min(self._due)
        return None if due == math.inf else due

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Start the sessions over with these calls."""
        of_pairs: dict[int, list[Call]] = {}
        for call in calls:
            of_pairs.setdefault(call.pair, []).append(call)
        outputs: list[Output] = []
        for pair, session in enumerate(self._sessions):
            if session is not None:
                opened: list[Output] = [Reset(node) for node in range(self._pair_of.count(pair))]
                outputs += self._renumbered(pair, opened + session.restart(of_pairs.get(pair, ()), now))
        return outputs

    def close(self, now: float) -> list[Output]:
        """End every outstanding call."""
        self._is_closed = True
        outputs: list[Output] = []
        for pair, session in enumerate(self._sessions):
            if session is not None:
                outputs += self._renumbered(pair, session.close(now))
        return outputs

    def _of(self, pair: int) -> Session | AttemptSession:
        session = self._sessions[pair]
        assert session is not None, "nothing comes from nodes without a connection"
        return session

    def _renumbered(self, pair: int, outputs: list[Output]) -> list[Output]:
        """The pair's session has changed: note its next deadline, and number its nodes through."""
        due = self._of(pair).next_deadline()
        self._due[pair] = math.inf if due is None else due
        first = self._first[pair]
        if first:
            for place, output in enumerate(outputs):
                if isinstance(output, Send):
                    outputs[place] = Send(first + output.node, output.frames)
                elif isinstance(output, Reset):
                    outputs[place] = Reset(first + output.node)
        return outputs
