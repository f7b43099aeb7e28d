"""A process's journal: what happened, as lines of JSON in a directory (``bstar.records``, docs/journal.md).

    with Journal(JournalOptions("journal"), pair="shop", node="primary", source="broker") as journal:
        journal.write(PeerLost, now, reason="silent", silent_us=300_000)

Whoever has something to tell hands it over and goes on; a thread of the journal's own does the rest. It takes
nothing from the path of a request but about a microsecond, it never blocks and never raises. What it cannot
keep it counts, and says so in the journal itself.
"""

from bstar.journal.buffer import JournalCounters, Make
from bstar.journal.journal import Journal
from bstar.journal.options import JournalOptions
from bstar.journal.segments import SegmentName

__all__ = ["Journal", "JournalCounters", "JournalOptions", "Make", "SegmentName"]
