"""A process's journal: what happened, as lines of JSON in a directory (``bstar.records``, docs/journal.md).

    with Journal(JournalOptions("journal"), pair="shop", node="primary", source="broker") as journal:
        journal.write(PeerLost, now, reason="silent", silent_us=300_000)

A caller hands a record over and goes on; a thread of the journal writes it. That costs a request about a
microsecond, never blocks and never raises. The journal counts the records that it drops, and records that.
"""

from bstar.journal.buffer import JournalCounters, Make
from bstar.journal.journal import Journal
from bstar.journal.options import JournalOptions
from bstar.journal.segments import SegmentName

__all__ = ["Journal", "JournalCounters", "JournalOptions", "Make", "SegmentName"]
