"""Which connection brought a message, also when its descriptor has changed hands."""

from __future__ import annotations

from typing import cast

import zmq

from bstar.net.listener import Follower, Listener
from bstar.net.origins import Origins

DOMAIN = b"clients"


class Frame:
    """A frame with the properties of its connection."""

    def __init__(self, number: bytes, descriptor: int) -> None:
        properties = {"Connection": number[number.index(b"\0\0\0") + 4 :].decode(), "__fd": str(descriptor)}
        self.get = {**properties, "Peer-Address": "10.0.0.7"}.get


class Door:
    """A listener without a socket; what happens is heard when it catches up."""

    def __init__(self) -> None:
        self.follow: Follower
        self.unheard: list[tuple[int, int]] = []
        self.hung_up: list[int] = []

    def add_follower(self, follower: Follower) -> None:
        self.follow = follower

    def catch_up(self) -> None:
        while self.unheard:
            self.follow(*self.unheard.pop(0))

    def hang_up(self, descriptor: int) -> None:
        self.hung_up.append(descriptor)


class Hall:
    def __init__(self) -> None:
        self.door = Door()
        self.origins = Origins()
        self.ended: list[int] = []
        self.origins.follow(DOMAIN, cast("Listener", self.door), self.ended.append)

    def come(self, descriptor: int) -> Frame:
        """A connection is accepted and admitted; a frame that it sends."""
        self.door.unheard.append((zmq.EVENT_ACCEPTED, descriptor))
        return Frame(self.origins.number_next(DOMAIN), descriptor)

    def leave(self, descriptor: int) -> None:
        self.door.unheard.append((zmq.EVENT_DISCONNECTED, descriptor))

    def asked(self, frame: Frame) -> int:
        self.origins.frame = cast("zmq.Frame", frame)
        self.origins.domain = DOMAIN
        return self.origins.connection()


def test_each_connection_has_a_number_of_its_own() -> None:
    hall = Hall()
    first, second = hall.come(20), hall.come(21)
    assert [hall.asked(frame) for frame in (first, second, first)] == [1, 2, 1]
    assert hall.origins.address() == "10.0.0.7"
    hall.origins.hang_up(2)
    assert hall.door.hung_up == [21]


def test_the_end_of_a_connection_is_told_once() -> None:
    hall = Hall()
    first = hall.come(20)
    hall.asked(first)
    hall.leave(20)
    hall.door.catch_up()
    assert hall.ended == [1]
    assert hall.asked(first) == 0, "a message that was unread at its end"
    hall.origins.hang_up(1)
    assert not hall.door.hung_up


def test_a_message_of_a_connection_that_has_ended_is_not_taken_for_its_successors() -> None:
    hall = Hall()
    first = hall.come(20)
    hall.leave(20)
    second = hall.come(20)
    assert hall.asked(first) == 0
    assert hall.asked(second) == 2
    assert hall.asked(first) == 0
    hall.origins.hang_up(1)
    assert not hall.door.hung_up


def test_a_connection_whose_end_was_not_heard_yet_gives_its_descriptor_up() -> None:
    hall = Hall()
    first = hall.come(20)
    assert hall.asked(first) == 1
    hall.leave(20)
    second = hall.come(20)
    assert hall.asked(second) == 2
    assert hall.ended == [1]


def test_messages_that_came_by_no_socket_have_no_origin() -> None:
    origins = Origins()
    assert (origins.connection(), origins.address()) == (0, "an unknown address")


def test_the_same_descriptor_of_two_listeners_is_two_connections() -> None:
    hall, other = Hall(), Door()
    hall.origins.follow(b"front", cast("Listener", other), hall.ended.append)
    first = hall.come(20)
    other.unheard.append((zmq.EVENT_ACCEPTED, 20))
    second = Frame(hall.origins.number_next(b"front"), 20)
    assert hall.asked(first) == 1
    hall.origins.frame, hall.origins.domain = cast("zmq.Frame", second), b"front"
    assert hall.origins.connection() == 2
    hall.origins.hang_up(2)
    assert (hall.door.hung_up, other.hung_up) == ([], [20])


def test_a_listener_that_nobody_follows_gives_no_numbers() -> None:
    assert Hall().origins.number_next(b"state") == b""
