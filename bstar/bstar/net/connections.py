"""Acts on the connections of a bound ZeroMQ socket for which libzmq has no call.

A socket's monitor reports the descriptors of the listener and of every connection. They belong to libzmq,
which closes them in its own threads. This module acts in the kernel: to libzmq it looks like an act of the
other side.
"""

import ctypes
import ipaddress
import socket as stdlib_socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import zmq

# Linux: attach a filter to a socket, and take it away (socket(7)).
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
# The counters of a socket's memory; the last one counts what was dropped (<linux/sock_diag.h>).
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")
# Classic BPF (<linux/bpf_common.h>, <linux/filter.h>): code, steps to jump if true and if false, number.
_STEP = struct.Struct("=HBBI")
_LOAD, _LOAD_OCTET, _AND, _JUMP, _IF_EQUAL = 0x20, 0x30, 0x54, 0x05, 0x15
# SKF_NET_OFF: offsets from this number on are within the IP header.
_IP = 0xFFF0_0000
# Return 0, which drops the packet, or more than any packet has.
_DROP = _STEP.pack(0x06, 0, 0, 0)
_TAKE = _STEP.pack(0x06, 0, 0, 0xFFFF_FFFF)
NETWORKS_MAX = 256
"""Networks that one listener can hold off. The filter compares each packet with all of them."""

Peer = tuple[str, int]


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


def hang_up(descriptor: int, place: int | str | None, peer: Peer | None = None) -> bool:
    """End the connection with this descriptor if it leads to ``place``, and from ``peer`` if that is given;
    libzmq then closes it. libzmq may have closed it before, and the number may belong to another file now.
    """
    try:
        # Without a duplicate: there may be no free descriptor.
        with _borrowed(descriptor) as connection:
            name = connection.getsockname()
            if (name[1] if isinstance(name, tuple) else name) != place:
                return False
            if peer is not None and connection.getpeername()[:2] != peer:
                return False
            connection.shutdown(stdlib_socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def peer_of(descriptor: int) -> Peer | None:
    """Where a TCP connection comes from: address and port. None if it is not TCP, or has ended."""
    try:
        with _borrowed(descriptor) as connection:
            name = connection.getpeername()
    except OSError:
        return None
    return name[:2] if isinstance(name, tuple) else None


def network_of(address: str) -> bytes | None:
    """The bytes by which an address is held off: an IPv4 address, or the first half of an IPv6 one, which
    one host has for itself. None if it is neither.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return found.packed[:8] if found.ipv4_mapped is None else found.ipv4_mapped.packed
    return found.packed


class ListenerFilter:
    """Lets the kernel drop requests for new connections to a listener: all of them, or those from networks.

    A client's kernel asks again after one second, then ever less often. It does nothing where the system
    cannot do it, and for a listener that is None. Those who want all held off do not know of each other:
    each has a name.
    """

    def __init__(self, listener: int | None) -> None:
        self._listener = listener if sys.platform == "linux" else None
        self._holders: set[str] = set()
        self._networks: frozenset[bytes] = frozenset()

    def hold_all(self, holder: str, *, is_held: bool) -> None:
        """Hold all off, or end that; the others' wishes stay."""
        before = bool(self._holders)
        (self._holders.add if is_held else self._holders.discard)(holder)
        if before is not bool(self._holders):
            self._apply()

    def hold(self, networks: frozenset[bytes]) -> None:
        """Hold these off (``network_of``), at most ``NETWORKS_MAX``, and no others."""
        assert len(networks) <= NETWORKS_MAX
        if networks != self._networks:
            self._networks = networks
            self._apply()

    def dropped(self) -> int:
        """How many requests for a connection the kernel has dropped here, for any reason."""
        if self._listener is None:
            return 0
        try:
            with _borrowed(self._listener) as socket:
                counts = socket.getsockopt(stdlib_socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
                return int(_MEMINFO.unpack(counts)[-1])
        except (OSError, struct.error):  # the listener is no socket of the internet
            return 0

    def _apply(self) -> None:
        if self._listener is None:
            return
        networks = sorted(self._networks)
        while not self._attach(_DROP if self._holders else _program(networks)) and networks:
            # The kernel has less room for steps (net.core.optmem_max); older kernels have 20,480 bytes.
            del networks[len(networks) // 2 :]

    def _attach(self, steps: bytes) -> bool:
        assert self._listener is not None
        try:
            with _borrowed(self._listener) as socket:
                if steps:
                    program = ctypes.create_string_buffer(steps, len(steps))
                    value = struct.pack("@HP", len(steps) // _STEP.size, ctypes.addressof(program))
                    socket.setsockopt(stdlib_socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
                else:
                    socket.setsockopt(stdlib_socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError:
            return False
        return True


def _program(networks: Iterable[bytes]) -> bytes:
    """Classic BPF: drop the packets that come from one of these."""
    narrow = [network for network in networks if len(network) == 4]
    wide = [network for network in networks if len(network) == 8]
    if not narrow and not wide:
        return b""
    of_4 = [_STEP.pack(_LOAD, 0, 0, _IP + 12)]
    for network in narrow:
        of_4 += [_STEP.pack(_IF_EQUAL, 0, 1, int.from_bytes(network, "big")), _DROP]
    of_4.append(_TAKE)
    of_6 = []
    for network in wide:
        high, low = (int.from_bytes(half, "big") for half in (network[:4], network[4:]))
        of_6 += [
            _STEP.pack(_LOAD, 0, 0, _IP + 8),
            _STEP.pack(_IF_EQUAL, 0, 3, high),
            _STEP.pack(_LOAD, 0, 0, _IP + 12),
            _STEP.pack(_IF_EQUAL, 0, 1, low),
            _DROP,
        ]
    of_6.append(_TAKE)
    version = [
        _STEP.pack(_LOAD_OCTET, 0, 0, _IP),
        _STEP.pack(_AND, 0, 0, 0xF0),
        _STEP.pack(_IF_EQUAL, 1, 0, 0x60),
        _STEP.pack(_JUMP, 0, 0, len(of_6)),
    ]
    return b"".join((*version, *of_6, *of_4))


@contextmanager
def _borrowed(descriptor: int) -> Iterator[stdlib_socket.socket]:
    """The socket of a descriptor that stays libzmq's."""
    socket = stdlib_socket.socket(fileno=descriptor)
    try:
        yield socket
    finally:
        socket.detach()
