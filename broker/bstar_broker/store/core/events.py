"""What the store's machine asks of its shell (outputs) and hears from it (inputs).

The disk carries out its orders in sequence. ``Write``s that wait together become one transaction with one
sync. Links may lose messages, but never reorder those of one connection.
"""

import msgspec

from bstar.wire.arbiter import SetAnswer, SetClaim
from bstar_broker.core.outputs import StoreInput, StoreOutput
from bstar_broker.store.core.commands import Command
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.records import Record, Totals

# --- outputs: to the disk -----------------------------------------------------------------------------------


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What a node keeps of itself beside log and table.

    ``is_in_sync``: nothing that was acknowledged, as far as this node can know, is missing here.
    ``is_alone``: it leads, or led last, and what it acknowledged since may be on its disk only. ``leader``:
    the role that led when it last knew. ``pair`` and ``store`` (16 bytes, random) name the pair and its
    first store: disks of two pairs never mix. ``is_doubtful``: it was in sync, its content was not replaced
    since, and a leader may have committed without it: the arbiter's set decides. ``gave_up``: this copy was
    damaged while it led, and began anew; a copy that has this entry has all that was acknowledged.
    """

    pair: str
    role: str
    store: bytes
    is_in_sync: bool
    is_alone: bool
    leader: str = ""
    is_doubtful: bool = False
    gave_up: Position | None = None


class Write(StoreOutput, frozen=True, gc=False):
    """One order to the disk: first drop the entries above ``keep_to``, then append ``entries``, then apply
    the log up to entry ``apply_to``, then store ``mark``. None changes nothing.

    Answers: ``Applied`` for the entries applied now, which are on this disk and, as the machine knows,
    wherever they must be; then ``Written`` when entries and mark are synced. ``apply_to`` may be above the
    last entry on the disk: those above are applied when they have come, and no order names them again.
    ``order`` rises with each Write and Import: ``Written`` names the last one that it answers.
    """

    entries: tuple[Entry, ...] = ()
    keep_to: int | None = None
    apply_to: int = 0
    mark: Mark | None = None
    order: int = 0
    # An operator goes on from this copy, which is damaged.
    is_mended: bool = False


class Rebuild(StoreOutput, frozen=True, gc=False):
    """The peer has all that this damaged copy had: set it aside, drop the orders before this one, and begin
    an empty copy with this mark. Answer: ``Opened``.
    """

    mark: Mark


class Trim(StoreOutput, frozen=True, gc=False):
    """Drop the applied entries below ``number`` from the log: every copy that counts has them. No answer;
    the disk does it bit by bit.
    """

    number: int


class ReadLog(StoreOutput, frozen=True, gc=False):
    """Answer with ``LogRead``: whole entries from number ``begin``, about ``size_bytes`` of them."""

    begin: int
    size_bytes: int
    token: int = 0


class Find(StoreOutput, frozen=True, gc=False):
    """Answer with ``Found``."""

    id: bytes
    token: int


class Due(StoreOutput, frozen=True, gc=False):
    """Answer with ``DueFound``: pending records of this service that are due at ``now_ms``, in the order of
    priority (highest first) and seq, without those in ``skip``; ``limit`` of them, ``size_bytes`` in all
    (at least one). Of each group only its first pending record counts, due or not.
    """

    service: bytes
    now_ms: int
    limit: int
    size_bytes: int
    skip: frozenset[bytes] = frozenset()


class Search(StoreOutput, frozen=True, gc=False):
    """Answer with ``Found``: those of ``bstar.wire.durable.Filter``, in order of seq; ``limit`` of them and
    ``size_bytes`` in all, one at least. ``submitted_before_ms`` 0 is no bound.
    """

    service: bytes
    state: int
    submitted_before_ms: int
    after: int
    limit: int
    owner: str | None
    token: int
    size_bytes: int = 1 << 20


class Export(StoreOutput, frozen=True, gc=False):
    """Answer with ``Exported``: the records with a seq above ``after``, about ``size_bytes`` of them.

    ``after`` 0 begins an export, of the table after the entry that was applied last. Its later parts are of
    this same table, whatever is applied meanwhile; so all have one ``applied``, and the log from there on
    (which must not be trimmed) makes the copy current. A part with another ``applied`` says that the disk had
    to give the export up (no request for a minute): begin again with 0. There is one export at a time.
    """

    after: int
    size_bytes: int


class Import(StoreOutput, frozen=True, gc=False):
    """Part of another node's table, kept beside table and log. The last sets ``applied``: then the new table
    takes the place of the old, and a new log begins after ``applied`` with this history of ``epochs``, in
    one transaction. The first drops parts that came before. Answers: ``Replaced`` after the last, and
    ``Written``.
    """

    is_first: bool
    records: list[Record]
    applied: Position | None
    at_ms: int = 0
    epochs: tuple[Position, ...] = ()
    order: int = 0


DiskOutput = Write | Trim | ReadLog | Find | Due | Search | Export | Import | Rebuild

# --- outputs: to the peer -----------------------------------------------------------------------------------


class ToPeer(StoreOutput, frozen=True, gc=False):
    """Send these frames to the peer. They are lost if there is no connection."""

    frames: list[bytes]


# --- outputs: to the arbiter --------------------------------------------------------------------------------


class AskArbiter(StoreOutput, frozen=True, gc=False):
    """Ask the arbiter, now or never: the next heartbeat asks again."""

    number: int
    claim: SetClaim


# --- inputs: from the disk ----------------------------------------------------------------------------------


class Opened(StoreInput, frozen=True):
    """The disk was read. ``epochs``: the first number of each epoch in the log's history, ascending, kept
    beyond trimmed entries. ``last`` is the last entry, ``first`` the number of the first that is still there.
    """

    mark: Mark | None
    last: Position
    first: int
    applied: int
    at_ms: int
    epochs: list[Position]
    totals: Totals
    # Services with pending requests, and when the next of each is due.
    due: dict[bytes, int]
    # Why this copy must be replaced by the peer's, "" if it need not; and the last entry that it had.
    damage: str = ""
    must: Position = START


class Damaged(StoreInput, frozen=True):
    """Something of this copy is damaged, which shows while it runs. It comes once; a restart knows of it."""

    text: str


class Replaced(StoreInput, frozen=True):
    """The table is another node's now. ``totals`` and ``due`` are those of ``Opened``."""

    totals: Totals
    due: dict[bytes, int]


