"""Acts on the connections of a bound ZeroMQ socket for which libzmq has no call.

A socket's monitor reports the descriptors of the listener and of every connection. They belong to libzmq,
which closes them in its own threads. This module acts in the kernel. To libzmq it looks as if the other side
had done it.
"""

import ctypes
import socket as stdlib_socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

# Linux: attach a filter to a socket, and take it away (socket(7)).
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
# Classic BPF: return 0, which drops the packet.
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)


def place_of(socket: "zmq.Socket[bytes]") -> int | str | None:
    """The socket's last bound address as its connections name it: the port, or the path."""
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    scheme, _, address = endpoint.rstrip(b"\0").decode().partition("://")
    match scheme:
        case "tcp":
            return int(address.rpartition(":")[2])
        case "ipc":
            return address
        case _:
            return None


def watch(socket: "zmq.Socket[bytes]", events: int) -> "zmq.Socket[bytes]":
    """The monitor of an unbound socket. Its queue has no bound, or libzmq's threads would wait."""
    address = f"inproc://bstar.watch-{id(socket)}"
    socket.monitor(address, events)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.rcvhwm = 0
    monitor.linger = 0
    monitor.connect(address)
    return monitor


def close_watched(socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes] | None") -> None:
    """Close a socket, and its monitor if it has one."""
    if monitor is not None:
        socket.disable_monitor()
        monitor.close(0)
    socket.close(0)


def hang_up(descriptor: int, place: int | str | None) -> bool:
    """End the connection with this descriptor if it leads to ``place``; libzmq then closes it. libzmq may
    have closed it before, and the number may belong to another file now.
    """
    try:
        with _borrowed(descriptor) as connection:
            name = connection.getsockname()
            if (name[1] if isinstance(name, tuple) else name) != place:
                return False
            connection.shutdown(stdlib_socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def hold_off(listener: int, *, is_held: bool) -> bool:
    """Let the kernel drop requests for new connections to this listener, or stop that. A client's kernel asks
    again after one second, then ever less often. False if the system cannot do it.
    """
    if sys.platform != "linux":
        return False
    try:
        with _borrowed(listener) as socket:
            if is_held:
                program = ctypes.create_string_buffer(_DROP)
                value = struct.pack("@HP", 1, ctypes.addressof(program))
                socket.setsockopt(stdlib_socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
            else:
                socket.setsockopt(stdlib_socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError:
        return False
    return True


@contextmanager
def _borrowed(descriptor: int) -> Iterator[stdlib_socket.socket]:
    """The socket of a descriptor that stays libzmq's."""
    socket = stdlib_socket.socket(fileno=descriptor)
    try:
        yield socket
    finally:
        socket.detach()
