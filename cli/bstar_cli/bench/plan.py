"""What a measurement consists of, as plain data and arithmetic: who is asked, with what load, and when.

A *case* is one size of body with one window. A *turn* is one measurement of one side in one case. All clients
of a side take part in a turn; each gets its share of the count or of the rate. The structs of this module are
also the lines of JSON that the command and its client processes exchange.

Open loop: with a rate, the due times of requests are fixed before the turn begins. A request's latency counts
from its due time, not from the time it was sent. So a server that stands still for a second shows in the
latency of every request of that second. A generator that waits for each reply would see the pause once
(coordinated omission).

It opens no socket and reads no clock.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

from bstar.fleet import Fleet, Pair
from bstar_client.arguments.settings import Dialect

ClientKind = Literal["sync", "async"]
Means = Literal["map", "request"]

# What all clients of a side have in flight may not be more than this.
BYTES_IN_FLIGHT_MAX = 1 << 30
# Latencies below are kept to the microsecond, longer ones to four digits; the histogram keeps three.
BUCKETS_EXACT = 10_000


class Side(msgspec.Struct, frozen=True):
    """One of the things that are measured: a pair or several, and how they are spoken to. ``pid``: where the
    CPU time of a single broker is read.
    """

    name: str
    pairs: list[Pair]
    dialect: Dialect
    client: ClientKind
    services: list[str]
    pid: int | None = None
    pins: dict[str, str] = {}

    @property
    def fleet(self) -> Fleet:
        """As clients know it."""
        return Fleet(self.pairs, pins=self.pins)

    @property
    def endpoints(self) -> list[str]:
        """Of all pairs."""
        return [endpoint for pair in self.pairs for endpoint in pair.endpoints]

    @property
    def pairs_used(self) -> dict[str, Pair]:
        """The pairs that the services belong to, by identity, in the order of the fleet."""
        owners = {self.fleet.pair_of(service).identity for service in self.services}
        return {pair.identity: pair for pair in self.pairs if pair.identity in owners}

    def service_of(self, number: int) -> str:
        """The service that the client of this number calls."""
        return self.services[number % len(self.services)]


class Case(msgspec.Struct, frozen=True):
    """``size`` bytes of body, ``window`` requests in flight per client."""

    size: int
    window: int


class Job(msgspec.Struct, frozen=True, tag="job"):
    """What a client process of a side is for, its whole life."""

    side: Side
    service: str
    means: Means
    timeout_s: float


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """What one client does in a turn. Either ``seconds`` or ``count`` bounds it.

    With a ``rate`` (requests per second of all clients together) this client sends those of the schedule
    whose number leaves ``number`` when divided by ``clients``.
    """

    size: int
    window: int
    seconds: float | None
    count: int | None
    rate: float | None = None
    number: int = 0
    clients: int = 1


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the turn now and tell what was measured."""


ToClient = Job | Turn | Stop


class EchoPlan(msgspec.Struct, frozen=True):
    """What an echo worker offers, to whom, and in which way."""

    endpoints: list[str]
    service: str
    dialect: Dialect
    kind: ClientKind
    credit: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The client's first request was answered."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Replies of this turn so far."""

    answered: int


class Tally(msgspec.Struct, frozen=True, tag="tally"):
    """What one client saw in one turn.

    ``buckets``: latency in microseconds (``bucket_of``) to the number of replies with it. ``failed`` counts
    the requests without a reply by the name of their error; ``unsent``: due by the schedule and never sent.
    """

    seconds: float
    buckets: dict[int, int]
    failed: dict[str, int]
    unsent: int = 0

    @property
    def answered(self) -> int:
        """Requests with a reply."""
        return sum(self.buckets.values())


class Trouble(msgspec.Struct, frozen=True, tag="trouble"):
    """The client cannot go on; ``code`` is the exit code that fits."""

    error: str
    text: str
    code: int


FromClient = Ready | Progress | Tally | Trouble


def bucket_of(latency_s: float) -> int:
    """The latency in whole microseconds, from 10 ms on rounded to four digits, so that buckets stay few."""
    latency_us = max(1, round(latency_s * 1e6))
    step = 1
    while latency_us >= BUCKETS_EXACT * step:
        step *= 10
    return latency_us if step == 1 else round(latency_us / step) * step


def cases_of(sizes: Sequence[int], windows: Sequence[int]) -> list[Case]:
    """Every size with every window."""
    return [Case(size, window) for size, window in itertools.product(sizes, windows)]


def shares_of(count: int, parts: int) -> list[int]:
    """``count`` in ``parts`` whole shares that differ by one at most, the greater ones first."""
    whole, rest = divmod(count, parts)
    return [whole + (number < rest) for number in range(parts)]


def due_at(turn: Turn, index: int) -> float:
    """Seconds after the beginning of the turn at which this client's request ``index``, from 0, is due."""
    assert turn.rate is not None
    return (index * turn.clients + turn.number) / turn.rate


def due_count(turn: Turn) -> int:
    """How many requests this client has to send: ``count``, or those due before ``seconds`` have passed."""
    if turn.count is not None:
        return turn.count
    assert turn.rate is not None
    assert turn.seconds is not None
    # Floating point may be one off on either side.
    guess = int(turn.seconds * turn.rate / turn.clients)
    return next(index for index in itertools.count(max(0, guess - 1)) if due_at(turn, index) >= turn.seconds)
