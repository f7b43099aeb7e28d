"""The schedules of the node that leads: each is a record, and its next time a deadline.

Only this node proposes Fired, and the command names the time that the schedule waits for. So each time has
its requests once, whoever leads when it comes.
"""

from msgspec.structs import replace

from bstar.base.deadlines import Deadlines
from bstar.wire.durable import State
from bstar_broker.core.outputs import Output
from bstar_broker.store.core.commands import Fired
from bstar_broker.store.core.events import Found, Search
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.times import fire

# The token of its own question to the disk; those of clients begin at 1.
TOKEN = 0
_PAGE = 500


class Schedules:
    """Runs between ``begin`` and ``stop``."""

    def __init__(self) -> None:
        # Without its body, and the bytes of it.
        self._records: dict[bytes, tuple[Record, int]] = {}
        self._deadlines: Deadlines[bytes] = Deadlines(self._is_due)

    def _is_due(self, request: bytes, due_ms: float) -> bool:
        record, _ = self._records.get(request, (None, 0))
        return record is not None and record.due_ms == due_ms

    def begin(self) -> list[Output]:
        """Read the schedules from the table."""
        return [_page_after(0)]

    def stop(self) -> None:
        """The node serves no more."""
        self._records.clear()
        self._deadlines = Deadlines(self._is_due)

    def found(self, found: Found) -> list[Output]:
        """A page of the table."""
        for record in found.records:
            # What has changed meanwhile is reported later, and counts.
            if record.id not in self._records:
                self.note(record)
        return [_page_after(found.records[-1].seq)] if found.has_more else []

    def note(self, record: Record) -> None:
        """A schedule is new, has another time, or has ended."""
        if record.state != State.SCHEDULED:
            self.forget(record.id)
            return
        # A body may be large, and its place is the disk.
        self._records[record.id] = replace(record, body=[], headers=b""), record.size_bytes
        self._deadlines.add(record.id, record.due_ms)
        self._deadlines.tidy(len(self._records))

    def forget(self, request: bytes) -> None:
        """A schedule was closed."""
        self._records.pop(request, None)

    def next_due_ms(self) -> float:
        """When a time comes, perhaps one of a schedule that has another by now; inf without any."""
        return self._deadlines.next_deadline()

    def due(self, now_ms: int, room: int, bytes_max: int) -> list[tuple[Fired, int]]:
        """What follows from the times that have come, each with the bytes of its requests. It is returned
        once; ``note`` sets the next time.

        It ends with the one that uses up the ``room``, in requests. One has ``bytes_max`` at most, or a
        single request.
        """
        due: list[tuple[Fired, int]] = []
        if room <= 0:
            return due
        for request in self._deadlines.pop_due(now_ms):
            record, size_bytes = self._records[request]
            fired = fire(record, now_ms, max(1, bytes_max // max(1, size_bytes)))
            due.append((fired, size_bytes * len(fired.runs_ms)))
            room -= len(fired.runs_ms)
            if room <= 0:
                break
        return due


def _page_after(seq: int) -> Search:
    return Search(b"", State.SCHEDULED, 0, seq, _PAGE, None, TOKEN)
