"""What the two stores of a pair say to each other, and which copy is the better one by what they say.

Frames: ``[BSTR01] [MessagePack, tagged array]`` in both directions. Every message names the ``run`` of its
sender (one run of one process), so what is left of an earlier run or connection is recognised. Whatever a
message says, ``decode`` has checked its shape: entries follow each other without a gap and are whole.

Two nodes meet with a Hello each. ``mismatch`` says whether their disks belong together, ``source`` whose copy
both go on from. ``Site`` adds what the arbiter knows.
"""

import enum
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError
from bstar.wire.epochs import EPOCH_MAX
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_broker.store.core.entries import START, Entry, History, Position
from bstar_broker.store.core.records import Record, Totals

HEADER = b"BSTR01"
# Every version's header begins so.
_FAMILY = b"BSTR"

# A part of table or log is far smaller; one entry or record may have a whole message of a client and its
# answer. A longer message is not ours: libzmq hangs up.
FRAME_BYTES_MAX = 3 * MESSAGE_BYTES_MAX
# Failovers that a Hello tells of. Logs that parted earlier than that are made equal by the table.
EPOCHS_MAX = 1_000

_Number = Annotated[int, Meta(ge=0, le=2**62)]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_Id = Annotated[bytes, Meta(max_length=16)]
_Run = Annotated[bytes, Meta(min_length=8, max_length=16)]
_Text = Annotated[str, Meta(max_length=1_024)]


class Standing(enum.IntEnum):
    """What a follower's copy is to the leader."""

    BEHIND = 0  # entries are committed without it
    JOINING = 1  # they are committed with it, and it lacks some of those committed before
    IN_SYNC = 2  # it has all that is committed


class Groups(enum.IntEnum):
    """Serial groups at a node. A release without them says nothing of them."""

    UNKNOWN = 0
    KNOWN = 1
    STORED = 2


