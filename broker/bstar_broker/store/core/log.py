"""The log of this node as its machine knows it: what was ordered from the disk, and what of it is synced.

Orders are numbered; ``written`` says which are synced. ``synced`` is the number up to which the log as it is
in memory stands on the disk, also when an order dropped and replaced entries meanwhile. The last entries are
kept in memory, to send them again without a question to the disk.
"""

from collections import deque
from collections.abc import Sequence

from bstar_broker.store.core.entries import Entry, History, Position
from bstar_broker.store.core.events import Import, Mark, Opened, Write, Written
from bstar_broker.store.core.peer import Part

# Entries kept in memory. A follower that was away for a moment needs no more.
CACHE_BYTES_MAX = 16 << 20
# The sizes of the log are noted once for so many bytes.
_STEP_BYTES = 1 << 20


class _Cache:
    """The last entries, by number."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._size_bytes = 0

    def remember(self, entry: Entry) -> None:
        self.entries[entry.number] = entry
        self._size_bytes += len(entry.commands)
        while self._size_bytes > CACHE_BYTES_MAX and len(self.entries) > 1:
            self.forget(next(iter(self.entries)))

    def forget(self, number: int) -> None:
        entry = self.entries.pop(number, None)
        if entry is not None:
            self._size_bytes -= len(entry.commands)


class _Marks:
    """Marks that were ordered, and the one that is stored."""

    def __init__(self, mark: Mark | None) -> None:
        self.ordered = self.stored = mark
        self.under_way: deque[tuple[int, Mark]] = deque()


class Log:
    """``apply_to``: up to which entry the disk was asked to apply; that is never taken back. ``error``: the
    disk fails, why.
    """

    def __init__(self, opened: Opened) -> None:
        self.history = History(opened.epochs, opened.last)
        self.first = opened.first
        self.synced = opened.last.number
        self.applied = self.apply_to = opened.applied
        self.at_ms = opened.at_ms
        self._marks = _Marks(opened.mark)
        self.error = ""
        self._order = self._written = 0
        # Orders under way and the number of the last entry that they leave.
        self._under_way: deque[tuple[int, int]] = deque()
        self._cache = _Cache()
        # Why this copy lacks something that it had, "" if it does not; and the last entry that it had.
        self.damage = opened.damage
        self._must = opened.must
        self._is_mended = False
        # Bytes appended so far, now and then: (number, bytes up to there).
        self._sizes: deque[tuple[int, int]] = deque([(opened.last.number, 0)])

    @property
    def last(self) -> Position:
        """The last entry, synced or not."""
        return self.history.last

    @property
    def is_marked(self) -> bool:
        """True if ``mark`` is on the disk, and no other can be."""
        return not self._marks.under_way

    @property
    def mark(self) -> Mark | None:
        """The mark that was ordered last."""
        return self._marks.ordered

    @property
    def stored(self) -> Mark | None:
        """The mark that was stored last."""
        return self._marks.stored

    @property
    def must(self) -> Position:
        """The last entry of this copy, or that it had before it was damaged."""
        return max(self._must, self.last) if self.damage else self.last

    def mend(self) -> None:
        """An operator goes on from this copy as it is: the next mark stores that."""
        self._is_mended = self.damage != ""
        self.damage = ""

    def is_written(self, order: int) -> bool:
        """True if this order is synced."""
        return order <= self._written

    # --- orders ---------------------------------------------------------------------------------------------

    def write(
        self,
        entries: Sequence[Entry] = (),
        *,
        keep_to: int | None = None,
        apply_to: int = 0,
        mark: Mark | None = None,
    ) -> Write:
        """The order for this change of the log, which is made in memory at once."""
        if keep_to is not None:
            self._drop_above(keep_to)
        for entry in entries:
            self.history.append(entry.position)
            self.at_ms = max(self.at_ms, entry.at_ms)
            self._cache.remember(entry)
            self._note_size(entry)
        self.apply_to = max(self.apply_to, apply_to)
        order = self._next_order()
        if mark is not None:
            self._marks.ordered = mark
            self._marks.under_way.append((order, mark))
        is_mended = self._is_mended and mark is not None
        self._is_mended = self._is_mended and not is_mended
        return Write(tuple(entries), keep_to, apply_to, mark, order, is_mended)

    def import_part(self, part: Part) -> Import:
        """The order for a part of the peer's table: the last replaces log and table."""
        if part.applied is not None:
            self._drop_all(History(part.epochs, part.applied))
            self.at_ms = part.at_ms
        order = self._next_order()
        return Import(part.index == 0, part.records, part.applied, part.at_ms, tuple(part.epochs), order)

    def _next_order(self) -> int:
        self._order += 1
        self._under_way.append((self._order, self.last.number))
        return self._order

    def _drop_above(self, number: int) -> None:
        assert number >= self.apply_to, "what was applied cannot be dropped"
        for dropped in range(number + 1, self.last.number + 1):
            self._cache.forget(dropped)
        self.history.keep_to(number)
        self.synced = min(self.synced, number)
        self._under_way = deque((order, min(last, number)) for order, last in self._under_way)
        while len(self._sizes) > 1 and self._sizes[-1][0] > number:
            self._sizes.pop()

    def _drop_all(self, history: History) -> None:
        self.history = history
        number = history.last.number
        self.first = number + 1
        self.applied = self.apply_to = number
        self.synced = 0
        self._under_way = deque((order, 0) for order, _ in self._under_way)
        self._cache = _Cache()
        self._sizes = deque([(number, 0)])

    def written(self, given: Written) -> None:
        """What the disk says."""
        self.error = given.error
        if given.error:
            return
        self._written = max(self._written, given.order)
        while self._under_way and self._under_way[0][0] <= given.order:
            self.synced = self._under_way.popleft()[1]
        marks = self._marks
        while marks.under_way and marks.under_way[0][0] <= given.order:
            marks.stored = marks.under_way.popleft()[1]

    # --- the last entries -----------------------------------------------------------------------------------

    def read(self, begin: int, size_bytes: int) -> list[Entry]:
        """Entries from number ``begin``, about ``size_bytes`` of them; none if they are not in memory."""
        entries: list[Entry] = []
        known, number = self._cache.entries, begin
        while size_bytes > 0 and (entry := known.get(number)) is not None:
            entries.append(entry)
            size_bytes -= len(entry.commands)
            number += 1
        return entries

    def _note_size(self, entry: Entry) -> None:
        total = self._sizes[-1][1] + len(entry.commands)
        if len(self._sizes) > 1 and total - self._sizes[-2][1] < _STEP_BYTES:
            self._sizes.pop()
        self._sizes.append((entry.number, total))

    def beyond(self, size_bytes: int) -> int:
        """The number above which the log has about so many bytes, of those appended in this run."""
        total = self._sizes[-1][1]
        while len(self._sizes) > 1 and total - self._sizes[1][1] >= size_bytes:
            self._sizes.popleft()
        return self._sizes[0][0] if total - self._sizes[0][1] >= size_bytes else 0
