"""The schedules of the node that leads: each is a record, and its next time a deadline.

Only this node proposes Fired, and the command names the time that the schedule waits for. So each time has
its requests once, whoever leads when it comes.
"""

from heapq import heappop, heappush

from msgspec.structs import replace

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
        # Times and ids; an entry whose record has another time, or none, is void.
        self._heap: list[tuple[int, bytes]] = []

    def begin(self) -> list[Output]:
        """Read the schedules from the table."""
        return [_page_after(0)]

    def stop(self) -> None:
        """The node serves no more."""
        self._records.clear()
        self._heap.clear()

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
        heappush(self._heap, (record.due_ms, record.id))

    def forget(self, request: bytes) -> None:
        """A schedule was closed."""
        self._records.pop(request, None)

    def due(self, now_ms: int, room: int, bytes_max: int) -> list[tuple[Fired, int]]:
        """What follows from the times that have come, each with the bytes of its requests. It is returned
        once; ``note`` sets the next time.

        It ends with the one that uses up the ``room``, in requests. One has ``bytes_max`` at most, or a
        single request.
        """
        due: list[tuple[Fired, int]] = []
        while room > 0 and self._heap and self._heap[0][0] <= now_ms:
            due_ms, request = heappop(self._heap)
            record, size_bytes = self._records.get(request, (None, 0))
            if record is not None and record.due_ms == due_ms:
                fired = fire(record, now_ms, max(1, bytes_max // max(1, size_bytes)))
                room -= len(fired.runs_ms)
                due.append((fired, size_bytes * len(fired.runs_ms)))
        return due


def _page_after(seq: int) -> Search:
    return Search(b"", State.SCHEDULED, 0, seq, _PAGE, None, TOKEN)
