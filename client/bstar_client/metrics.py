"""Metrics of clients and workers for Prometheus: ``register(client)`` adds them to a registry.

    from bstar_client import HAClient, metrics

    metrics.register(client, name="checkout")

A scrape reads the counters that a client or a worker keeps anyway. Only the histogram of handlers' seconds
costs something per request, and only from ``register`` on. A client or worker that was garbage-collected is
not shown any more. The package prometheus-client is needed here, and nowhere else in ``bstar_client``.

Labels are bounded: ``client`` is the name given here, ``service``, ``node`` and ``pair`` are what the program
configured for its workers and clients, ``outcome`` and ``event`` come from closed sets.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Protocol

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.metrics_core import CounterMetricFamily as Counter
    from prometheus_client.metrics_core import GaugeMetricFamily as Gauge
    from prometheus_client.metrics_core import HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    text = (
        "metrics need prometheus-client, which is not installed: pip install '.[server]' in a clone of bstar"
    )
    raise ModuleNotFoundError(text, name=error.name) from error

from bstar.errors import ConfigurationError
from bstar_client.core.counters import ENDS
from bstar_client.core.events import Event, FailedOver
from bstar_client.core.figures import ClientFigures, WorkerFigures
from bstar_client.core.worker.handler_times import BOUNDS_S, HandlerTimes

__all__ = ["register"]

WORKER_OUTCOMES = (
    "finished", "declined", "failed", "timed_out", "expired", "stale", "replayed", "cancelled",
)  # fmt: skip
WORKER_EVENTS = (
    "registrations",
    "sessions_lost",
    "replies_dropped",
    "requests_dropped",
    "results_late",
    "messages_invalid",
)
CLIENT_EVENTS = ("resends", "votes", "failovers", "busy", "refusals", "joined", "messages_invalid")


class ObservedWorker(Protocol):
    """A Worker or an AsyncWorker."""

    def figures(self) -> WorkerFigures:
        """It at this moment."""

    def time_handlers(self) -> None:
        """Keep the histogram from now on."""


class ObservedClient(Protocol):
    """An HAClient or an AsyncHAClient."""

    def figures(self) -> ClientFigures:
        """It at this moment."""

    def observe(self, observer: "_Outages") -> None:
        """Call it with each event."""


class _Outages:
    """How long a client knew of no active node, each time that it failed over."""

    def __init__(self) -> None:
        self.times = HandlerTimes()

    def __call__(self, event: Event) -> None:
        if isinstance(event, FailedOver):
            self.times.add(event.gap_s)


class _Observed:
    """One client or worker, by its name."""

    def __init__(
        self, name: str, subject: "ObservedClient | ObservedWorker", outages: _Outages | None
    ) -> None:
        self.name = name
        self.subject = weakref.ref(subject)
        self.outages = outages


class BstarCollector(Collector):
    """All clients and workers that were registered at one registry; each metric is reported once."""

    def __init__(self) -> None:
        self._observed: list[_Observed] = []
        self._lock = threading.Lock()

    def add(self, subject: "ObservedClient | ObservedWorker", name: str) -> None:
        """Show ``subject`` from now on. ConfigurationError if another one has the name."""
        is_worker = hasattr(subject, "time_handlers")
        outages = None if is_worker else _Outages()
        with self._lock:
            living = [each for each in self._observed if each.subject() is not None]
            for each in living:
                is_alike = hasattr(each.subject(), "time_handlers") == is_worker
                if each.subject() is subject or (is_alike and each.name == name):
                    raise ConfigurationError(f"metrics: {name!r} is registered already: give it another name")
            self._observed = [*living, _Observed(name, subject, outages)]
        if outages is not None:
            subject.observe(outages)  # type: ignore[union-attr]  # it is a client
        else:
            subject.time_handlers()  # type: ignore[union-attr]  # it is a worker

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is changes."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of them at this moment."""
        workers: list[tuple[str, WorkerFigures]] = []
        clients: list[tuple[str, ClientFigures, HandlerTimes]] = []
        for each in list(self._observed):
            subject = each.subject()
            if subject is None:
                continue
            figures = subject.figures()
            if isinstance(figures, WorkerFigures):
                workers.append((each.name, figures))
            elif each.outages is not None:
                clients.append((each.name, figures, each.outages.times))
        if workers:
            yield from _workers(workers)
        if clients:
            yield from _clients(clients)