_History = Annotated[list[Position], Meta(max_length=EPOCHS_MAX)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Who the sender is and what its disk holds.

    ``leads`` is the epoch in which it leads the store, 0 if it does not; ``wants``: its node serves, so it
    would lead. ``last`` is the last entry of its log, ``synced`` the number up to which that is on its disk,
    ``applied`` up to which it applies. ``asks``: answer it. ``is_doubtful``, ``gave_up``: so says its mark.
    ``must``: this copy is damaged, and had entries up to there; None if it is not. ``groups``: what the
    sender knows of serial groups, and has of them. ``is_sure``: it has followed the peer, and lacks nothing
    that was acknowledged.
    """

    pair: _Name
    role: Literal["primary", "backup"]
    run: _Run
    store: _Id
    is_in_sync: bool
    is_alone: bool
    leads: _Number
    wants: bool
    asks: bool
    last: Position
    synced: _Number
    applied: _Number
    epochs: _History
    is_doubtful: bool = False
    must: Position | None = None
    gave_up: Position | None = None
    groups: int = Groups.UNKNOWN
    is_sure: bool = False


class Entries(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Entries that follow ``prev``; none of them: a heartbeat. ``epoch`` is that in which the sender leads, 0
    if it only hands on what it has.

    ``committed`` and ``last`` are the sender's. ``standing``: what the reader's copy is to it. ``heard`` is
    the ``count`` of the last Ack that it read, 0 unless in sync. ``is_alone``: it commits without the reader.
    """

    run: _Run
    epoch: _Number
    prev: Position
    entries: list[Entry]
    committed: _Number
    last: _Number
    standing: Standing
    heard: _Number
    is_alone: bool


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The log of the sender is that of the reader, leading in ``epoch``, up to ``number``, and is synced.

    ``parts`` of a table are written, and synced once they are all. ``is_in_sync``: so says its stored mark.
    ``error``: its disk fails, why.
    """

    run: _Run
    epoch: _Number
    number: _Number
    count: _Number
    is_in_sync: bool
    parts: _Number = 0
    error: _Text = ""


class Part(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Part ``index`` of the sender's table. The last has ``applied``, the entry after which the table is so,
    with the time of that entry and the history of ``epochs`` up to it.
    """

    run: _Run
    epoch: _Number
    index: _Number
    is_alone: bool
    records: list[Record]
    applied: Position | None
    at_ms: _Number = 0
    epochs: _History = []


Message = Hello | Entries | Ack | Part

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> list[bytes]:
    """Frames ``[BSTR01] [MessagePack]``."""
    return [HEADER, _encode(message)]


def decode(frames: list[bytes]) -> Message:
    """Read a message of the peer's store. RemoteProtocolError if it is invalid."""
    header = frames[0] if frames else b""
    if header != HEADER:
        if header[: len(_FAMILY)] == _FAMILY:
            raise RemoteProtocolError(
                "store-version",
                f"the peer's store speaks {header[:16]!r}, this one {HEADER!r}: run one release on both",
            )
        raise RemoteProtocolError("store-header", f"no message of a store: {header[:16]!r}")
    if len(frames) != 2:
        raise RemoteProtocolError("store-frames", f"a message of a store has 2 frames, not {len(frames)}")
    try:
        message: Message = _decode(frames[1])
    except UNDECODABLE as error:
        raise RemoteProtocolError(
            "store-message", f"the peer's store sent what is no message: {error}"
        ) from error
    _check(message)
    return message


def _check(message: Message) -> None:
    match message:
        case Entries():
            _check_positions([message.prev])
            _check_entries(message.prev, message.entries)
        case Hello():
            _check_positions([*message.epochs, message.last])
            _check_positions([message.must or START])
            _check_positions([message.gave_up or START])
        case Part(applied=Position() as applied):
            _check_positions([*message.epochs, applied])


def _check_entries(prev: Position, entries: list[Entry]) -> None:
    for entry in entries:
        if entry.number != prev.number + 1 or not prev.epoch <= entry.epoch <= EPOCH_MAX:
            raise RemoteProtocolError("store-order", f"entry {entry.position} does not follow {prev}")
        if entry.at_ms < 0 or not entry.is_whole:
            raise RemoteProtocolError(
                "store-checksum",
                f"entry {entry.position} is damaged: its checksum is not that of its content",
            )
        prev = entry.position


def _check_positions(positions: list[Position]) -> None:
    """The first numbers of epochs, and the last entry."""
    for position in positions:
        if not (0 <= position.epoch <= EPOCH_MAX and 0 <= position.number <= 2**62):
            raise RemoteProtocolError("store-position", f"no position: {position}")
    for one, next_one in pairwise(positions[:-1]):
        if one.epoch >= next_one.epoch or one.number >= next_one.number:
            raise RemoteProtocolError("store-history", f"epoch {next_one} does not come after {one}")
    if len(positions) > 1 and not positions[-2] <= positions[-1]:
        raise RemoteProtocolError(
            "store-history", f"the last entry {positions[-1]} is before {positions[-2]}"
        )


NO_GROUPS = "the peer's release has no serial groups: install this node's release there"

# --- two nodes meet -----------------------------------------------------------------------------------------

# What a copy vouches for.
NOTHING, IN_SYNC, ALONE = range(3)


class Source(enum.Enum):
    """Whose copy both go on from."""

    OWN = enum.auto()
    PEER = enum.auto()
    NEITHER = enum.auto()  # no copy is known to be whole


def mismatch(own: Hello, peer: Hello) -> str:
    """Why the peer's store does not fit this one, and what to do; "" if it fits."""
    if peer.pair != own.pair:
        return (
            f"its store is of the pair {peer.pair}, this one of {own.pair}: correct store.link of one of them"
        )
    if peer.role == own.role:
        return f"it is a {peer.role}, too: correct node.role of one of them"
    if peer.store and own.store and peer.store != own.store:
        return (
            f"the disks hold two stores, {own.store.hex()} here and {peer.store.hex()} there: keep one, move "
            "the other node's store.directory away and start it again"
        )
    if own.groups == Groups.STORED and peer.groups == Groups.UNKNOWN:
        return NO_GROUPS
    return ""


def groups_of(totals: Totals) -> Groups:
    """What a node of this release says of groups, by its table."""
    return Groups.STORED if totals.grouped else Groups.KNOWN


def source(own: Hello, peer: Hello) -> Source:
    """Compare the copies of two nodes of which none leads."""
    if not own.store and not peer.store and own.must is peer.must is None:
        # A new pair.
        return _wanted(own, peer)
    own_rank, peer_rank = (_rank_beside(own, peer), own.last), (_rank_beside(peer, own), peer.last)
    if own_rank[0] == peer_rank[0] == NOTHING:
        return Source.NEITHER
    if own_rank == peer_rank:
        return _wanted(own, peer)
    if not has_all_of(own, peer) or not has_all_of(peer, own):
        return Source.NEITHER
    return Source.OWN if own_rank > peer_rank else Source.PEER


def _rank_beside(hello: Hello, other: Hello) -> int:
    """What a copy vouches for, or the other for it: a leader that gave its own up, because this had all.

    Beside a new disk a copy in sync vouches for nothing, if it was not sure: it may have missed what was
    acknowledged on the disk before. In a pair that begins, and has no request yet, there was none.
    """
    history = History(hello.epochs, hello.last)
    is_heir = other.gave_up is not None and hello.store != b"" and hello.must is None
    if is_heir and other.gave_up is not None and history.has(other.gave_up):
        return max(rank(hello), IN_SYNC)
    has_begun = hello.last.number > len(hello.epochs)
    is_beside_new = other.store == b"" and has_begun and not hello.is_sure
    return NOTHING if is_beside_new and rank(hello) == IN_SYNC else rank(hello)


def rank(hello: Hello) -> int:
    """What this copy vouches for: NOTHING, IN_SYNC or ALONE. A damaged one vouches for nothing."""
    if not hello.store or hello.must is not None:
        return NOTHING
    return ALONE if hello.is_alone else IN_SYNC if hello.is_in_sync else NOTHING


def has_all_of(damaged: Hello, other: Hello) -> bool:
    """True if ``damaged`` is whole, or ``other`` has all that was acknowledged there.

    If that copy was not alone, the other one in sync has. If it was, its last entry shows whether the other
    got what it had.
    """
    if damaged.must is None or not damaged.is_alone or other.is_alone:
        return True
    return History(other.epochs, other.last).has(damaged.must)


def _wanted(own: Hello, peer: Hello) -> Source:
    """The copies are equal: that of the node that is to lead."""
    is_own = own.role == "primary" if own.wants == peer.wants else own.wants
    return Source.OWN if is_own else Source.PEER
