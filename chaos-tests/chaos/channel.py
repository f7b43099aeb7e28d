"""What may happen to packets on their way: one channel for each ordered pair of hosts, joined by a switch.

A channel loses, repeats, holds back, delays and cuts as its ``Quality`` says; the switch has one for each
ordered pair and hands out packets when they are due. Pure: time is handed in, chance comes from a seed.
Packet number n of a channel always draws the same numbers, whatever happens on other channels and whatever
the quality was before, so equal traffic has an equal fate.

Kept in order: a delay that varies (``jitter_ms``) never lets a packet overtake another one. Reordering is a
fault of its own: a share of the packets is held back, and those behind go first.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

# A queue of this length is what the usual network emulators have; with 1500 bytes it is 1.5 MB a channel.
QUEUE_PACKETS_MAX = 1000
_IPV4 = 4
_HEADER_BYTES_MIN = 20


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel is like. The default is a good one."""

    loss_percent: float = 0.0
    duplicate_percent: float = 0.0
    reorder_percent: float = 0.0
    """Share of the packets that are held back."""
    hold_ms: float = 0.0
    """For how long they are."""
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """The delay of each packet is ``delay_ms`` ± this, evenly distributed, and never below 0."""
    rate_kbit_s: float = 0.0
    """0: no limit."""
    is_cut: bool = False
    """Nothing comes through, and what is on the way is lost."""

    def __post_init__(self) -> None:
        for share in (self.loss_percent, self.duplicate_percent, self.reorder_percent):
            if not 0.0 <= share <= 100.0:
                raise ValueError(f"{share:g} is no percentage")
        if min(self.hold_ms, self.delay_ms, self.jitter_ms, self.rate_kbit_s) < 0:
            raise ValueError("a time or rate below 0")

    def combined(self, other: Self) -> Quality:
        """One channel behind the other: losses are independent, delays add up, the narrower rate counts."""
        rates = [rate for rate in (self.rate_kbit_s, other.rate_kbit_s) if rate]
        return Quality(
            loss_percent=_either(self.loss_percent, other.loss_percent),
            duplicate_percent=_either(self.duplicate_percent, other.duplicate_percent),
            reorder_percent=_either(self.reorder_percent, other.reorder_percent),
            hold_ms=max(self.hold_ms, other.hold_ms),
            delay_ms=self.delay_ms + other.delay_ms,
            jitter_ms=self.jitter_ms + other.jitter_ms,
            rate_kbit_s=min(rates, default=0.0),
            is_cut=self.is_cut or other.is_cut,
        )


def _either(a_percent: float, b_percent: float) -> float:
    return 100.0 * (1 - (1 - a_percent / 100) * (1 - b_percent / 100))


class Counts(msgspec.Struct, kw_only=True):
    """What a channel has done, in packets.

    All received and duplicated ones end as delivered, lost, cut or overflowed; held ones are counted twice.
    """

    received: int = 0
    duplicated: int = 0
    held: int = 0
    delivered: int = 0
    lost: int = 0
    cut: int = 0
    overflowed: int = 0


Delivery = tuple[str, bytes]
"""A host and a packet for it."""


class _Channel:
    def __init__(self, seed: str, to: str) -> None:
        self.to = to
        self.quality = Quality()
        self.counts = Counts()
        self.waiting = 0
        self._draw = random.Random(seed).random
        # No packet that is not held back is due before the one in front of it.
        self._last_due_at = 0.0
        self._free_at = 0.0

    def admit(self, size_bytes: int, now: float) -> list[float]:
        """When copies of this packet are due at the other end: none, one or two."""
        # All are drawn for every packet, so that a change of quality does not shift what follows.
        loss, duplicate, reorder, jitter = self._draw(), self._draw(), self._draw(), self._draw()
        quality, counts = self.quality, self.counts
        counts.received += 1
        if quality.is_cut:
            counts.cut += 1
            return []
        if loss * 100 < quality.loss_percent:
            counts.lost += 1
            return []
        copies = 2 if duplicate * 100 < quality.duplicate_percent else 1
        counts.duplicated += copies - 1
        if self.waiting + copies > QUEUE_PACKETS_MAX:
            counts.overflowed += copies
            return []
        sent_at = now
        if quality.rate_kbit_s:
            sent_at = max(now, self._free_at) + size_bytes * 8 / (quality.rate_kbit_s * 1000)
            self._free_at = sent_at
        due_at = sent_at + max(0.0, quality.delay_ms + (2 * jitter - 1) * quality.jitter_ms) / 1000
        if reorder * 100 < quality.reorder_percent:
            counts.held += 1
            due_at = max(due_at, self._last_due_at) + quality.hold_ms / 1000
        else:
            due_at = self._last_due_at = max(due_at, self._last_due_at)
        self.waiting += copies
        return [due_at] * copies


class Switch:
    """Forwards IPv4 packets by destination. ``addresses`` maps the names of hosts to their four octets."""

    def __init__(self, addresses: Mapping[str, bytes], *, seed: int) -> None:
        self._names = {octets: name for name, octets in addresses.items()}
        self._channels = {
            (source, to): _Channel(f"{seed} {source} {to}", to)
            for source in addresses
            for to in addresses
            if source != to
        }
        self._heap: list[tuple[float, int, _Channel, bytes]] = []
        self._number = 0
        self.foreign = 0
        """Packets that were not IPv4 or not for one of the hosts. They are dropped."""

    def set_quality(self, source: str, to: str, quality: Quality) -> None:
        """From now on. A cut loses what is on the way; any other change counts for packets to come."""
        self._channels[source, to].quality = quality

    def receive(self, source: str, packet: bytes, now: float) -> None:
        """A host sends."""
        to = None
        if len(packet) >= _HEADER_BYTES_MIN and packet[0] >> 4 == _IPV4:
            to = self._names.get(packet[16:20])
        if to is None or to == source:
            self.foreign += 1
            return
        channel = self._channels[source, to]
        for due_at in channel.admit(len(packet), now):
            self._number += 1
            heapq.heappush(self._heap, (due_at, self._number, channel, packet))

    def next_deadline(self) -> float | None:
        """When the next packet is due."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> Iterable[Delivery]:
        """What arrives by now, in the order in which it does."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, channel, packet = heapq.heappop(heap)
            channel.waiting -= 1
            if channel.quality.is_cut:
                channel.counts.cut += 1
                continue
            channel.counts.delivered += 1
            yield channel.to, packet

    def counts(self) -> dict[tuple[str, str], Counts]:
        """What each channel has done so far."""
        return {pair: channel.counts for pair, channel in self._channels.items()}
