"""When a connection is dead: decided without sockets, and of a connection of this machine."""

from __future__ import annotations

import errno
import os
import socket
from unittest.mock import Mock

import pytest
import zmq

from bstar_broker.bounds.connections import LIMIT_S, Acknowledgements, Connections


def looks(*, heard: bool, unacked: int = 1, retransmits: int = 3, idle_s: float = 0.0) -> list[bool]:
    """Look once a second, long enough. ``heard``: an acknowledgement came before each look."""
    it = Acknowledgements()
    seconds = range(1, int(LIMIT_S) + 5)
    return [
        it.is_dead(retransmits, unacked, 0.3 if heard else idle_s + second, 1_000.0 + second)
        for second in seconds
    ]


def test_a_connection_that_sends_again_and_hears_nothing_is_dead_after_the_limit() -> None:
    answers = looks(heard=False)
    assert answers.index(True) == LIMIT_S


def test_a_silent_connection_has_the_limit_from_when_something_is_sent() -> None:
    assert looks(heard=False, idle_s=3_600.0) == looks(heard=False)


def test_a_connection_that_acknowledges_is_alive() -> None:
    assert not any(looks(heard=True))


def test_a_connection_with_a_closed_window_is_alive() -> None:
    # The kernel probes it, and nothing that was sent is unacknowledged.
    assert not any(looks(heard=False, unacked=0, retransmits=0))


def test_a_first_transmission_is_no_sign() -> None:
    assert not any(looks(heard=False, retransmits=0))


def test_an_acknowledgement_in_between_gives_the_whole_limit_again() -> None:
    it = Acknowledgements()
    assert not it.is_dead(1, 1, 5.0, 100.0)
    assert not it.is_dead(1, 1, 0.5, 100.0 + LIMIT_S - 1)
    assert not it.is_dead(1, 1, LIMIT_S - 1, 100.0 + 2 * LIMIT_S - 3)
    assert it.is_dead(1, 1, LIMIT_S, 100.0 + 2 * LIMIT_S - 1)


@pytest.mark.loopback
def test_a_connection_is_looked_at_again_after_a_shortage_of_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reactor = Mock()
    looked = Connections(reactor)
    look = reactor.add_timer.call_args.args[1]
    monkeypatch.setattr(Acknowledgements, "is_dead", lambda *_: True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            looked.follow(zmq.EVENT_ACCEPTED, accepted.fileno())
            with monkeypatch.context() as short:
                short.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
                look(1.0)
            look(2.0)
    assert looked.hang_ups == 1
