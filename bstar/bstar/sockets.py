"""Multipart messages in and out of a ZeroMQ socket, without blocking and without waste.

pyzmq's ``recv_multipart`` and ``send_multipart`` ask libzmq once more per frame whether there is another,
check every frame's type, and pass through two layers of Python. Reading ``Frame.more`` and calling the
backend's methods costs about half (``benchmarks/sockets.py`` shows the ratio on the machine at hand), and a
broker does nothing else.
"""

from collections.abc import Callable
from typing import cast

import zmq
from zmq.backend import Socket as _Backend

__all__ = ["is_readable", "receive", "receive_routed", "send"]

# Above this size handing the buffer over is cheaper than copying it; below, the bookkeeping costs more.
_COPY_BYTES_MAX = 65_536

_recv = _Backend.recv
_send = _Backend.send
_get = cast("Callable[[zmq.Socket[bytes], int], int]", _Backend.get)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
# As plain numbers: an operation on two of pyzmq's flags makes a third, which takes a microsecond.
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


def receive(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """The next message's frames; ``zmq.Again`` if there is none."""
    frame = _recv(socket, _NOBLOCK, False)
    frames = [frame.bytes]
    while frame.more:
        frame = _recv(socket, _NOBLOCK, False)
        frames.append(frame.bytes)
    return frames


def receive_routed(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """The same of a ROUTER, which puts the routing id before every message: that one has a successor."""
    frames = [_recv(socket, _NOBLOCK)]
    frame = _recv(socket, _NOBLOCK, False)
    frames.append(frame.bytes)
    while frame.more:
        frame = _recv(socket, _NOBLOCK, False)
        frames.append(frame.bytes)
    return frames


def send(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
    """Send one message whole or not at all.

    ``zmq.Again`` if the peer's pipe is full, ``zmq.ZMQError`` (EHOSTUNREACH) if a ROUTER with
    ROUTER_MANDATORY has no such peer. Either can only come with the first frame; libzmq then takes the rest.
    """
    for frame in frames[:-1]:
        if len(frame) < _COPY_BYTES_MAX:
            _send(socket, frame, _MORE)
        else:
            _send(socket, frame, _MORE, copy=False)
    frame = frames[-1]
    if len(frame) < _COPY_BYTES_MAX:
        _send(socket, frame, _NOBLOCK)
    else:
        _send(socket, frame, _NOBLOCK, copy=False)


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Is there a message to receive?"""
    return _get(socket, _EVENTS) & _POLLIN != 0
