"""Executions by a worker, and the nodes that know it."""

from typing import Literal

from bstar.records.base import Base


class Registered(Base, frozen=True, tag="registered"):
    """A node has this worker on its list."""

    endpoint: str


class Unregistered(Base, frozen=True, tag="unregistered"):
    """The worker's session with a node ended."""

    endpoint: str
    reason: str


class Execution(Base, frozen=True, tag="execution"):
    """A handler has ended: once for each time that a request was executed.

    ``outcome``: "answered", "declined" or "failed" (it raised Declined, or anything else), "cancelled" (it
    raised after its request was cancelled), "stuck" (it ran past its time and was given up).
    ``is_repeated``: the request may have been executed before. Of a plain MDP request ``client`` begins with
    "mdp-" and cannot be joined to what others recorded.
    """

    client: str
    number: int
    service: str
    outcome: Literal["answered", "declined", "failed", "cancelled", "stuck"]
    epoch: int
    busy_us: int
    endpoint: str = ""
    is_repeated: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    reply_crc: int | None = None
    weight: float = 1.0


class Fenced(Base, frozen=True, tag="fenced"):
    """The worker refused a request of a node that has been superseded: ``epoch_seen`` is higher."""

    client: str
    number: int
    service: str
    epoch: int
    epoch_seen: int
    endpoint: str = ""


WorkerRecord = Registered | Unregistered | Execution | Fenced
