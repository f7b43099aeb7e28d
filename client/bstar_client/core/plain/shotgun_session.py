"""Freelance model 2: each request goes to every server at once, and the first reply wins (zguide chapter 4).

    request [""] [sequence] [body…]        reply [""] [sequence] [body…]

A server that connects while a request has no reply gets its copy then. So a request that found no server
reaches the first one that comes, and a server that was restarted is asked. FL2-C-01..03.
"""

from bstar.errors import RemoteProtocolError
from bstar.wire.brokerless import decode_numbered, encode_numbered
from bstar_client.core.calls import Call
from bstar_client.core.events import Connected
from bstar_client.core.outputs import Announce, Output, Send
from bstar_client.core.plain.numbered_session import NumberedSession


class ShotgunSession(NumberedSession):
    """One client that asks all of its servers. See ``ClientCore``."""

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a server is up: send it what has no reply."""
        self._nodes[node].connect()
        outputs: list[Output] = [Announce(Connected(self._nodes[node].endpoint))]
        for number, call in self._calls.items():
            self._send(number, call, node, outputs)
        return outputs

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
        """The connection to a server broke, or an attempt to connect failed."""
        return self._nodes[node].disconnect(is_untrusted=is_untrusted)

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a server. If it answers no request, it is counted and ignored."""
        outputs: list[Output] = []
        try:
            number, body = decode_numbered(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
        else:
            self._answer(node, number, body, outputs, now)
        return outputs

    def _ask(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        for node, server in enumerate(self._nodes):
            if server.is_connected:
                self._send(number, call, node, outputs)

    def _forget_connections(self) -> None:
        """Nothing but the nodes knows of connections."""

    def _note_overdue(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        """Nothing: all servers had the request."""

    def _send(self, number: bytes, call: Call, node: int, outputs: list[Output]) -> None:
        self._note_sent(call, node)
        outputs.append(Send(node, encode_numbered(number, call.body)))
