"""A worker or a client at one moment, for metrics and probes: plain numbers, for any thread."""

import msgspec

from bstar.base.printable import printable
from bstar_client.core.worker.handler_times import HandlerTimes
from bstar_client.core.worker.session import WorkerCore


class WorkerFigures(msgspec.Struct, frozen=True):
    """One worker. ``registered`` says for each node whether it has registered the worker.

    ``counters`` are those of ``WorkerCounters``. ``held``: unanswered requests of all nodes; ``running`` of
    them have a handler. ``stuck`` handlers ran past ``handler_timeout_s`` and have not returned;
    ``overdue_cancels`` run ``cancel_grace_s`` after their requests were cancelled.
    ``oldest_running_s``: how long the oldest handler has run. ``handler_counts``: see ``HandlerTimes``.
    """

    service: str
    counters: dict[str, int]
    registered: dict[str, bool]
    held: int
    running: int
    stuck: int
    overdue_cancels: int
    oldest_running_s: float
    epoch: int
    is_stopping: bool
    handler_counts: tuple[int, ...]
    handler_sum_s: float


def figures_of(core: WorkerCore, service: bytes, now: float) -> WorkerFigures:
    """The worker at this moment. Any thread may ask."""
    # Copies of what other threads change.
    unfinished, sessions = core.unfinished, list(core.sessions)
    began = [job.began_at for job in unfinished if job.began_at]
    times = core.times or HandlerTimes()
    return WorkerFigures(
        service=printable(service),
        counters=dict(vars(core.counters)),
        registered={each.endpoint: each.is_registered for each in sessions},
        held=sum(each.held for each in sessions),
        running=len(unfinished),
        stuck=core.stuck,
        overdue_cancels=core.overdue_cancels(now),
        oldest_running_s=max(0.0, now - min(began)) if began else 0.0,
        epoch=core.epoch,
        is_stopping=core.is_stopping,
        handler_counts=tuple(times.counts),
        handler_sum_s=times.sum_s,
    )


class ClientFigures(msgspec.Struct, frozen=True):
    """One client. ``counters`` are those of ``Counters``; ``in_flight`` calls have no outcome yet.

    ``following`` says for each pair whether the client knows its active node.
    """

    counters: dict[str, int]
    in_flight: int
    following: dict[str, bool]
