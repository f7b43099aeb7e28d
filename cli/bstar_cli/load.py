"""``bstar load``: calls at a steady rate, and a line per second of what became of them.

What to watch a pair with while something is done to it: a deployment, a drill, a failover. A line per
failover says how long it took, and the sum at the end whether anything was lost.
"""

import math
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import msgspec
import typer

from bstar.base.printable import printable
from bstar.errors import BstarError
from bstar.fleet import Fleet
from bstar_cli import exits
from bstar_cli.engine import Gaps, Settled, SteadyCalls
from bstar_cli.options import KeptJournal, Nodes
from bstar_cli.streams import OutputLostError
from bstar_cli.terminal import json_line
from bstar_client import ActiveFound, Event, FailedOver, HAClient

_PERIOD_S = 1.0
# Enough for a failover of a second and a half at the greatest rate there is use for; each is a thread.
_WINDOW_MAX = 1_000
# A line with the texts of others in it.
_LINE_CHARS_MAX = 2_000


class Second(msgspec.Struct, frozen=True, tag="second", tag_field="type"):
    """About a second of the load; the counts are those since the start, times are null without an answer."""

    at: float
    sent: int
    answered: int
    waiting: int
    lost: int
    crossed: int
    resends: int
    failovers: int
    per_second: float
    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    active: str | None
    epoch: int | None


class Failover(msgspec.Struct, frozen=True, tag="failover", tag_field="type"):
    """Another node took over. ``gap_s`` is the time from the last reply before to the first of that node.

    It is null if that node never answered.
    """

    at: float
    from_endpoint: str
    to_endpoint: str
    reason: str
    epoch: int
    outstanding: int
    gap_s: float | None


class Lost(msgspec.Struct, frozen=True, tag="lost", tag_field="type"):
    """A call ended with an error."""

    at: float
    number: int
    error: str
    text: str


class Sum(msgspec.Struct, frozen=True, tag="sum", tag_field="type"):
    """All of it. ``longest_call_s`` is of all calls, lost ones included.

    ``longest_gap_s`` is the longest time without any answer while one was waited for, from the first answer
    on; ``seconds`` if there was none.
    """

    at: float
    ok: bool
    sent: int
    answered: int
    lost: int
    crossed: int
    resends: int
    failovers: int
    seconds: float
    longest_call_s: float
    longest_gap_s: float


