"""The messages between the stores: what is sent is read, and garbage is a RemoteProtocolError."""

from __future__ import annotations

import random

import msgspec
import pytest

from bstar.errors import RemoteProtocolError
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.peer import (
    HEADER,
    NO_GROUPS,
    Ack,
    Entries,
    Groups,
    Hello,
    Message,
    Part,
    Standing,
    decode,
    encode,
    groups_of,
    mismatch,
)
from bstar_broker.store.core.records import Record, Totals

RUN = b"r" * 16
FIRST = Entry.of(Position(1, 1), 5, b"x")
SECOND = Entry.of(Position(3, 2), 6, b"y")
RECORD = Record(1, b"i" * 16, b"price", "shop", [b"body"], 1, 2, 3, 4, 5, 6, 7)
HELLO = Hello(
    "p", "primary", RUN, b"s" * 16, True, False, 3, True, False,
    Position(3, 2), 2, 1, [Position(1, 1), Position(3, 2)],
)  # fmt: skip
ENTRIES = Entries(RUN, 3, START, [FIRST, SECOND], 1, 2, Standing.IN_SYNC, 7, False)
PART = Part(RUN, 3, 0, False, [RECORD], Position(3, 2), 6, [Position(1, 1), Position(3, 2)])
MESSAGES: list[Message] = [HELLO, ENTRIES, Ack(RUN, 3, 2, 9, True, 0, "no space"), PART]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_read(message: Message) -> None:
    frames = encode(message)
    assert frames[0] == HEADER
    assert decode(frames) == message


def changed(message: Message, **fields: object) -> list[bytes]:
    return encode(msgspec.structs.replace(message, **fields))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "store-header"),
        ([b"GARBAGE"], "store-header"),
        ([b"BSTR02", b""], "store-version"),
        ([HEADER], "store-frames"),
        ([HEADER, b"", b""], "store-frames"),
        ([HEADER, b""], "store-message"),
        ([HEADER, b"\x91\x05"], "store-message"),
        ([HEADER, b"\x91" * 100_000], "store-message"),
        (changed(HELLO, run=b""), "store-message"),
        (changed(HELLO, role="observer"), "store-message"),
        (changed(HELLO, pair="p" * 65), "store-message"),
        (changed(HELLO, epochs=[Position(1, 1)] * 1_001), "store-message"),
        (changed(HELLO, epochs=[Position(3, 2), Position(1, 1)]), "store-history"),
        (changed(HELLO, last=Position(1, 1)), "store-history"),
        (changed(HELLO, last=Position(-1, 2)), "store-position"),
        (changed(HELLO, synced=-1), "store-message"),
        (changed(ENTRIES, standing=3), "store-message"),
        (changed(ENTRIES, entries=[SECOND]), "store-order"),
        (changed(ENTRIES, entries=[FIRST, FIRST]), "store-order"),
        (changed(ENTRIES, prev=Position(5, 0)), "store-order"),
        (changed(ENTRIES, entries=[Entry(1, 1, 5, b"z", FIRST.checksum)]), "store-checksum"),
        (changed(ENTRIES, entries=[Entry.of(Position(1, 1), -5, b"x")]), "store-checksum"),
        (changed(PART, applied=Position(2, 1)), "store-history"),
        (changed(PART, epochs=[Position(1, 0), Position(3, 0)]), "store-history"),
    ],
)
def test_what_is_no_message_says_why(frames: list[bytes], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode(frames)
    assert raised.value.reason == reason


def test_garbage_raises_a_protocol_error_and_nothing_else() -> None:
    rng = random.Random(1)
    refused = 0
    for _ in range(20_000):
        octets = bytearray(encode(rng.choice(MESSAGES))[1])
        for _ in range(rng.randint(1, 4)):
            octets[rng.randrange(len(octets))] = rng.randrange(256)
        try:
            decode([HEADER, bytes(octets[: rng.randint(1, 2 * len(octets))])])
        except RemoteProtocolError:
            refused += 1
    assert refused > 10_000


def test_a_store_with_groups_is_not_given_to_a_release_that_knows_none() -> None:
    """Its frame ends before that field; of the table it would take the records without their groups."""
    old = msgspec.msgpack.decode(encode(msgspec.structs.replace(HELLO, role="backup"))[1])[:-1]
    [peer] = [decode([HEADER, msgspec.msgpack.encode(old)])]
    assert isinstance(peer, Hello)
    own = msgspec.structs.replace(HELLO, groups=groups_of(Totals(pending=1, grouped=1)))
    assert mismatch(own, peer) == NO_GROUPS
    assert mismatch(own, msgspec.structs.replace(peer, groups=Groups.KNOWN)) == ""
    assert mismatch(msgspec.structs.replace(own, groups=groups_of(Totals(pending=1))), peer) == ""
