"""Options of ZeroMQ sockets, and multipart messages in and out, without blocking and without waste.

pyzmq's ``recv_multipart`` and ``send_multipart`` ask libzmq once more per frame whether there is another,
check every frame's type, and pass through two layers of Python. Reading ``Frame.more`` and calling the
backend's methods costs about half (``benchmarks/sockets.py`` shows the ratio on the machine at hand), and a
broker does nothing else.
"""

import ctypes
import os
import struct
from collections.abc import Callable
from typing import cast

import zmq
from zmq.backend import Socket as _Backend

from bstar.wire.limits import BATCH_BYTES_MAX

# Above this size handing the buffer over is cheaper than copying it; below, the bookkeeping costs more.
_COPY_BYTES_MAX = 65_536

# From this size on ``receive_bodies`` copies nothing. To copy 64 MiB takes 35 ms of CPU time, most of it for
# fresh pages, and was seen to take 0.2 s while other processes wanted the memory as well. It is above the
# bound of a batch, so only bodies are ever so large in a message that is read at all.
VIEW_BYTES_MIN = BATCH_BYTES_MAX + 1

_recv = _Backend.recv
_send = _Backend.send
_get = cast("Callable[[zmq.Socket[bytes], int], int]", _Backend.get)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
# Plain numbers: an operation on pyzmq's flags makes a new flag, which takes a microsecond.
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
# The first frame of a monitor's message: the event and its value, of 16 and 32 bits.
_EVENT = struct.Struct("=Hi")


def reconnect_interval_ms(heartbeat_ms: int) -> int:
    """The pause before connecting again, or up to twice this, by chance. It does not grow with the attempts.

    A node that waits for its peer's answer votes after the failover timeout, connected or not. A peer that is
    about to end stays for a second and a half to be heard (``bstar.pair``).
    """
    return min(max(10, heartbeat_ms // 2), 500)


def set_up_link(socket: "zmq.Socket[bytes]", heartbeat_ms: int, timeout_ms: int) -> None:
    """Options of a socket that connects to another voter of the pair; the times are the pair's.

    It comes back fast and notices a connection that is only half there: libzmq's defaults need minutes for
    both.
    """
    socket.linger = 0
    socket.ipv6 = True
    socket.reconnect_ivl = reconnect_interval_ms(heartbeat_ms)
    socket.handshake_ivl = 1_000
    socket.connect_timeout = max(200, timeout_ms)
    socket.heartbeat_ivl = max(100, timeout_ms)
    socket.heartbeat_timeout = max(1_000, 3 * timeout_ms)


def new_router(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    """A ROUTER with unguessable routing ids.

    libzmq counts them up from a number of C's ``rand``, which it does not seed: all processes begin with the
    same one. If a connection claims the next of them, libzmq 4.3.5 aborts the process at the connection that
    is to get it.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))
    return context.socket(zmq.ROUTER)


def set_up_listener(socket: "zmq.Socket[bytes]") -> None:
    """Options of a socket that many connect to: one that says nothing, or whose host is gone, is closed."""
    socket.ipv6 = True
    # More than clients wait, or a storm of handshakes on a busy machine would end none.
    socket.handshake_ivl = 5_000
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = 10
    socket.tcp_keepalive_intvl = 5
    socket.tcp_keepalive_cnt = 3


def receive(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """The next message's frames; ``zmq.Again`` if no message waits."""
    frame = _recv(socket, _NOBLOCK, False)
    frames = [frame.bytes]
    while frame.more:
        frame = _recv(socket, _NOBLOCK, False)
        frames.append(frame.bytes)
    return frames


def receive_routed(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """The next message of a ROUTER, which puts the routing id first: it has two frames at least."""
    frames = [_recv(socket, _NOBLOCK)]
    frame = _recv(socket, _NOBLOCK, False)
    frames.append(frame.bytes)
    while frame.more:
        frame = _recv(socket, _NOBLOCK, False)
        frames.append(frame.bytes)
    return frames


def receive_bodies(
    socket: "zmq.Socket[bytes]", look: Callable[[zmq.Frame], None] | None = None
) -> list[bytes]:
    """As ``receive_routed``, but a frame of ``VIEW_BYTES_MIN`` bytes or more is a read-only memoryview.

    It is the memory that libzmq filled. A view compares, slices and is sent like bytes; for anything else use
    ``bytes(frame)``. ``NoMemoryError`` if a frame could not be copied; the rest of the message is read then,
    too. ``look`` gets the first frame after the routing id, whose properties tell of the connection.
    """
    frames = [_recv(socket, _NOBLOCK)]
    try:
        frame = _recv(socket, _NOBLOCK, False)
        if look is not None:
            look(frame)
        while True:
            frames.append(frame.bytes if len(frame) < VIEW_BYTES_MIN else _view(frame))
            if not frame.more:
                return frames
            frame = _recv(socket, _NOBLOCK, False)
    except MemoryError:
        while socket.get(zmq.RCVMORE):
            _recv(socket, _NOBLOCK, False)
        raise NoMemoryError(frames) from None


class NoMemoryError(MemoryError):
    """A message could not be read whole; ``frames`` are those before the one without memory."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__("no memory for a message")
        self.frames = frames


def _view(frame: zmq.Frame) -> bytes:
    return cast("bytes", frame.buffer.toreadonly())


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


def receive_event(monitor: "zmq.Socket[bytes]") -> tuple[int, int]:
    """The next event of a socket's monitor and its value; ``zmq.Again`` if no event waits.

    pyzmq's ``recv_monitor_message`` loads asyncio, which takes 7 MiB and 30 ms.
    """
    event, value = _EVENT.unpack(receive(monitor)[0])
    return event, value


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """True if there is a message to receive."""
    return _get(socket, _EVENTS) & _POLLIN != 0
