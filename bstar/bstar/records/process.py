"""The life of any process that keeps a journal."""

from typing import Literal

from bstar.records.base import Base


class Started(Base, frozen=True, tag="started"):
    """A process begins its journal.

    ``machine`` is the kernel's id of this boot: records with the same one share their monotonic clock.
    ``config`` is a digest of the configuration, ``sample`` the share of requests recorded, ``service`` a
    worker's service. Brokers tell their timing and the highest ``epoch`` they know.
    """

    source: Literal["broker", "client", "worker"]
    version: str
    machine: str
    host: str
    pid: int
    config: str = ""
    sample: float = 1.0
    service: str = ""
    endpoints: str = ""
    epoch: int = 0
    heartbeat_us: int = 0
    failover_timeout_us: int = 0


class Stopping(Base, frozen=True, tag="stopping"):
    """A broker was asked to end in good order."""


class Stopped(Base, frozen=True, tag="stopped"):
    """It ended in good order; nothing of its journal is missing at the end."""

    reason: str = ""


class SegmentClosed(Base, frozen=True, tag="closed"):
    """The last line of a whole file. ``lines`` counts the lines before it."""

    lines: int


class Dropped(Base, frozen=True, tag="dropped"):
    """``count`` records since ``since_us`` (monotonic) were not written, ``requests`` of them about requests,
    calls and executions.
    """

    count: int
    requests: int
    since_us: int


class ClockStepped(Base, frozen=True, tag="clock"):
    """The wall clock was set: it moved by ``step_us`` against the monotonic one."""

    step_us: int


class Stalled(Base, frozen=True, tag="stall"):
    """The process was away for ``gap_us``, up to now."""

    gap_us: int


class Pulse(Base, frozen=True, tag="pulse"):
    """A broker lives: its state, and what it holds, once per ``journal.interval_s``."""

    state: str
    epoch: int
    workers: int
    queued: int
    in_flight: int
    lag_us: int = 0


ProcessRecord = Started | Stopping | Stopped | SegmentClosed | Dropped | ClockStepped | Stalled | Pulse
