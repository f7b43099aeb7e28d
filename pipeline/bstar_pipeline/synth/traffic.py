"""Who asks what: every request of a pair is an index, and everything constant about it follows from that.

Index -> client, number, service, worker, whether it fails, whether a sample has it, the CRC of its reply.
Because it is a function of the index alone, any stretch of a journal can be made without those before it, and
processes of several journals (node, client, worker) agree about a request without talking to each other.
"""

import hashlib
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bstar_pipeline.synth.settings import SynthSettings

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# One turn of the pattern after which clients and services repeat; each client comes at least once in it.
_TURN_MIN = 4096
_DAY_S = 86_400
# The quietest hour, UTC.
_QUIET_S = 3 * 3600


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process."""

    name: str
    service: int
    routing_id: str


class Traffic:
    """The requests of pair number ``pair``."""

    def __init__(self, settings: SynthSettings, pair: int) -> None:
        self.settings = settings
        chance = random.Random(f"{settings.seed}/{pair}/traffic")  # noqa: S311 - data for tests
        self.services = [f"service-{k}" for k in range(settings.services)]
        self.clients = [chance.randbytes(16).hex() for _ in range(settings.clients)]
        self.senders = [hashlib.sha256(client.encode()).hexdigest()[:10] for client in self.clients]
        self.workers = [
            Worker(
                f"worker-{k // settings.services}-of-service-{k % settings.services}",
                k % settings.services,
                chance.randbytes(5).hex(),
            )
            for k in range(settings.workers)
        ]
        self.turn = max(_TURN_MIN, 1 << (4 * settings.clients - 1).bit_length())
        # A few clients ask most, as it is; everyone asks at least once a turn.
        shares = [1 / (k + 1) for k in range(settings.clients)]
        pattern = list(range(settings.clients))
        pattern += chance.choices(range(settings.clients), shares, k=self.turn - settings.clients)
        chance.shuffle(pattern)
        self._client_of = np.array(pattern, dtype=np.int64)
        self._per_turn = np.bincount(self._client_of, minlength=settings.clients)
        seen = [0] * settings.clients
        ranks = []
        for client in pattern:
            seen[client] += 1
            ranks.append(seen[client])
        self._rank_of = np.array(ranks, dtype=np.int64)
        weights = [1 / (k + 1) for k in range(settings.services)]
        services = chance.choices(range(settings.services), weights, k=self.turn)
        self._service_of = np.array(services, dtype=np.int64)
        by_service = [
            [w for w, one in enumerate(self.workers) if one.service == s] for s in range(settings.services)
        ]
        self._worker_of = np.array([chance.choice(by_service[s]) for s in services], dtype=np.int64)

    def client_of(self, index: Ints) -> Ints:
        """Whose request it is."""
        return self._client_of[index % self.turn]

    def number_of(self, index: Ints) -> Ints:
        """The client's number for it, from 1."""
        place = index % self.turn
        numbers: Ints = (index // self.turn) * self._per_turn[self._client_of[place]] + self._rank_of[place]
        return numbers

    def service_of(self, index: Ints) -> Ints:
        """The service that is asked."""
        return self._service_of[index % self.turn]

    def worker_of(self, index: Ints) -> Ints:
        """The worker that executes it."""
        return self._worker_of[index % self.turn]

    def is_sampled(self, index: Ints) -> Bools:
        """Is it recorded at all?"""
        if self.settings.sample >= 1:
            return np.ones(len(index), dtype=np.bool_)
        return _share(index, 1) < self.settings.sample

    def fate_of(self, index: Ints) -> Ints:
        """0 answered, 1 failed, 2 expired."""
        draw = _share(index, 2)
        expired = self.settings.expired_share
        fates: Ints = np.where(draw < expired, 2, np.where(draw < expired + self.settings.failed_share, 1, 0))
        return fates

    def crc_of(self, index: Ints) -> Ints:
        """The CRC-32 of its reply."""
        return (_mix(index, 3) & np.uint64(0xFFFFFFFF)).astype(np.int64)

    def process_of(self, client: Ints) -> Ints:
        """The client process in which a client lives."""
        return client % self.settings.client_processes

    @cached_property
    def busy_mean_us(self) -> Ints:
        """By service."""
        return np.array(
            [self.settings.busy_us * (k + 1) for k in range(self.settings.services)], dtype=np.int64
        )


class Rate:
    """How many requests have come by a time, as a share of a mean day; the same for all pairs."""

    def __init__(self, settings: SynthSettings) -> None:
        self._swing = settings.daily_swing
        self._growth = settings.growth_per_day
        start = datetime.fromisoformat(settings.start).astimezone(UTC)
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        self.start_us = round(start.timestamp()) * 1_000_000
        self._offset_s = (start - midnight).total_seconds()

    def until(self, time_s: float) -> float:
        """The integral of the rate (mean 1 a second at first) from the journal's start to ``time_s``."""
        return self._integral(time_s + self._offset_s) - self._integral(self._offset_s)

    def _integral(self, x: float) -> float:
        # (1 + g x) (1 - a cos(w (x - q))), integrated by parts; x in seconds, g per second.
        g, a, w = self._growth / _DAY_S, self._swing, 2 * math.pi / _DAY_S
        angle = w * (x - _QUIET_S)
        return x + g * x * x / 2 - a * ((1 + g * x) * math.sin(angle) / w + g * math.cos(angle) / (w * w))


def _mix(index: Ints, salt: int) -> npt.NDArray[np.uint64]:
    """SplitMix64: 64 bits that look random, of an index."""
    salted = (salt * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    z = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salted)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _share(index: Ints, salt: int) -> npt.NDArray[np.float64]:
    """A number from 0 up to 1."""
    return (_mix(index, salt) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
