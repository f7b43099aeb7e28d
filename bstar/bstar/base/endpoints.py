"""Addresses in a configuration: which are valid, which are loopback, which collide.

Names are not looked up here: a configuration must read the same on every machine.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

# A Unix socket's path has 108 bytes on Linux and 104 elsewhere, the closing zero included.
_IPC_PATH_BYTES_MAX = 103

# Of a name in the domain name system (RFC 1035); Python's resolver raises no OSError for a longer one.
_LABEL_CHARS_MAX = 63

_TCP = re.compile(r"\A(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_.-]+|\*)):(?P<port>[0-9]{1,5})\Z")


class Endpoint(msgspec.Struct, frozen=True):
    """``host`` and ``port`` of a TCP endpoint, or the path of an ``ipc`` one as ``host`` with port 0."""

    transport: str
    host: str
    port: int

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The numeric address, None for a name, an interface, ``*`` or a path."""
        try:
            return ip_address(self.host) if self.transport == "tcp" else None
        except ValueError:
            return None

    @property
    def unix_path(self) -> str:
        """The path as the system takes it: libzmq writes Linux's abstract names with @."""
        return "\0" + self.host[1:] if self.host.startswith("@") else self.host

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it. If that is uncertain, False."""
        if self.transport == "ipc" or self.host in ("localhost", "lo"):
            return True
        return self.address is not None and self.address.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """True if it means every address of the machine."""
        return self.host == "*" or (self.address is not None and self.address.is_unspecified)

    def collides(self, other: "Endpoint") -> bool:
        """True if two processes (or sockets) of one machine cannot both bind them."""
        if self.transport != other.transport:
            return False
        if self.transport == "ipc":
            return self.host == other.host
        if self.port != other.port or self.port == 0:
            return False
        return self.is_wildcard or other.is_wildcard or _same_host(self, other)

    def may_lead_to(self, bound: "Endpoint") -> bool:
        """True if a connection to it may reach ``bound``, without a look-up of names."""
        if self.transport != bound.transport or self.port != bound.port:
            return False
        if self.transport == "ipc":
            return self.host == bound.host
        if self.address is None or (bound.address is None and not bound.is_loopback):
            return True  # a name or an interface: only a look-up shows it
        return bound.is_wildcard or _same_host(self, bound)


def _same_host(one: Endpoint, other: Endpoint) -> bool:
    if one.address is not None and other.address is not None:
        return one.address == other.address
    named_loopback = {"localhost", "lo", "127.0.0.1", "::1"}
    return one.host == other.host or {one.host, other.host} <= named_loopback


def parse_endpoint(text: str, *, bind: bool) -> Endpoint:
    """``tcp://ADDRESS:PORT`` or ``ipc://PATH``. Raises ValueError saying what is wrong with it."""
    transport, separator, rest = text.partition("://")
    if not separator or transport not in ("tcp", "ipc"):
        raise ValueError(f"{text!r} is not an endpoint: write tcp://ADDRESS:PORT or ipc://PATH")
    if transport == "ipc":
        if not rest or "\0" in rest or len(rest.encode()) > _IPC_PATH_BYTES_MAX:
            raise ValueError(f"{text!r} needs a path of at most {_IPC_PATH_BYTES_MAX} bytes after ipc://")
        return Endpoint("ipc", rest, 0)
    endpoint = _parse_tcp(text, rest)
    if endpoint.port == 0:
        raise ValueError(f"{text!r} needs a port from 1 to 65535: the other side has to know it")
    if not bind and endpoint.is_wildcard:
        raise ValueError(f"{text!r} cannot be connected to: name the other machine instead of every address")
    return endpoint


def parse_http_bind(text: str) -> Endpoint:
    """``ADDRESS:PORT``; port 0 stands for any free one. Raises ValueError saying what is wrong with it."""
    return _parse_tcp(text, text)


def _parse_tcp(text: str, rest: str) -> Endpoint:
    match = _TCP.match(rest)
    if match is None:
        raise ValueError(f"{text!r} is not ADDRESS:PORT (an IPv6 address stands in brackets)")
    host = match["host"]
    if match["v6"] is not None:
        try:
            host = str(IPv6Address(match["v6"]))
        except ValueError:
            raise ValueError(f"{text!r}: {match['v6']!r} is no IPv6 address") from None
    elif re.fullmatch(r"[0-9.]+", host):
        try:
            host = str(IPv4Address(host))
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is no IPv4 address") from None
    elif not all(0 < len(label) <= _LABEL_CHARS_MAX for label in host.removesuffix(".").split(".")):
        raise ValueError(f"{text!r}: {host!r} is no name of a host")
    port = int(match["port"])
    if port > 65_535:
        raise ValueError(f"{text!r}: a port is at most 65535")
    return Endpoint("tcp", host, port)
