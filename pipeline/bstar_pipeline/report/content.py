"""What a report shows, as plain values: everything between the tables and the page.

``collect`` fills these from the tables (and so bounds how much there can be), ``words``, ``plots`` and
``page`` make sentences, figures and HTML of them without knowing Spark. Times are microseconds since 1970 on
the pair's common timeline, ``…_us`` without ``at`` durations in microseconds. Names of services, clients,
hosts and the texts of events come from the wire and are as they came: whoever shows them escapes them.
"""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

_Item = TypeVar("_Item")
_DAY_US = 86_400_000_000
_STEPS_US = [round(step_s * 1e6) for step_s in (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 10800, 21600, 43200,
)]  # fmt: skip


def round_step_us(length_us: int, most: int) -> int:
    """A round time, so that this length has at most so many."""
    days = -(-length_us // (_DAY_US * most))
    return next((step_us for step_us in _STEPS_US if length_us <= step_us * most), days * _DAY_US)


class Shown(list[_Item]):
    """The items of a list that fit on the page. ``total`` is the length of the whole list."""

    def __init__(self, items: Iterable[_Item] = (), total: int | None = None) -> None:
        super().__init__(items)
        self.total = len(self) if total is None else total

    @property
    def is_cut(self) -> bool:
        """True if the list has more items."""
        return len(self) < self.total


class Interval(Struct, frozen=True):
    """A node was in this state from ``since_at_us`` to ``until_at_us``."""

    node: str
    state: str
    is_serving: bool
    epoch: int
    since_at_us: int
    until_at_us: int
    event: str
    text: str


class Rate(Struct, frozen=True):
    """Requests that ended in the step that begins at ``at_us``."""

    at_us: int
    answered: float
    not_answered: float


class Incident(Struct, frozen=True):
    """One row of gold.incidents; None where the journals cannot tell."""

    pair: str
    kind: str
    node: str
    successor: str
    epoch: int
    began_at_us: int
    began_error_us: int | None
    detected_at_us: int | None
    taken_over_at_us: int | None
    recovered_at_us: int | None
    detection_us: int | None
    takeover_us: int | None
    outage_us: int | None
    outage_at_us: int | None
    retried: int
    refused: int
    unknown: int
    affected: int
    cause: str

    @property
    def outage_began_us(self) -> int:
        """Since when no request was answered."""
        return self.began_at_us if self.outage_at_us is None else self.outage_at_us


class Hit(Struct, frozen=True):
    """What an outage did to one service: requests that waited in it, of so many clients, what became of them.

    ``slow`` are those that were answered after the time that the service's objective names.
    """

    service: str
    waited: int
    clients: int
    not_answered: int
    slow: int = 0


class Verdicts(Struct, frozen=True):
    """How many findings of one rule there are, by verdict."""

    rule: str
    violated: int
    excused: int
    unproven: int


class Finding(Struct, frozen=True):
    """One row of gold.audit."""

    pair: str
    rule: str
    verdict: str
    client: str
    number: int | None
    service: str
    node: str
    at_us: int | None
    duration_us: int | None
    count: int
    text: str

    @property
    def request(self) -> str:
        """The request's identity as people read it; "" if the finding is not of one."""
        return f"{self.client} {'' if self.number is None else self.number}".strip()


class Heat(Struct, frozen=True):
    """How long requests of one service (or of all: "") took, over time.

    ``cells``: (step, row, requests); step ``s`` begins at ``from_us + s * step_us``, row ``r`` holds times in
    (edge ``r``, edge ``r + 1``] of ``edges_us``. ``lines``: (step, p50, p99) in microseconds, to 1 %.
    """

    service: str
    cells: list[tuple[int, int, float]]
    lines: list[tuple[int, float, float]]


class Promise(Struct, frozen=True):
    """An objective and how much of its budgets the period that ends with the last day has used (1 = all)."""

    availability: float
    latency_us: int
    latency_share: float
    period_requests: float
    budget_used: float
    slow_budget_used: float
    is_kept: bool


class Objective(Struct, frozen=True):
    """One service over the whole period; ``burn`` over time as (at_us, burn rate) is for the plot.

    ``counted``: "calls" as clients saw them, "requests" as nodes did, or both, "calls, requests".
    ``promise`` is what was to be kept, None if nothing was said of it. ``alerts`` are minutes in which the
    budget burned so fast that somebody should be woken, the worst of them at ``worst_at_us``.
    """

    pair: str
    service: str
    counted: str
    requests: float
    errors: float
    peak_per_s: float
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    burn_rate: float | None
    worst_burn_rate: float | None
    worst_at_us: int | None
    fast_alerts: int
    slow_alerts: int
    promise: Promise | None
    burn: list[tuple[int, float]] = []

    @property
    def error_share(self) -> float:
        """Of its requests, 0 to 1."""
        return self.errors / self.requests if self.requests else 0.0


class Capacity(Struct, frozen=True):
    """One service's workers: its last hour, and the mean utilisation of all hours as (at_us, share)."""

    service: str
    workers: float
    utilisation: float | None
    peak_utilisation: float | None
    arrivals_per_s: float
    queued_max: int
    trend_per_day: float | None
    saturates_at_us: int | None
    hours: list[tuple[int, float]] = []


class Client(Struct, frozen=True):
    """One client over the whole period."""

    client: str
    node: str
    requests: float
    not_answered: float
    retries: int
    busy: int
    share: float
    peak_per_s: float
    p99_us: float | None
    is_flooding: bool
    is_retrying: bool


class Run(Struct, frozen=True):
    """One run of a process."""

    node: str
    source: str
    host: str
    version: str
    config: str
    service: str
    started_at_us: int
    last_at_us: int
    is_clean: bool
    records: int
    missing: int
    dropped: int


class Quality(Struct, frozen=True):
    """What could not be read. ``files`` and ``rejected``: (word, count), the most frequent first.

    ``samples``: (file, reason, line's beginning) of a few rejected lines. ``clocks``: (process, by how many
    microseconds its clock was ahead and was put right, by how many it is unsure).
    """

    files: list[tuple[str, int]]
    rejected: list[tuple[str, int]]
    samples: list[tuple[str, str, str]]
    lines: int
    duplicates: int
    missing: int
    dropped: int
    is_sampled: bool
    clocks: list[tuple[str, int, int]] = []


class Content(Struct, frozen=True):
    """A report of one pair. ``verdicts`` is None if there was no audit. ``hits`` are of the longest outage.

    ``until_us`` is after ``from_us``; ``step_us`` is that of ``rates`` and heats.
    """

    pair: str
    from_us: int
    until_us: int
    step_us: int
    requests: float
    errors: float
    verdicts: list[Verdicts] | None
    findings: Shown[Finding]
    intervals: Shown[Interval]
    rates: list[Rate]
    incidents: Shown[Incident]
    hits: list[Hit]
    edges_us: list[float]
    heats: list[Heat]
    p99_us: float | None
    objectives: Shown[Objective]
    capacity: Shown[Capacity]
    clients: Shown[Client]
    runs: Shown[Run]
    quality: Quality

    @property
    def span(self) -> tuple[int, int]:
        """The period."""
        return self.from_us, self.until_us

    @property
    def promises(self) -> dict[str, Promise]:
        """By service."""
        return {each.service: each.promise for each in self.objectives if each.promise is not None}
