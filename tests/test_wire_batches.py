"""REQUESTS and FINALS byte by byte, from docs/protocol/native.md 3.8, and what is refused."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar import wire
from bstar.errors import RemoteProtocolError
from bstar.wire import batches, native, native_broker
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from bstar.wire.messages import READS_BATCHES, Finals, NodeStatus, Ready, Requests

CLIENT_ID = bytes(range(16))
WHO = "000102030405060708090a0b0c0d0e0f.0000000000000000"


def octets(text: str) -> bytes:
    return bytes.fromhex(text.replace(".", ""))


REQUESTS = octets(f"b5010e00.{WHO}.0000000000000003.00000000.04.6563686f")
FINALS = octets(f"b5010f00.{WHO}.0000000000000003.00000000.00")
REQUEST_TABLE = octets("0000000000000007.00000bb8.00000002.0000000000000008.00000000.00000000")
FINAL_TABLE = octets("0000000000000008.00000003.0000000000000007.00000000")

rows = st.dictionaries(
    st.integers(0, batches.KEYED_NUMBER_MIN - 1),
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=20)),
    min_size=1,
    max_size=20,
)


@pytest.mark.requirement("BSN-G-15")
def test_a_batch_of_requests_is_laid_out_as_specified() -> None:
    made = native.encode_requests(CLIENT_ID, b"echo", [7, 8], [3000, 0], [b"hi", b""], epoch=3)
    assert made == [REQUESTS, REQUEST_TABLE, b"hi"]
    message = wire.decode([b"id", *made])
    assert message == Requests(
        b"id", CLIENT_ID, b"echo", (7, 8), (3000, 0), (2, 0), REQUEST_TABLE, b"hi", 3, False
    )


@pytest.mark.requirement("BSN-G-15")
def test_a_batch_of_replies_is_laid_out_as_specified() -> None:
    made = native.encode_finals(CLIENT_ID, 3, [8, 7], [b"you", b""])
    assert made == [FINALS, FINAL_TABLE, b"you"]
    message = wire.decode([b"id", *made])
    assert message == Finals(b"id", CLIENT_ID, (8, 7), (3, 0), FINAL_TABLE, b"you", FINALS)


def test_what_a_worker_gets_is_the_client_s_table_with_an_age() -> None:
    made = native_broker.CODEC.requests(b"w", CLIENT_ID, REQUEST_TABLE, b"hi", 10, 3, True)
    assert made[:1] + made[2:] == [b"w", REQUEST_TABLE, b"hi"]
    message = native.decode(made[1:])
    assert (message.command, message.flags, message.epoch, message.value) == (native.REQUESTS, 1, 3, 10)
    assert batches.request_rows(message.body, 0) == ((7, 8), (3000, 0), (2, 0), False)


EXTENDED_TABLE = octets("0000000000000007.00000bb8.80000009.0000000000000008.00000000.00000003")


@pytest.mark.requirement("BSN-G-20")
def test_rows_with_extensions_are_laid_out_as_specified() -> None:
    made = native.encode_requests(
        CLIENT_ID, b"echo", [7, 8], [3000, 0], [b"hi", b"you"], epoch=3, extensions=[b"\x40\x00\x02ab", b""]
    )
    assert made == [REQUESTS, EXTENDED_TABLE, b"\x00\x05\x40\x00\x02abhiyou"]
    message = wire.decode([b"id", *made])
    assert isinstance(message, Requests)
    assert (message.lengths, message.is_extended) == ((9, 3), True)
    bodies = batches.bodies_of(message.blob, message.lengths)
    assert batches.take_extensions(bodies, message.table, 0, is_extended=True) == [b"\x40\x00\x02ab", b""]
    assert bodies == [b"hi", b"you"]


@pytest.mark.requirement("BSN-G-20")
@pytest.mark.parametrize(
    ("length", "blob"),
    [(0, b""), (1, b"x"), (2, b"\x00\x01"), (4, b"\x00\x03ab"), (8_195, b"\x20\x01" + bytes(8_193))],
)
def test_extensions_longer_than_their_row_or_their_bound_are_refused(length: int, blob: bytes) -> None:
    table = row(1, 0) + row(2, length | 1 << 31) + row(3, 0)
    with pytest.raises(RemoteProtocolError, match=r"batch-blob: .* extensions"):
        wire.decode([b"id", REQUESTS, table, blob])


@given(rows, st.lists(st.binary(max_size=12), min_size=20, max_size=20), st.integers(0, 19))
def test_any_part_of_a_batch_gives_its_extensions_and_bodies(
    made: dict[int, tuple[int, bytes]], octets: list[bytes], first: int
) -> None:
    ttls_ms, bodies = zip(*made.values(), strict=True)
    extensions = octets[: len(made)]
    table, blob = batches.pack_requests([*made], ttls_ms, bodies, extensions)
    _, _, lengths, is_extended = batches.request_rows([table, blob], 0)
    assert is_extended == any(extensions)
    first = min(first, len(made))
    parts = batches.bodies_of(blob, lengths[first:], sum(lengths[:first]))
    taken = batches.take_extensions(parts, table, first, is_extended=is_extended)
    assert (taken, parts) == (extensions[first:], list(bodies[first:]))


@given(rows, st.booleans())
def test_what_was_packed_is_read(made: dict[int, tuple[int, bytes]], is_repeated: bool) -> None:
    ttls_ms, bodies = zip(*made.values(), strict=True)
    requests = wire.decode(
        [b"id", *native.encode_requests(CLIENT_ID, b"s", [*made], ttls_ms, bodies, is_repeated=is_repeated)]
    )
    assert isinstance(requests, Requests)
    assert (requests.numbers, requests.ttls_ms) == (tuple(made), ttls_ms)
    assert batches.bodies_of(requests.blob, requests.lengths) == list(bodies)
    assert requests.is_repeated == is_repeated
    finals = wire.decode([b"id", *native.encode_finals(CLIENT_ID, 1, [*made], bodies)])
    assert isinstance(finals, Finals)
    assert batches.bodies_of(finals.blob, finals.lengths) == list(bodies)


def row(number: int, length: int) -> bytes:
    return struct.pack(">QII", number, 0, length)


@pytest.mark.requirement("BSN-G-15")
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ([], "batch-frames"),
        ([row(1, 0)], "batch-frames"),
        ([b"", b""], "batch-table"),
        ([row(1, 0)[:-1], b""], "batch-table"),
        ([row(1, 2), b"x"], "batch-blob"),
        ([row(1, 0), b"x"], "batch-blob"),
        ([row(1, 0xFFFF_FFFF), b"x"], "batch-blob"),
        ([row(1, 0) * 2, b""], "batch-table"),
        ([row(1 << 62, 0), b""], "batch-table"),
        ([b"".join(row(number, 0) for number in range(BATCH_ROWS_MAX + 1)), b""], "batch-table"),
        ([row(1, BATCH_BYTES_MAX + 1), bytes(BATCH_BYTES_MAX + 1)], "batch-blob"),
    ],
)
def test_what_is_no_batch_is_refused(rest: list[bytes], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode([b"id", REQUESTS, *rest])
    assert (caught.value.reason, caught.value.from_worker) == (reason, False)
    # Of a worker the same is a reason to let it go.
    rest = [
        b"".join(table[at : at + 8] + table[at + 12 : at + 16] for at in range(0, len(table), 16))
        for table in rest[:1]
    ] + rest[1:]
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode([b"id", FINALS, *rest])
    assert caught.value.from_worker


@pytest.mark.requirement("BSN-G-02")
@pytest.mark.parametrize(
    "head",
    [
        f"b5010e00.{WHO}.0000000000000003.00000000.00",
        "b5010e00.00000000000000000000000000000000.0000000000000000.0000000000000003.00000000.04.6563686f",
    ],
)
def test_a_batch_names_its_service_and_its_client(head: str) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode([b"id", octets(head), REQUEST_TABLE, b"hi"])


def test_a_batch_may_be_larger_than_the_largest_single_message() -> None:
    batch = native.encode_requests(CLIENT_ID, b"s", range(10), [0] * 10, [bytes(1_000)] * 10)
    assert isinstance(wire.decode([b"id", *batch], 1_024), Requests)
    replies = native.encode_finals(CLIENT_ID, 1, range(10), [bytes(1_000)] * 10)
    assert isinstance(wire.decode([b"id", *replies], 1_024), Finals)
    replies = native.encode_finals(CLIENT_ID, 1, [1, 2], [bytes(10), bytes(1_025)])
    with pytest.raises(RemoteProtocolError, match="size"):
        wire.decode([b"id", *replies], 1_024)


@pytest.mark.requirement("BSN-G-17")
def test_who_takes_batches_says_so() -> None:
    assert wire.decode([b"w", *native.encode_ready(b"s", credit=2, takes_batches=True)]) == Ready(
        b"w", 3, (), b"s", 2, 0, True
    )
    assert wire.decode([b"w", *native.encode_ready(b"s")]) == Ready(b"w", 3, (), b"s")
    status = NodeStatus(3, 1, 0, 0, 0, 1, 1)
    pong = native.decode(native_broker.CODEC.pong(b"", CLIENT_ID + bytes(8), status)[1:])
    assert native.decode_status(pong) == status
    assert status.features & READS_BATCHES
    earlier = msgspec.structs.replace(pong, body=[pong.body[0][:18]])
    assert not native.decode_status(earlier).features & READS_BATCHES
    without = msgspec.structs.replace(pong, body=[pong.body[0][:18] + b"\xfe"])
    assert not native.decode_status(without).features & READS_BATCHES