def load(
    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="A service that answers with the body, as echo does.")
    ] = "echo",
    *,
    nodes: Nodes,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=5000, help="Calls per second.")] = 50.0,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="End after so long; otherwise at a signal.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Deadline of each call, in seconds.")
    ] = 15.0,
    window: Annotated[
        int, typer.Option("--window", "-w", min=1, max=_WINDOW_MAX, help="Calls outstanding at most.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    journal: KeptJournal,
) -> None:
    """Call a service at a steady rate until SIGTERM or Ctrl-C, and show how the calls fare.

    A line per second, one per failover, one per call that was lost, and a sum at the end. At a signal
    it first waits for what is outstanding; a second signal ends it at once.

    Exit codes: 0 every call was answered, with its own body; 1 not so, or none was answered; 2 wrong usage.

    Examples:

        bstar load

        bstar load quick --rate 200 --seconds 60

        bstar load -e tcp://10.0.0.1:5001,tcp://10.0.0.2:5001 --json | jq 'select(.type == "failover")'
    """
    kept = journal.settings()
    stop = threading.Event()
    report = _Report(as_json, stop)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    # It calls one service, so what happens at other pairs is no business of its report.
    fleet = Fleet([nodes.fleet().pair_of(service)])
    with HAClient(
        fleet, timeout=timeout, on_event=report.event, security=nodes.security(), journal=kept
    ) as client:
        began = time.monotonic()
        calls = SteadyCalls(
            client, service, rate=rate, window=window, on_answer=report.answer, on_failure=report.failure
        )
        lasts = math.inf if seconds is None else began + seconds
        due = began
        while not stop.is_set() and time.monotonic() < lasts:
            due += _PERIOD_S
            stop.wait(max(0.0, min(due, lasts) - time.monotonic()))
            report.second(calls, client)
        calls.finish()
        is_ok = report.sum(calls, client, time.monotonic() - began)
    if not is_ok:
        raise typer.Exit(exits.FAILED)


class _Report:
    """What was seen, and its lines; called from the threads of the calls, of the client and the main one."""

    def __init__(self, as_json: bool, stop: threading.Event) -> None:
        self._as_json = as_json
        self._stop = stop
        self._lock = threading.Lock()
        self._durations: list[float] = []
        self._since = time.monotonic()
        self._epoch: int | None = None
        self._gaps = Gaps()
        self._longest_call_s = 0.0

    def answer(self, sent_at: float, answered_at: float, endpoint: str) -> None:
        """Note a call that was answered."""
        with self._lock:
            self._durations.append(answered_at - sent_at)
            self._longest_call_s = max(self._longest_call_s, answered_at - sent_at)
            settled = self._gaps.answer(endpoint, answered_at)
        self._failovers(settled)

    def failure(self, number: int, sent_at: float, ended_at: float, error: BstarError) -> None:
        """Tell of a call that was lost."""
        with self._lock:
            self._longest_call_s = max(self._longest_call_s, ended_at - sent_at)
            self._gaps.failure(ended_at)
        self._print(
            Lost(time.time(), number, type(error).__name__, str(error)),
            f"lost: call {number}: {type(error).__name__}: {error}",
        )

    def event(self, event: Event) -> None:
        """Note a failover; it is reported when the new node has answered."""
        if isinstance(event, ActiveFound | FailedOver):
            self._epoch = event.epoch
        if isinstance(event, FailedOver):
            with self._lock:
                settled = self._gaps.failover(event)
            self._failovers(settled)

    def _failovers(self, settled: Sequence[Settled]) -> None:
        for event, gap_s in settled:
            gap = "no answer since" if gap_s is None else f"{gap_s:.3f} s without an answer"
            self._print(
                Failover(
                    time.time(),
                    event.from_endpoint,
                    event.to_endpoint,
                    event.reason,
                    event.epoch,
                    event.outstanding,
                    None if gap_s is None else round(gap_s, 6),
                ),
                f"failover: {event.from_endpoint} ({event.reason}) -> {event.to_endpoint}, epoch "
                f"{event.epoch}, {gap}, {event.outstanding} waiting",
            )

    def second(self, calls: SteadyCalls, client: HAClient) -> None:
        """Tell of the calls that ended since the last time."""
        now = time.monotonic()
        with self._lock:
            durations, self._durations = sorted(self._durations), []
            elapsed, self._since = now - self._since, now
        totals = _totals(calls, client)
        p50, p99, longest = (percentile(durations, share) for share in (0.5, 0.99, 1.0))
        line = Second(
            at=time.time(),
            **totals,
            waiting=totals["sent"] - totals["answered"] - totals["lost"],
            per_second=round(len(durations) / elapsed, 1) if elapsed else 0.0,
            p50_s=p50,
            p99_s=p99,
            max_s=longest,
            active=client.active,
            epoch=self._epoch,
        )
        self._print(
            line,
            f"calls {line.sent}  waiting {line.waiting}  lost {line.lost}  crossed {line.crossed}  | "
            f"{line.per_second:g}/s  p50 {_ms(p50)}  p99 {_ms(p99)}  max {_ms(longest)}  | "
            f"{line.active or 'no active node known'}",
        )

    def sum(self, calls: SteadyCalls, client: HAClient, seconds: float) -> bool:
        """Tell the sum; whether every call was answered with its own body."""
        with self._lock:
            settled = self._gaps.close()
        self._failovers(settled)
        totals = _totals(calls, client)
        line = Sum(
            at=time.time(),
            ok=totals["answered"] == totals["sent"] > 0 and totals["crossed"] == 0,
            **totals,
            seconds=round(seconds, 3),
            longest_call_s=round(self._longest_call_s, 6),
            longest_gap_s=round(self._gaps.longest_s if totals["answered"] else seconds, 6),
        )
        self._print(
            line,
            f"sum: {line.sent} calls in {line.seconds:g} s, {line.answered} answered, {line.lost} lost, "
            f"{line.crossed} crossed, {line.resends} sent again, {line.failovers} failovers; longest call "
            f"{line.longest_call_s:.3f} s, longest time without an answer {line.longest_gap_s:.3f} s",
        )
        if line.crossed > line.answered / 2:
            typer.echo(
                "crossed: most answers differ from the body that was sent: load needs a service that answers "
                "as echo does",
                err=True,
            )
        return line.ok

    def _print(self, line: msgspec.Struct, text: str) -> None:
        shown = f"{time.strftime('%T')}  {printable(text, _LINE_CHARS_MAX)}"
        try:
            typer.echo(json_line(line) if self._as_json else shown)
        except OutputLostError:
            # Not raised here: this may be a thread of the client's. The command ends with it.
            self._stop.set()


def _totals(calls: SteadyCalls, client: HAClient) -> dict[str, int]:
    """What became of the calls since the start."""
    counts, counters = calls.counts(), client.counters
    return {
        "sent": counts.sent,
        "answered": counts.answered,
        "lost": counts.failed,
        "crossed": counts.crossed,
        "resends": counters.resends,
        "failovers": counters.failovers,
    }


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of them do not exceed (nearest rank); None of none."""
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else None


def _ms(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{duration_s * 1000:.1f} ms"
