"""Freelance model 3, 10/FLP: ping the servers, and ask the one that has been there for longest.

    request [control] [body…]        reply [control] [body…]        ["PING"]        ["PONG"]

The control frame is the request's number. The session pings a server when its connection is up, and
whenever nothing came from it for ``ping_interval_s`` (FLP-C-03). A server is *live* from the first message
that it sends until its connection breaks, or until it is silent for ``server_expiry_s``. A server whose
identity is not the endpoint that the client connects to cannot be addressed (FLP-S-01), so it never is live.

Each request goes to the live server that came first. If that one is lost, the request goes to the next one:
servers must be idempotent (FLP-R-02). A server counts as silent, too, if a request runs into its deadline
there, and requests have had no answer for ``ping_interval_s``.
"""

import math
from collections.abc import Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire.brokerless import PING, decode_controlled, encode_controlled
from bstar_client.core.calls import Call
from bstar_client.core.events import ActiveFound, ActiveLost, Connected
from bstar_client.core.outputs import Announce, Output, Send
from bstar_client.core.plain.numbered_session import NumberedSession


class _Server(msgspec.Struct):
    """When a server is due. ``unanswered_since``: the first request since its last message was sent then."""

    ping_at: float = math.inf
    expires_at: float = math.inf
    unanswered_since: float = math.inf


class FlpSession(NumberedSession):
    """One client of 10/FLP servers. See ``ClientCore``. Both times are in seconds."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        outstanding_max: int,
        ping_interval_s: float,
        server_expiry_s: float,
    ) -> None:
        super().__init__(endpoints, outstanding_max=outstanding_max)
        self._ping_interval_s = ping_interval_s
        self._server_expiry_s = server_expiry_s
        self._servers = [_Server() for _ in endpoints]
        # The live servers, in the order in which they came.
        self._live: dict[int, None] = {}
        self._followed: str | None = None

    @property
    def active(self) -> str | None:
        """The endpoint of the server that gets the next request, None while none is live."""
        node = next(iter(self._live), None)
        return None if node is None else self._nodes[node].endpoint

    # --- connections --------------------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a server is up: ping it."""
        self._nodes[node].connect()
        outputs: list[Output] = [Announce(Connected(self._nodes[node].endpoint))]
        self._ping(node, outputs, now)
        return outputs

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
        """The connection to a server broke, or an attempt to connect failed."""
        outputs = self._nodes[node].disconnect(is_untrusted=is_untrusted)
        self._lose(node, "disconnected", outputs, now)
        self._servers[node] = _Server()
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a server. A PONG answers no request (FLP-R-03)."""
        outputs: list[Output] = []
        try:
            number, body = decode_controlled(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return outputs
        if not self._nodes[node].is_connected:
            self.counters.replies_unmatched += 1  # its connection has broken meanwhile
            return outputs
        self._servers[node] = _Server(now + self._ping_interval_s, now + self._server_expiry_s)
        if body:
            self._answer(node, number, body, outputs, now)
        if node not in self._live:
            self._live[node] = None
            self._follow("", outputs)
            for each, call in self._calls.items():
                if not call.sent_to:
                    self._ask(each, call, outputs, now)
        return outputs

    def _ping(self, node: int, outputs: list[Output], now: float) -> None:
        self._servers[node].ping_at = now + self._ping_interval_s
        outputs.append(Send(node, [PING]))

    def _lose(self, node: int, reason: str, outputs: list[Output], now: float) -> None:
        """This server is not live: its requests go to the next one."""
        if node not in self._live:
            return
        del self._live[node]
        self._servers[node].expires_at = math.inf
        self._follow(reason, outputs)
        for number, call in self._calls.items():
            if call.sent_to == node + 1:
                call.lose_attempt()
                self._ask(number, call, outputs, now)

    def _follow(self, reason: str, outputs: list[Output]) -> None:
        before, active = self._followed, self.active
        if before == active:
            return
        self._followed = active
        if active is None:
            assert before is not None
            outputs.append(Announce(ActiveLost(before, reason, len(self._calls))))
        else:
            self.counters.failovers += before is not None
            outputs.append(Announce(ActiveFound(active, 0)))

    def _forget_connections(self) -> None:
        self._servers = [_Server() for _ in self._nodes]
        self._live.clear()
        self._followed = None

    # --- requests -----------------------------------------------------------------------------------------

    def _ask(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        node = next(iter(self._live), None)
        if node is None:
            return
        self._note_sent(call, node)
        server = self._servers[node]
        server.unanswered_since = min(server.unanswered_since, now)
        outputs.append(Send(node, encode_controlled(number, call.body)))

    def _note_overdue(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        if call.sent_to and now - self._servers[call.node].unanswered_since >= self._ping_interval_s:
            self._lose(call.node, "silent", outputs, now)

    def _describe(self, node: int) -> str:
        is_mute = self._nodes[node].is_connected and node not in self._live
        return super()._describe(node) + (", does not answer PING" if is_mute else "")

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        due = min(min(server.ping_at, server.expires_at) for server in self._servers)
        due = min(due, self._deadlines.next_deadline())
        return None if due == math.inf else due

    def handle_timer(self, now: float) -> list[Output]:
        """Handle deadlines, servers that have gone silent, and PINGs that are due."""
        outputs = super().handle_timer(now)
        for node, server in enumerate(self._servers):
            if now >= server.expires_at:
                self._lose(node, "silent", outputs, now)
            if now >= server.ping_at:
                self._ping(node, outputs, now)
        return outputs
