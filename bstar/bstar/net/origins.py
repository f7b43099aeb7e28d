"""Tells which connection brought a message.

Only a message tells whose a connection is (its user id) and which descriptor it has (SRCFD). Messages of a
connection that has ended may still be unread when another one gets the descriptor. So ZAP gives each
connection a number as well. A connection was accepted before it got its number; so a descriptor that was
accepted after number n had been given belongs to no connection with a number up to n.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import zmq

from bstar.base.printable import address_text
from bstar.net.listener import Listener

DESCRIPTOR = "__fd"
"""The property of a message that names its connection's descriptor (SRCFD)."""
_NUMBER = "Connection"
_ADDRESS = "Peer-Address"


class _Door:
    """The connections of one listener."""

    def __init__(self, listener: Listener, on_ended: Callable[[int], object]) -> None:
        self.listener = listener
        self.on_ended = on_ended
        # By descriptor: the last number that had been given when it was accepted.
        self.accepted_after: dict[int, int] = {}
        self.descriptors: dict[int, int] = {}
        self.numbers: dict[int, int] = {}


class Origins:
    """The connections, by number, of the listeners that ``follow`` names."""

    def __init__(self) -> None:
        self.frame: zmq.Frame | None = None
        """A frame of the message in hand, and the domain of its listener; their owner sets both."""
        self.domain = b""
        self._given = 0
        self._doors: dict[bytes, _Door] = {}

    def follow(self, domain: bytes, listener: Listener, on_ended: Callable[[int], object]) -> None:
        """Its connections are of ``domain``. ``on_ended(number)``: one that ``connection`` named is over."""
        door = self._doors[domain] = _Door(listener, on_ended)
        listener.add_follower(partial(self._follow, door))

    def number_next(self, domain: bytes) -> bytes:
        """A number for a connection that ZAP admits there, as the metadata of its reply (27/ZAP, 23/ZMTP).

        None for a connection of a listener that is not followed.
        """
        if domain not in self._doors:
            return b""
        self._doors[domain].listener.catch_up()
        self._given += 1
        text = b"%d" % self._given
        return bytes([len(_NUMBER)]) + _NUMBER.encode() + len(text).to_bytes(4, "big") + text

    def connection(self) -> int:
        """The number of the connection that brought the message in hand; 0 if it has ended."""
        number, door = int(self._get(_NUMBER) or 0), self._doors.get(self.domain)
        if door is None:
            return 0
        if number in door.descriptors:
            return number
        descriptor = int(self._get(DESCRIPTOR) or -1)
        if descriptor not in door.accepted_after:
            door.listener.catch_up()
        if number <= door.accepted_after.get(descriptor, number):
            return 0
        door.descriptors[number] = descriptor
        door.numbers[descriptor] = number
        return number

    def address(self) -> str:
        """Where that connection comes from."""
        return address_text(self._get(_ADDRESS) or "an unknown address")

    def hang_up(self, number: int) -> None:
        """End this connection; the other side may connect again."""
        for door in self._doors.values():
            if number in door.descriptors:
                door.listener.hang_up(door.descriptors[number])

    def _get(self, name: str) -> str | None:
        if self.frame is None:
            return None
        try:
            return cast("str", self.frame.get(name))
        except zmq.ZMQError:
            return None

    def _follow(self, door: _Door, event: int, descriptor: int) -> None:
        number = door.numbers.pop(descriptor, None)
        if number is not None:
            del door.descriptors[number]
            door.on_ended(number)
        if event == zmq.EVENT_ACCEPTED:
            door.accepted_after[descriptor] = self._given
        else:
            door.accepted_after.pop(descriptor, None)
