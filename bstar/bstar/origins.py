"""Tells which connection brought a message.

Only a message tells whose a connection is (its user id) and which descriptor it has (SRCFD). Messages of a
connection that has ended may still be unread when another one gets the descriptor. So ZAP gives each
connection a number as well. A connection was accepted before it got its number; so a descriptor that was
accepted after number n had been given belongs to no connection with a number up to n.
"""

from collections.abc import Callable
from typing import cast

import zmq

from bstar.listener import Listener
from bstar.printable import address_text

DESCRIPTOR = "__fd"
"""The property of a message that names its connection's descriptor (SRCFD)."""
_NUMBER = "Connection"
_ADDRESS = "Peer-Address"


class Origins:
    """The connections of one listener by number, once ``follow`` names the listener."""

    def __init__(self) -> None:
        self.frame: zmq.Frame | None = None
        """A frame of the message in hand; its owner sets it."""
        self._listener: Listener | None = None
        self._on_ended: Callable[[int], object] = lambda number: None
        self._given = 0
        # By descriptor: the last number that had been given when it was accepted.
        self._accepted_after: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def follow(self, listener: Listener, on_ended: Callable[[int], object]) -> None:
        """Its connections are meant. ``on_ended(number)``: one that ``connection`` named has ended."""
        self._listener = listener
        self._on_ended = on_ended
        listener.add_follower(self._follow)

    def number_next(self) -> bytes:
        """A number for a connection that ZAP admits, as the metadata of its reply (27/ZAP, 23/ZMTP)."""
        if self._listener is not None:
            self._listener.catch_up()
        self._given += 1
        text = b"%d" % self._given
        return bytes([len(_NUMBER)]) + _NUMBER.encode() + len(text).to_bytes(4, "big") + text

    def connection(self) -> int:
        """The number of the connection that brought the message in hand; 0 if it has ended."""
        number = int(self._get(_NUMBER) or 0)
        if number in self._descriptors:
            return number
        descriptor = int(self._get(DESCRIPTOR) or -1)
        if descriptor not in self._accepted_after and self._listener is not None:
            self._listener.catch_up()
        if number <= self._accepted_after.get(descriptor, number):
            return 0
        self._descriptors[number] = descriptor
        self._numbers[descriptor] = number
        return number

    def address(self) -> str:
        """Where that connection comes from."""
        return address_text(self._get(_ADDRESS) or "an unknown address")

    def hang_up(self, number: int) -> None:
        """End this connection; the other side may connect again."""
        if self._listener is not None and number in self._descriptors:
            self._listener.hang_up(self._descriptors[number])

    def _get(self, name: str) -> str | None:
        if self.frame is None:
            return None
        try:
            return cast("str", self.frame.get(name))
        except zmq.ZMQError:
            return None

    def _follow(self, event: int, descriptor: int) -> None:
        number = self._numbers.pop(descriptor, None)
        if number is not None:
            del self._descriptors[number]
            self._on_ended(number)
        if event == zmq.EVENT_ACCEPTED:
            self._accepted_after[descriptor] = self._given
        else:
            self._accepted_after.pop(descriptor, None)