class Written(StoreInput, frozen=True, gc=False):
    """All orders up to ``order`` are synced; ``last`` is the last entry on the disk. Later orders are
    under way.

    ``error``: they are not synced, why, and what to do; ``last`` is what is. The disk keeps these orders and
    tries them again with the next order, and every second: none has to be given again, and a ``keep_to``
    takes entries back.
    """

    last: Position
    order: int
    error: str = ""


class Change(msgspec.Struct, frozen=True, gc=False):
    """What applying one command did to one request. ``old`` and ``new`` are None where it is not there.

    ``old`` is ``new`` if nothing changed: it was known, or the command came too late. Both are None if the
    record is another owner's. An entry's changes stand in the order of its commands: one for each row of a
    Submitted and each id of a Closed, one for other commands of one request, none for Began, and those of a
    Swept, which is the last command of its entry.
    """

    command: Command
    id: bytes
    old: Record | None
    new: Record | None
    is_other: bool = False  # a submit of other content, or by another owner, under an id that is known


class Applied(StoreInput, frozen=True, gc=False):
    """The entry ``number`` has been applied."""

    number: int
    changes: list[Change]
    totals: Totals


class LogRead(StoreInput, frozen=True, gc=False):
    """``entries`` from ``begin``; empty if they are not there any more, or the first is damaged."""

    begin: int
    entries: list[Entry]
    token: int = 0


class Found(StoreInput, frozen=True, gc=False):
    """The records of a ``Find`` or ``Search``. ``has_more``: the limits cut it.

    ``error``: a record is damaged and not served; which, and what to do. It says so of a ``Find`` only: a
    ``Search`` leaves damaged records out.
    """

    token: int
    records: list[Record]
    has_more: bool = False
    error: str = ""


class DueFound(StoreInput, frozen=True, gc=False):
    """The records of a ``Due``. ``has_more``: the limit cut it. ``next_ms``: when the next pending record of
    the service that is not due yet becomes due, or 0.
    """

    service: bytes
    records: list[Record]
    has_more: bool
    next_ms: int


class Exported(StoreInput, frozen=True, gc=False):
    """A part of the table after entry ``applied``. ``after``: its last seq. ``is_last``: there is no more.

    The records are encoded as they will travel, so no disk decodes them.
    """

    after: int
    records: list[msgspec.Raw]
    is_last: bool
    applied: Position
    at_ms: int


DiskInput = Opened | Damaged | Replaced | Written | Applied | LogRead | Found | DueFound | Exported

# --- inputs: from the link ----------------------------------------------------------------------------------


class PeerSaid(StoreInput, frozen=True, gc=False):
    """A message of the peer's store."""

    frames: list[bytes]


class PeerLost(StoreInput, frozen=True, gc=False):
    """The connection to the peer's store broke; it is connected anew by itself."""


LinkInput = PeerSaid | PeerLost

# --- inputs: from the arbiter -------------------------------------------------------------------------------


class ArbiterSaid(StoreInput, frozen=True, gc=False):
    """The answer to question ``number``. ``answer`` None: the arbiter knows nothing of stores."""

    number: int
    answer: SetAnswer | None
