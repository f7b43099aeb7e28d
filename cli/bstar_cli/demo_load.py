"""The demo's client: a process that calls a service at a steady rate until its standard input ends.

It writes a file of progress ten times a second. On a stop it waits for outstanding calls. It writes when each
call was sent and answered, on the monotonic clock that all processes of a machine share.
"""

import os
import select
import sys
from pathlib import Path

import msgspec

from bstar.errors import BstarError
from bstar_cli.engine import Counts, SteadyCalls
from bstar_client import HAClient, JournalSettings

PROGRESS_S = 0.1
# Requests outstanding at most: without answers the load waits instead of piling up.
WINDOW = 64
# Far longer than any failover, so that a call fails only if its request is lost.
CALL_TIMEOUT_S = 15.0


class Outcome(msgspec.Struct, frozen=True):
    """All that happened. ``calls`` are the times of sending and of the reply, of those that were answered."""

    sent: int
    crossed: int
    calls: list[tuple[float, float]]
    failures: list[str]
    resends: int
    failovers: int


def main(arguments: list[str]) -> int:
    """``ENDPOINTS SERVICE RATE FOLDER [JOURNALS PAIR]``: ``progress`` and ``outcome`` go to the folder."""
    endpoints, service, rate, place, *journaled = arguments
    folder = Path(place)
    journal: JournalSettings | None = None
    if journaled:
        directory, pair = journaled
        journal = JournalSettings(directory, pair=pair, name="client")
    calls: list[tuple[float, float]] = []
    failures: list[str] = []

    def failed(number: int, error: BstarError) -> None:
        failures.append(f"request {number}: {type(error).__name__}: {error}")

    with HAClient(endpoints.split(","), timeout=CALL_TIMEOUT_S, journal=journal) as client:
        load = SteadyCalls(
            client,
            service,
            rate=float(rate),
            window=WINDOW,
            on_answer=lambda sent, answered, _: calls.append((sent, answered)),
            on_failure=failed,
        )
        while not select.select([sys.stdin], [], [], PROGRESS_S)[0] or os.read(0, 1024):
            _tell(load.counts(), folder)
        load.finish()
        counts = load.counts()
        _tell(counts, folder)
        outcome = Outcome(
            counts.sent, counts.crossed, calls, failures, client.counters.resends, client.counters.failovers
        )
    (folder / "outcome").write_bytes(msgspec.json.encode(outcome))
    return 0


def _tell(counts: Counts, folder: Path) -> None:
    new = folder / "progress.new"
    new.write_bytes(msgspec.json.encode(counts))
    # A rename is one step, so no reader sees half a file.
    new.replace(folder / "progress")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
