"""A wire between hosts in namespaces that can be made as bad as a test wants, for each ordered pair of hosts.

    with wire.loss("primary", "backup", percent=20):  # both directions
    with wire.delay(None, "backup", ms=50, one_way=True):  # whatever anybody sends to the backup
    with wire.partition({"primary"}, {"backup", "client1"}):

Each interface is a TUN device, and one process (``chaos.wire_process``) carries every packet between them. So
it needs nothing of the kernel but TUN; netem, which does the same in the kernel, is missing in many of them.
A fault is in force for packets sent after its ``with`` block has begun, and gone when that has ended. Faults
add up.

It does not route to anything outside, carries IPv4 only, and has no bandwidth of its own to offer beyond what
one Python process moves (``throughput`` says how much that is).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import msgspec

from bstar_testing.processes import environment
from chaos.channel import Counts, Quality
from chaos.netns import NetnsHost
from chaos.wire_process import INTERFACE, Answer, Ask, Command, Join, Set

Hosts = str | Collection[str] | None
"""A host, several, or all of them."""

# It ends a hang; nothing is measured by it.
_ANSWER_S_MAX = 20.0
_PREFIX_BITS = 24
_QUEUE_PACKETS = 1000


class WireError(Exception):
    """The wire does not do as it is told, or has ended."""


class Wire:
    """Joins hosts as soon as it is made. Any thread may command it."""

    def __init__(self, hosts: Mapping[str, NetnsHost], *, seed: int = 0) -> None:
        self.seed = seed
        self._names = tuple(hosts)
        self._faults: list[tuple[frozenset[tuple[str, str]], Quality]] = []
        self._lock = threading.RLock()
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "chaos.wire_process", str(its.fileno())),
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment(),
                start_new_session=True,
            )
        self._control = ours
        self._control.settimeout(_ANSWER_S_MAX)
        self._lines = ours.makefile("rb")
        try:
            self._tell(Join({n: (str(h.namespace.path), h.address) for n, h in hosts.items()}, seed))
            for host in hosts.values():
                host.namespace.ip("address", "add", f"{host.address}/{_PREFIX_BITS}", "dev", INTERFACE)
                host.namespace.ip("link", "set", INTERFACE, "txqueuelen", str(_QUEUE_PACKETS), "up")
        except BaseException:
            self.close()
            raise

    # --- faults -------------------------------------------------------------------------------------------

    @contextmanager
    def loss(
        self, a: Hosts = None, b: Hosts = None, *, percent: float, one_way: bool = False
    ) -> Iterator[None]:
        """Each packet is lost with this chance. ``one_way``: only what goes from ``a`` to ``b``."""
        with self.quality(a, b, Quality(loss_percent=percent), one_way=one_way):
            yield

    @contextmanager
    def duplicate(
        self, a: Hosts = None, b: Hosts = None, *, percent: float, one_way: bool = False
    ) -> Iterator[None]:
        """Each packet comes twice with this chance."""
        with self.quality(a, b, Quality(duplicate_percent=percent), one_way=one_way):
            yield

    @contextmanager
    def reorder(
        self,
        a: Hosts = None,
        b: Hosts = None,
        *,
        percent: float,
        hold_ms: float = 20.0,
        one_way: bool = False,
    ) -> Iterator[None]:
        """Each packet is held back with this chance, so that those sent within ``hold_ms`` overtake it."""
        with self.quality(a, b, Quality(reorder_percent=percent, hold_ms=hold_ms), one_way=one_way):
            yield

    @contextmanager
    def delay(
        self, a: Hosts = None, b: Hosts = None, *, ms: float, jitter_ms: float = 0.0, one_way: bool = False
    ) -> Iterator[None]:
        """Each packet takes ``ms`` ± ``jitter_ms`` longer, in each direction. Order is kept."""
        with self.quality(a, b, Quality(delay_ms=ms, jitter_ms=jitter_ms), one_way=one_way):
            yield

    @contextmanager
    def rate(
        self, a: Hosts = None, b: Hosts = None, *, kbit_s: float, one_way: bool = False
    ) -> Iterator[None]:
        """At most so many bits a second for each ordered pair of hosts."""
        with self.quality(a, b, Quality(rate_kbit_s=kbit_s), one_way=one_way):
            yield

    @contextmanager
    def partition(self, a: Hosts, b: Hosts = None, *, one_way: bool = False) -> Iterator[None]:
        """Nothing comes from ``a`` to ``b`` (nor back, unless ``one_way``), and nobody is told."""
        with self.quality(a, b, Quality(is_cut=True), one_way=one_way):
            yield

    @contextmanager
    def quality(self, a: Hosts, b: Hosts, quality: Quality, *, one_way: bool = False) -> Iterator[None]:
        """Any of it together, on top of what is in force. ``None``: all hosts not on the other side."""
        fault = (self._channels(a, b, one_way=one_way), quality)
        with self._lock:
            self._faults.append(fault)
            self._apply(fault[0])
        try:
            yield
        finally:
            with self._lock:
                self._faults = [each for each in self._faults if each is not fault]
                self._apply(fault[0])

    def _channels(self, a: Hosts, b: Hosts, *, one_way: bool) -> frozenset[tuple[str, str]]:
        def names(hosts: Hosts) -> set[str]:
            return {hosts} if isinstance(hosts, str) else set(hosts or ())

        everyone, sources, targets = set(self._names), names(a), names(b)
        if unknown := (sources | targets) - everyone:
            raise ValueError(f"not on this wire: {', '.join(sorted(unknown))}")
        sources, targets = sources or everyone - targets, targets or everyone - sources
        if not sources or not targets:
            sources = targets = everyone
        there = {(source, to) for source in sources for to in targets if source != to}
        return frozenset(there if one_way else there | {(to, source) for source, to in there})

    def _apply(self, channels: Collection[tuple[str, str]]) -> None:
        qualities = []
        for source, to in channels:
            quality = Quality()
            for on, fault in self._faults:
                if (source, to) in on:
                    quality = quality.combined(fault)
            qualities.append((source, to, quality))
        self._tell(Set(qualities))

    # --- what it has done ---------------------------------------------------------------------------------

    def counts(self, source: str, to: str) -> Counts:
        """What the channel from one host to another has done so far."""
        return next(
            channel.counts
            for channel in self._tell(Ask()).channels
            if (channel.source, channel.to) == (source, to)
        )

    def look(self) -> Answer:
        """What the whole wire has done so far."""
        return self._tell(Ask())

    def throughput(self) -> float:
        """Packets a second that it can carry, from those that it has carried and the time at work."""
        answer = self.look()
        received = sum(channel.counts.received for channel in answer.channels)
        return received / answer.busy_s if answer.busy_s else 0.0

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process that carries the packets."""
        return self._process.pid

    def close(self) -> None:
        """Unplug everybody: the interfaces vanish. Idempotent."""
        with self._lock:
            self._lines.close()
            self._control.close()
            if self._process.poll() is None:
                try:
                    self._process.wait(_ANSWER_S_MAX)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()

    def _tell(self, command: Command) -> Answer:
        with self._lock:
            try:
                self._control.sendall(msgspec.json.encode(command) + b"\n")
                line = self._lines.readline()
            except (OSError, ValueError) as error:
                raise WireError(f"{type(command).__name__}: the wire does not answer: {error}") from error
            if not line:
                self._process.wait(_ANSWER_S_MAX)
                assert self._process.stderr is not None
                raise WireError(f"the wire has ended:\n{self._process.stderr.read().decode()}")
            return msgspec.json.decode(line, type=Answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
