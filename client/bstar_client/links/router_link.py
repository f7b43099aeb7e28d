"""A link over a ROUTER, as 10/FLP wants it: the server is addressed by its identity.

The server's identity is the endpoint that the client connects to, byte for byte. A server with another one
cannot be addressed (PROTOCOLS 10.3): what is sent to it goes nowhere, and the link logs it once. The client
itself sets no identity (FLP-C-01), so each connection has a new one of libzmq's own.

A server may end right after its last reply. ``ZMQ_IMMEDIATE`` would drop that reply if the program is slower
than libzmq's thread. A ROUTER needs the option for nothing: it refuses a server that has no connection yet.
"""

import logging

import zmq

from bstar_client.links.link import Link

_log = logging.getLogger("bstar_client")


class RouterLink(Link):
    """A ROUTER that talks to one server."""

    _is_immediate = False
    _is_addressable = True

    def _new_socket(self) -> "zmq.Socket[bytes]":
        socket = self._socket_of(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # The next connection to the server has the same identity as the one that broke.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        return socket

    def _name(self, socket: "zmq.Socket[bytes]") -> None:
        """Nothing: a client sets no identity."""

    def _try_send(self, socket: "zmq.Socket[bytes]", frames: list[bytes]) -> bool:
        addressed = [self.endpoint.encode(), *frames]
        try:
            if not super()._try_send(socket, addressed):
                return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._note_unreachable(socket, addressed)
        return True

    def _note_unreachable(self, socket: "zmq.Socket[bytes]", addressed: list[bytes]) -> None:
        # libzmq notices a new connection when the program asks for the socket's events.
        socket.getsockopt(zmq.EVENTS)
        try:
            super()._try_send(socket, addressed)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if self._is_up and self._is_addressable:
                self._is_addressable = False
                _log.warning(
                    "%s: the server there has another identity; its public endpoint must be these bytes",
                    self.endpoint,
                )

    def receive(self, limit: int, *, is_ready: bool) -> list[list[bytes]]:
        """The messages that have arrived, without the server's identity."""
        return [frames[1:] for frames in super().receive(limit, is_ready=is_ready)]
