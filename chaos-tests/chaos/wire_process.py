"""The process that is the wire: ``python -m chaos.wire_process FD``, started by ``chaos.wire``.

It opens a TUN interface in each namespace, reads the packets of all of them and writes each where and when
``chaos.channel`` says. FD is a socket to whoever started it: a line of JSON for each ``Command``, answered
with a line. At the end of that socket it ends, and the interfaces vanish with it.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec

from chaos.channel import Counts, Quality, Switch
from chaos.netns import enter

INTERFACE = "wire0"

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES_MAX = 65536
# Read at most so many packets of one host before the others have their turn.
_BURST = 64
# A wire has no share in the CPU of the hosts: under load it must not be what is late.
_PRIORITY = -15


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first command: name of each host, its namespace's file and its address."""

    hosts: dict[str, tuple[str, str]]
    seed: int


class Set(msgspec.Struct, frozen=True, tag=True):
    """From now on these channels, (source, destination, quality), are like this."""

    qualities: list[tuple[str, str, Quality]]


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Tell what you have done so far."""


Command = Join | Set | Ask


class ChannelCounts(msgspec.Struct, frozen=True):
    """What one channel has done."""

    source: str
    to: str
    counts: Counts


class Answer(msgspec.Struct, frozen=True):
    """What the wire has done so far. It answers every command, after the command is in force."""

    channels: list[ChannelCounts] = []
    foreign: int = 0
    busy_s: float = 0.0
    """How long it was at work; with the sum of what was received, its throughput."""
    late_s_max: float = 0.0
    """By how much a packet left later than it was due, at worst."""


class _Wire:
    def __init__(self, join: Join) -> None:
        self._files = {name: _open_tun(Path(namespace)) for name, (namespace, _) in join.hosts.items()}
        self.files = {file: name for name, file in self._files.items()}
        addresses = {name: socket.inet_aton(address) for name, (_, address) in join.hosts.items()}
        self.switch = Switch(addresses, seed=join.seed)
        self.busy_s = 0.0
        self.late_s_max = 0.0

    def timeout(self) -> float | None:
        deadline = self.switch.next_deadline()
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def turn(self, readable: list[int]) -> None:
        """Read what hosts have sent, and write what is due."""
        began = time.monotonic()
        for file in readable:
            self._read(file)
        now = time.monotonic()
        deadline = self.switch.next_deadline()
        if deadline is not None:
            self.late_s_max = max(self.late_s_max, now - deadline)
        for to, packet in self.switch.take_due(now):
            os.write(self._files[to], packet)
        self.busy_s += time.monotonic() - began

    def _read(self, file: int) -> None:
        source = self.files[file]
        for _ in range(_BURST):
            try:
                packet = os.read(file, _PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            self.switch.receive(source, packet, time.monotonic())

    def answer(self) -> Answer:
        channels = [ChannelCounts(*pair, counts) for pair, counts in self.switch.counts().items()]
        return Answer(channels, self.switch.foreign, self.busy_s, self.late_s_max)


def _open_tun(namespace: Path) -> int:
    """A TUN interface lives where its file was opened, so this process visits each namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI))
        enter(Path(f"/proc/self/fd/{home}"))
    finally:
        os.close(home)
    return file


def main(arguments: list[str]) -> int:
    """Be the wire until nobody holds the other end of the control socket."""
    with socket.socket(fileno=int(arguments[0])) as control, control.makefile("rb", 0) as lines:
        decode = msgspec.json.Decoder(Command).decode
        encode = msgspec.json.Encoder().encode
        join = decode(lines.readline())
        assert isinstance(join, Join)
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
        wire = _Wire(join)
        control.sendall(encode(wire.answer()) + b"\n")
        watched = [control.fileno(), *wire.files]
        while True:
            readable, _, _ = select.select(watched, [], [], wire.timeout())
            if control.fileno() in readable:
                line = lines.readline()
                if not line:
                    return 0
                command = decode(line)
                if isinstance(command, Set):
                    for source, to, quality in command.qualities:
                        wire.switch.set_quality(source, to, quality)
                control.sendall(encode(wire.answer()) + b"\n")
                readable.remove(control.fileno())
            wire.turn(readable)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
