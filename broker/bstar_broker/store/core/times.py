"""The times of schedules: which requests are due now, and when a schedule is due next.

Only the node that leads asks; what it finds stands in the entry, so the other node need not know time zones.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from bstar.errors import RemoteProtocolError
from bstar.wire.durable import Missed, Repeat
from bstar_broker.store.core.commands import Fired
from bstar_broker.store.core.records import Record

# A time counts as missed when it passed longer ago.
GRACE_MS = 60_000
# Requests for missed times that one schedule makes at once.
RUNS_MAX = 1_000
# Shorter intervals are a program's own business.
EVERY_MS_MIN = 1_000


def check(repeat: Repeat) -> None:
    """RemoteProtocolError if these are no times."""
    if bool(repeat.every_ms) == bool(repeat.cron):
        raise RemoteProtocolError("durable", "a schedule has an interval or a cron expression")
    if repeat.every_ms and repeat.every_ms < EVERY_MS_MIN:
        raise RemoteProtocolError("durable", "the shortest interval of a schedule is one second")
    next(_times(repeat, 0), None)


def first(repeat: Repeat, from_ms: int, *, is_delayed: bool) -> int:
    """The first time (Unix milliseconds), or 0.

    An interval begins at ``from_ms`` if that was asked for, and else one interval later.
    """
    if repeat.every_ms:
        return from_ms if is_delayed else from_ms + repeat.every_ms
    return next(_times(repeat, from_ms), 0)


def fire(record: Record, now_ms: int, runs_max: int = RUNS_MAX) -> Fired:
    """What follows from the time of this schedule, which has come: ``runs_max`` requests at most. The next
    one is due at once then.
    """
    repeat, due_ms = record.repeat, record.due_ms
    assert repeat is not None
    passed = [due_ms]
    next_ms = 0
    if repeat.every_ms:
        # No caller asks for more than the last thousand.
        behind = max(0, (now_ms - due_ms) // repeat.every_ms)
        begin = due_ms + max(0, behind - RUNS_MAX) * repeat.every_ms
        passed = list(range(begin, now_ms + 1, repeat.every_ms)) or [due_ms]
        next_ms = passed[-1] + repeat.every_ms
    else:
        # It asks from a moment ago on, so that years of missed minutes are not counted out.
        for time_ms in _times(repeat, due_ms):
            if time_ms > now_ms:
                next_ms = time_ms
                break
            passed.append(time_ms)
            if len(passed) > RUNS_MAX:
                next_ms = next(_times(repeat, now_ms), 0)
                break
    runs = _runs(repeat.missed, passed, now_ms)
    if repeat.runs and len(runs) >= repeat.runs:
        runs, next_ms = runs[: repeat.runs], 0
    if len(runs) > runs_max:
        runs, next_ms = runs[:runs_max], runs[runs_max]
    return Fired(record.id, due_ms, runs, next_ms)


def _runs(missed: Missed, passed: list[int], now_ms: int) -> list[int]:
    """For which of the passed times there is a request."""
    late = [time_ms for time_ms in passed if time_ms < now_ms - GRACE_MS]
    fresh = passed[len(late) :]
    if missed == Missed.EACH:
        return passed[-RUNS_MAX:]
    return fresh or (late[-1:] if missed == Missed.ONCE else [])


def _times(repeat: Repeat, after_ms: int) -> Iterator[int]:
    """The times of a cron expression after this one, in its zone."""
    if repeat.every_ms:
        return iter(range(after_ms + repeat.every_ms, 1 << 43, repeat.every_ms))
    try:
        zone = ZoneInfo(repeat.zone)
        times = CronSim(repeat.cron, datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone))
    except CronSimError as error:
        text = f"no cron expression of five fields: {repeat.cron!r}: {error}"
        raise RemoteProtocolError("durable", text) from error
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RemoteProtocolError("durable", f"no time zone: {repeat.zone!r}") from error
    return (round(time.timestamp() * 1000) for time in times)