_collectors: "weakref.WeakKeyDictionary[CollectorRegistry, BstarCollector]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def register(
    subject: "ObservedClient | ObservedWorker", *, name: str = "", registry: CollectorRegistry = REGISTRY
) -> None:
    """Show a client (HAClient, AsyncHAClient) or a worker (Worker, AsyncWorker) in ``registry``.

    ``name`` is the label ``client`` or ``worker``; two clients of one registry need two names.
    ConfigurationError if the name is taken, or if the client or worker is registered there.
    """
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = BstarCollector()
            registry.register(collector)
    collector.add(subject, name)


def _workers(workers: "list[tuple[str, WorkerFigures]]") -> Iterator[Metric]:
    labels = ("worker", "service")
    requests = Counter(
        "bstar_worker_requests",
        "Requests that ended at this worker, by outcome.",
        labels=(*labels, "outcome"),
    )
    events = Counter(
        "bstar_worker_events", "What happened to this worker, by event.", labels=(*labels, "event")
    )
    registered = Gauge(
        "bstar_worker_registered", "1 if the node has registered this worker.", labels=(*labels, "node")
    )
    seconds = HistogramMetricFamily(
        "bstar_worker_handler_seconds", "How long the handler took, per request that it ended.", labels=labels
    )
    for name, each in workers:
        key = (name, each.service)
        for outcome in WORKER_OUTCOMES:
            requests.add_metric((*key, outcome), each.counters[outcome])
        for event in WORKER_EVENTS:
            events.add_metric((*key, event), each.counters[event])
        for node, is_registered in each.registered.items():
            registered.add_metric((*key, node), is_registered)
        seconds.add_metric(key, _buckets(each.handler_counts), sum_value=each.handler_sum_s)
    yield from (requests, events, registered, seconds)
    for metric, field, text in (
        ("bstar_worker_in_flight", "held", "Requests that this worker holds, running or waiting in it."),
        ("bstar_worker_running", "running", "Requests at a handler, without those of stuck ones."),
        ("bstar_worker_stuck", "stuck", "Handlers that ran past their time and have not returned."),
        (
            "bstar_worker_overdue_cancels",
            "overdue_cancels",
            "Handlers that still run cancel_grace_s after their requests were cancelled.",
        ),
        ("bstar_worker_oldest_running_seconds", "oldest_running_s", "Age of the oldest running handler."),
        ("bstar_worker_epoch", "epoch", "The epoch that this worker obeys."),
    ):
        family = Gauge(metric, text, labels=labels)
        for name, each in workers:
            family.add_metric((name, each.service), getattr(each, field))
        yield family


def _clients(clients: "list[tuple[str, ClientFigures, HandlerTimes]]") -> Iterator[Metric]:
    sent = Counter(
        "bstar_client_requests", "Requests that this client was asked to send.", labels=("client",)
    )
    ended = Counter("bstar_client_outcomes", "Calls that ended, by outcome.", labels=("client", "outcome"))
    events = Counter(
        "bstar_client_events", "What happened to this client, by event.", labels=("client", "event")
    )
    in_flight = Gauge("bstar_client_in_flight", "Calls without an outcome.", labels=("client",))
    following = Gauge(
        "bstar_client_following", "1 if this client knows the pair's active node.", labels=("client", "pair")
    )
    outages = HistogramMetricFamily(
        "bstar_client_outage_seconds",
        "How long this client knew of no active node, for each failover.",
        labels=("client",),
    )
    for name, each, gaps in clients:
        sent.add_metric((name,), each.counters["requests"])
        for outcome in ENDS:
            ended.add_metric((name, outcome), each.counters[outcome])
        for event in CLIENT_EVENTS:
            events.add_metric((name, event), each.counters[event])
        in_flight.add_metric((name,), each.in_flight)
        for pair, is_following in each.following.items():
            following.add_metric((name, pair), is_following)
        outages.add_metric((name,), _buckets(gaps.counts), sum_value=gaps.sum_s)
    yield from (sent, ended, events, in_flight, following, outages)


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulated counts, each with its upper bound."""
    bounds = (*map(repr, BOUNDS_S), "+Inf")
    return list(zip(bounds, map(float, accumulate(counts)), strict=True))
