"""The native dialect byte by byte, written by hand from docs/protocol/native.md and not by our encoders."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar import wire
from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire import limits, native, native_broker
from bstar.wire.extensions import (
    attempt_extension,
    attempt_of,
    elsewhere_extension,
    process_extension,
    process_of,
)
from bstar.wire.messages import (
    NEVER_MS,
    NO_PROCESS,
    OBEYS_ONCE,
    OWN_BACKOFF,
    READS_BATCHES,
    Directed,
    Disconnect,
    ErrorCode,
    Failure,
    Final,
    Heartbeat,
    NodeStatus,
    Partial,
    Ping,
    Process,
    ProgressMade,
    Ready,
    Reason,
    Request,
    StaleEpoch,
)
from bstar.wire.native_broker import NativeAsker
from bstar.wire.progress import Progress
from fuzz.fuzz_wire import check
from support.work import asked

CLIENT_ID = bytes(range(16))
IDENTITY = CLIENT_ID + b"\0\0\0\0\0\0\0\x07"
ASKER = NativeAsker(b"id", IDENTITY)
ID = "000102030405060708090a0b0c0d0e0f.0000000000000007"
NOBODY = "00000000000000000000000000000000.0000000000000000"
# An unknown extension.
BEEF = b"\x40\x00\x02\xbe\xef"
STATUS = NodeStatus(4, 3, 3, 120, NEVER_MS, 1000, 2000)
STATUS_HEX = "0403.00000078.ffffffff.000003e8.000007d0.3f"


def frames(text: str) -> list[bytes]:
    """Frames in hex; - is an empty one, dots are for people."""
    return [b"" if word == "-" else bytes.fromhex(word.replace(".", "")) for word in text.split()]


def octets(text: str) -> bytes:
    """One frame in hex; dots are for people."""
    return frames(text)[0]


identity = st.binary(min_size=24, max_size=24).filter(lambda octets: octets != native.NO_IDENTITY)
body = st.lists(st.binary(max_size=20), min_size=1, max_size=4)
service = st.binary(min_size=1, max_size=255)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
extensions = st.binary(max_size=40)
statuses = st.builds(
    NodeStatus,
    state=st.integers(1, 5),
    epoch=u64,
    peer_state=st.integers(0, 5),
    peer_age_ms=u32,
    retry_after_ms=u32,
    heartbeat_ms=st.integers(1, 2**32 - 1),
    failover_timeout_ms=st.integers(1, 2**32 - 1),
)


def extended(frames: list[bytes], extensions: bytes) -> list[bytes]:
    """The message with these bytes behind the service's name."""
    return [frames[0] + extensions, *frames[1:]]


# The header -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-G-01")
def test_a_header_has_its_fields_where_the_specification_puts_them() -> None:
    made = native.header(
        0x0F, flags=0xA5, identity=IDENTITY, epoch=0x1112131415161718, value=0x21222324, service=b"echo"
    )
    assert made == bytes.fromhex(
        "b5010fa5" + ID.replace(".", "") + "1112131415161718" + "21222324" + "04" + "6563686f"
    )
    assert native.HEADER_BYTES == 41


@pytest.mark.requirement("BSN-G-03")
def test_an_identity_is_the_client_id_and_the_number() -> None:
    assert native.identity(CLIENT_ID, 7) == IDENTITY
    assert native.identity(CLIENT_ID, 2**64 - 1) == CLIENT_ID + b"\xff" * 8
    with pytest.raises(AssertionError):
        native.identity(b"short", 7)


# What clients and workers say -----------------------------------------------------------------------------

SAID: list[tuple[str, list[bytes], object]] = [
    (
        f"b5010100.{ID}.0000000000000003.00000bb8.04.6563686f 6869 -",
        native.encode_request(IDENTITY, b"echo", [b"hi", b""], ttl_ms=3000, epoch=3),
        Request(b"id", 3, (), b"echo", [b"hi", b""], IDENTITY, 3000, 3),
    ),
    (
        f"b5010100.{ID}.0000000000000000.00000000.04.6563686f.40.0002.beef -",
        extended(native.encode_request(IDENTITY, b"echo", [b""]), BEEF),
        Request(b"id", 3, (), b"echo", [b""], IDENTITY, 0, 0, BEEF),
    ),
    (
        f"b5010700.{ID}.0000000000000003.00000000.00",
        native.encode_ping(IDENTITY, 3),
        Ping(b"id", IDENTITY, 3),
    ),
    (
        f"b5010900.{NOBODY}.0000000000000003.00000004.04.6563686f",
        native.encode_ready(b"echo", credit=4, epoch=3),
        Ready(b"id", 3, (), b"echo", 4, 3),
    ),
    (
        f"b5010900.{NOBODY}.0000000000000003.00000004.04.6563686f.05.0007.0000012c.01.68.31",
        native.encode_ready(b"echo", credit=4, epoch=3, extensions=process_extension(Process("h", 300, "1"))),
        Ready(b"id", 3, (), b"echo", 4, 3, process=Process("h", 300, "1")),
    ),
    (
        f"b5010200.{ID}.0000000000000003.00000001.00 6869",
        native.encode_partial(IDENTITY, 3, 1, [b"hi"]),
        Partial(b"id", 3, (), IDENTITY, [b"hi"], octets(f"b5010200.{ID}.0000000000000003.00000001.00")),
    ),
    (
        f"b5011100.{ID}.0000000000000003.00000000.00 3ff0000000000000.4010000000000000 726f77",
        native.encode_progress(IDENTITY, 3, Progress(1, 4, "row")),
        ProgressMade(
            b"id",
            IDENTITY,
            Progress(1, 4, "row"),
            octets(f"b5011100.{ID}.0000000000000003.00000000.00"),
            frames("3ff0000000000000.4010000000000000 726f77"),
        ),
    ),
    (
        f"b5011100.{ID}.0000000000000003.00000000.00 3fe0000000000000",
        native.encode_progress(IDENTITY, 3, Progress(0.5)),
        ProgressMade(
            b"id",
            IDENTITY,
            Progress(0.5),
            octets(f"b5011100.{ID}.0000000000000003.00000000.00"),
            frames("3fe0000000000000"),
        ),
    ),
    (
        f"b5010300.{ID}.0000000000000003.00000002.00 6869",
        native.encode_final(IDENTITY, 3, 2, [b"hi"]),
        Final(b"id", 3, (), IDENTITY, [b"hi"], octets(f"b5010300.{ID}.0000000000000003.00000002.00")),
    ),
    (
        f"b5010400.{ID}.0000000000000003.00000001.00 626164",
        native.encode_error(IDENTITY, 3, 1, b"bad"),
        Failure(b"id", IDENTITY, 1, b"bad", octets(f"b5010400.{ID}.0000000000000003.00000001.00")),
    ),
    (
        f"b5010400.{ID}.0000000000000003.00000008.00 6e6f7420796574 000007d0",
        native.encode_error(IDENTITY, 3, 8, b"not yet", native.pack_retry(2_000)),
        Failure(b"id", IDENTITY, 8, b"not yet", octets(f"b5010400.{ID}.0000000000000003.00000008.00"), 2_000),
    ),
    (
        f"b5010400.{ID}.0000000000000003.00000008.00 - ffffffff",
        native.encode_error(IDENTITY, 3, 8, b"", native.pack_retry(OWN_BACKOFF)),
        Failure(b"id", IDENTITY, 8, b"", octets(f"b5010400.{ID}.0000000000000003.00000008.00")),
    ),
    (
        f"b5010b00.{NOBODY}.0000000000000003.00000000.00",
        native.encode_heartbeat(3),
        Heartbeat(b"id", 3, (), 3),
    ),
    (f"b5010c00.{NOBODY}.0000000000000000.00000000.00", native.encode_disconnect(), Disconnect(b"id", 3)),
    (
        f"b5010d00.{ID}.0000000000000004.00000000.00",
        native.encode_stale_epoch(IDENTITY, 4),
        StaleEpoch(b"id", IDENTITY, 4),
    ),
    (
        f"b5011200.{ID}.0000000000000003.00000bb8.04.6563686f 31663639623662303530663162313031 6869",
        native.encode_request(
            IDENTITY, b"echo", [b"1f69b6b050f1b101", b"hi"], ttl_ms=3000, epoch=3, is_directed=True
        ),
        Directed(b"id", 3, (), b"echo", [b"hi"], IDENTITY, 3000, 3, worker=b"1f69b6b050f1b101"),
    ),
    (
        f"b5011239.{ID}.0000000000000000.00000000.04.6563686f.40.0002.beef 77 -",
        extended(
            native.encode_request(
                IDENTITY,
                b"echo",
                [b"w", b""],
                is_repeated=True,
                is_urgent=True,
                is_once=True,
                is_whole=True,
                is_directed=True,
            ),
            BEEF,
        ),
        Directed(b"id", 3, (), b"echo", [b""], IDENTITY, 0, 0, BEEF, True, True, True, True, b"w"),
    ),
]


@pytest.mark.requirement("BSN-G-01")
@pytest.mark.parametrize(("text", "made", "read"), SAID)
def test_what_peers_say_is_as_specified(text: str, made: list[bytes], read: object) -> None:
    assert made == frames(text)
    assert wire.decode([b"id", *frames(text)]) == read


# What the broker says -------------------------------------------------------------------------------------

CODEC = native_broker.CODEC
ANSWERED: list[tuple[str, list[bytes]]] = [
    (
        f"b5010101.{ID}.0000000000000003.00000bae.00.40.0001.ee 6869",
        CODEC.request(b"id", (), asked([b"hi"], extensions=b"\x40\x00\x01\xee"), IDENTITY, 2990, 3, True),
    ),
    (
        f"b5010100.{ID}.0000000000000003.00000000.00 -",
        CODEC.request(b"id", (), asked([b""], sender=b"x"), IDENTITY, 0, 3, False),
    ),
    (f"b5010200.{ID}.0000000000000003.00000001.00 6869", CODEC.partial(ASKER, b"echo", 3, 1, [b"hi"], b"")),
    (f"b5010300.{ID}.0000000000000003.00000002.00 6869", CODEC.final(ASKER, b"echo", 3, 2, [b"hi"], b"")),
    ("abcd 6869", CODEC.final(ASKER, b"echo", 3, 2, [b"hi"], b"\xab\xcd")),
    (f"b5010400.{ID}.0000000000000003.00000005.00 6c617465", CODEC.failure(ASKER, 3, 5, b"late")),
    (f"b5010500.{ID}.0000000000000003.00000032.00 66756c6c", CODEC.busy(ASKER, 3, 50, b"full")),
    (f"b5010600.{ID}.0000000000000003.ffffffff.00 {STATUS_HEX}", CODEC.not_active(ASKER, STATUS, False)),
    (f"b5010602.{ID}.0000000000000003.ffffffff.00 {STATUS_HEX}", CODEC.not_active(ASKER, STATUS, True)),
    (f"b5010800.{ID}.0000000000000003.ffffffff.00 {STATUS_HEX}", CODEC.pong(b"id", IDENTITY, STATUS)),
    (
        f"b5010a00.{NOBODY}.0000000000000003.000001f4.00 {STATUS_HEX} 000007d0",
        CODEC.welcome(b"id", (), STATUS, 500, 2000),
    ),
    (f"b5010b00.{NOBODY}.0000000000000003.00000004.00", CODEC.heartbeat(b"id", (), 4, 3)),
    (f"b5011000.{ID}.0000000000000003.00000000.00", CODEC.cancel(b"id", IDENTITY, 3)),
    (f"b5010c00.{NOBODY}.0000000000000003.00000001.00", CODEC.disconnect(b"id", (), Reason.UNKNOWN, 3)),
]


@pytest.mark.requirement("BSN-G-01")
@pytest.mark.parametrize(("text", "made"), ANSWERED)
def test_what_the_broker_says_is_as_specified(text: str, made: list[bytes]) -> None:
    assert made == [b"id", *frames(text)]


def test_what_the_broker_says_is_read() -> None:
    message = native.decode(frames(f"b5010101.{ID}.0000000000000003.00000bae.00.40.0001.ee 6869 -"))
    assert message == native.Message(
        native.REQUEST, native.FLAG_REDELIVERED, IDENTITY, 3, 2990, b"", b"\x40\x00\x01\xee", [b"hi", b""]
    )
    not_active = native.decode(frames(f"b5010602.{ID}.0000000000000003.ffffffff.00 {STATUS_HEX}"))
    assert not_active.flags & native.FLAG_DISPATCHED
    assert native.decode_status(not_active) == STATUS
    welcome = native.decode(frames(f"b5010a00.{NOBODY}.0000000000000003.000001f4.00 {STATUS_HEX} 000007d0"))
    assert native.decode_welcome(welcome) == native.Welcome(STATUS, 500, 2000)


@pytest.mark.requirement("BSN-W-15")
@pytest.mark.parametrize(
    ("code", "behind", "retry_ms"),
    [
        (8, "", -1),
        (8, " 0007d0", -1),
        (8, " 00000000", 0),
        (8, " 000007d0ff 01", 2_000),
        (1, " 000007d0", -1),
    ],
)
def test_a_worker_may_name_the_time_of_the_next_attempt(code: int, behind: str, retry_ms: int) -> None:
    octets = f"b5010400.{ID}.0000000000000003.{code:08x}.00 626164{behind}"
    failure = wire.decode([b"id", *frames(octets)])
    assert isinstance(failure, Failure)
    assert (failure.text, failure.retry_ms) == (b"bad", retry_ms)


@pytest.mark.requirement("BSN-W-16")
@pytest.mark.parametrize(
    ("extensions", "attempt"),
    [
        ("-", 1),
        ("41.0002.0007", 7),
        ("40.0001.ee.41.0002.ffff", 65_535),
        ("41.0002.0000", 1),
        ("41.0001.07", 1),
        ("41.0002.07", 1),
        ("41.0003.000007.41.0002.0003", 3),
        ("40.ffff.41.0002.0007", 1),
        ("41", 1),
    ],
)
def test_the_attempt_is_read_past_everything_else(extensions: str, attempt: int) -> None:
    assert attempt_of(octets(extensions)) == attempt


def test_an_attempt_beyond_two_octets_is_the_last_that_fits() -> None:
    assert attempt_extension(3) == octets("41.0002.0003")
    assert attempt_of(attempt_extension(100_000)) == 65_535


# What later versions may add ------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-G-07")
@pytest.mark.parametrize("header", ["b502", "b500", "b5ff", "b401"])
def test_another_version_is_refused(header: str) -> None:
    octets = f"{header}0100.{ID}.0000000000000003.00000bb8.04.6563686f 6869"
    with pytest.raises(RemoteProtocolError, match="header"):
        wire.decode([b"id", *frames(octets)])
    with pytest.raises(RemoteProtocolError, match="native-header"):
        native.decode(frames(octets))


@pytest.mark.requirement("BSN-G-08")
@pytest.mark.parametrize("command", [0x00, 0x13, 0x7F, 0xFF])
def test_an_unknown_command_is_refused_and_condemns_nobody(command: int) -> None:
    octets = frames(f"b501{command:02x}00.{ID}.0000000000000003.00000bb8.04.6563686f 6869")
    with pytest.raises(RemoteProtocolError, match="native-command") as caught:
        wire.decode([b"id", *octets])
    assert not caught.value.from_worker
    with pytest.raises(RemoteProtocolError, match="native-command"):
        native.decode(octets)


@pytest.mark.requirement("BSN-G-08")
@pytest.mark.parametrize("command", [0x05, 0x06, 0x08, 0x0A])
def test_what_only_a_broker_says_is_refused_by_a_broker(command: int) -> None:
    said = f"b501{command:02x}00.{ID}.0000000000000003.00000001.00 {STATUS_HEX} 000007d0"
    with pytest.raises(RemoteProtocolError, match="native-command"):
        wire.decode([b"id", *frames(said)])


@pytest.mark.requirement("BSN-G-08")
@pytest.mark.parametrize("command", [0x07, 0x09, 0x0D])
def test_what_only_clients_and_workers_say_is_refused_by_them(command: int) -> None:
    with pytest.raises(RemoteProtocolError, match="native-command"):
        native.decode(frames(f"b501{command:02x}00.{ID}.0000000000000003.00000001.04.6563686f 6869"))


@pytest.mark.requirement("BSN-G-09")
def test_unknown_flags_are_ignored() -> None:
    octets = frames(f"b50101c6.{ID}.0000000000000003.00000bb8.04.6563686f 6869")
    assert wire.decode([b"id", *octets]) == Request(b"id", 3, (), b"echo", [b"hi"], IDENTITY, 3000, 3)
    assert native.decode(octets).flags == 0xC6


@pytest.mark.requirement("BSN-G-10")
def test_a_longer_status_frame_is_read_as_far_as_it_is_known() -> None:
    longer = native.decode(frames(f"b5010800.{ID}.0000000000000003.ffffffff.00 {STATUS_HEX}.0badcafe 78"))
    assert native.decode_status(longer) == STATUS
    welcome = native.decode(
        frames(f"b5010a00.{NOBODY}.0000000000000003.000001f4.00 {STATUS_HEX}.01 000007d0.01 78")
    )
    assert native.decode_welcome(welcome) == native.Welcome(STATUS, 500, 2000)


@pytest.mark.requirement("BSN-G-11")
@pytest.mark.parametrize("command", ["07", "0b", "0c", "0d"])
def test_further_frames_of_a_message_without_body_are_ignored(command: str) -> None:
    head = f"b501{command}00.{ID}.0000000000000003.00000000.00"
    assert wire.decode([b"id", *frames(f"{head} 78 79")]) == wire.decode([b"id", *frames(head)])


# Extensions -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-G-12")
@pytest.mark.requirement("BSN-B-14")
@pytest.mark.parametrize(
    "octets", ["40000261 62ff0000", "01", "0100", "010001", "01ffff", "4000026162 010003 6162"]
)
def test_the_broker_hands_extensions_on_unread_also_torn_ones(octets: str) -> None:
    sent = bytes.fromhex(octets)
    request = wire.decode([b"id", *extended(native.encode_request(IDENTITY, b"echo", [b""]), sent)])
    assert isinstance(request, Request)
    assert request.extensions == sent
    passed_on = CODEC.request(b"w", (), asked([b""], extensions=request.extensions), IDENTITY, 0, 1, False)
    assert native.decode(passed_on[1:]).extensions == sent


# What is refused ------------------------------------------------------------------------------------------

MALFORMED: list[tuple[str, str, bool]] = [
    ("b501", "header", False),
    (f"b5010100.{ID}.0000000000000003.00000bb8", "header", False),
    (f"b5010100.{ID}.0000000000000003.00000bb8.04.656368 6869", "native-header", False),
    (f"b5010100.{ID}.0000000000000003.00000bb8.00 6869", "service-name", False),
    (f"b5010100.{ID}.0000000000000003.00000bb8.04.6563686f", "client-frames", False),
    (f"b5010100.{NOBODY}.0000000000000003.00000bb8.04.6563686f 6869", "identity", False),
    (f"b5011200.{ID}.0000000000000003.00000bb8.00 77 6869", "service-name", False),
    (f"b5011200.{ID}.0000000000000003.00000bb8.04.6563686f 77", "client-frames", False),
    (f"b5011200.{ID}.0000000000000003.00000bb8.04.6563686f - 6869", "client-frames", False),
    (f"b5011200.{ID}.0000000000000003.00000bb8.04.6563686f {'77' * 65} 6869", "client-frames", False),
    (f"b5011200.{NOBODY}.0000000000000003.00000bb8.04.6563686f 77 6869", "identity", False),
    (f"b5010200.{ID}.0000000000000003.00000000.00", "worker-frames", True),
    (f"b5010300.{ID}.0000000000000003.00000000.00", "worker-frames", True),
    (f"b5010300.{ID}.0000000000000003.00000000.01 6869", "native-header", False),
    (f"b5010900.{NOBODY}.0000000000000003.00000000.04.6563686f", "credit", True),
    (f"b5010900.{NOBODY}.0000000000000003.00010000.04.6563686f", "credit", True),
    (f"b5010900.{NOBODY}.0000000000000003.00000001.00", "service-name", True),
    (f"- b5010100.{ID}.0000000000000003.00000bb8.04.6563686f 6869", "header", False),
]


@pytest.mark.requirement("BSN-B-01")
@pytest.mark.parametrize(("text", "reason", "from_worker"), MALFORMED)
def test_a_malformed_message_is_refused_with_its_reason(text: str, reason: str, from_worker: bool) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode([b"id", *frames(text)])
    assert (caught.value.reason, caught.value.from_worker) == (reason, from_worker)


@pytest.mark.requirement("BSN-G-02")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "b501",
        f"b5010100.{ID}.0000000000000003.00000bb8.00",
        f"b5010200.{ID}.0000000000000003.00000000.00",
        f"b5010300.{ID}.0000000000000003.00000000.00",
        f"b5010600.{ID}.0000000000000003.00000000.00",
        f"b5010800.{ID}.0000000000000003.00000000.00",
        f"b5010a00.{NOBODY}.0000000000000003.000001f4.00 {STATUS_HEX}",
        f"b5010300.{ID}.0000000000000003.00000000.05.6563686f 6869",
    ],
)
def test_what_no_broker_should_say_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        native.decode(frames(text))


@pytest.mark.requirement("BSN-G-02")
@pytest.mark.parametrize(
    "status",
    [
        "-",
        "0403.00000078.ffffffff.000003e8.000007",
        "0003.00000078.ffffffff.000003e8.000007d0",
        "0603.00000078.ffffffff.000003e8.000007d0",
        "0406.00000078.ffffffff.000003e8.000007d0",
        "0403.00000078.ffffffff.00000000.000007d0",
        "0403.00000078.ffffffff.000003e8.00000000",
    ],
)
def test_a_status_that_cannot_be_is_refused(status: str) -> None:
    message = native.decode(frames(f"b5010600.{ID}.0000000000000003.00000000.00 {status}"))
    with pytest.raises(RemoteProtocolError, match="status"):
        native.decode_status(message)


@pytest.mark.requirement("BSN-B-05")
@pytest.mark.parametrize(
    ("heartbeat", "expiry"),
    [("00000000", "000007d0"), ("000001f4", "000001f3"), ("000001f4", "0007d0"), ("00000000", "00000000")],
)
def test_a_welcome_without_sane_timers_is_refused(heartbeat: str, expiry: str) -> None:
    message = native.decode(
        frames(f"b5010a00.{NOBODY}.0000000000000003.{heartbeat}.00 {STATUS_HEX} {expiry}")
    )
    with pytest.raises(RemoteProtocolError, match="welcome"):
        native.decode_welcome(message)


@pytest.mark.requirement("BSN-B-01")
def test_a_refused_request_is_named_if_its_header_shows_its_identity() -> None:
    head = f"b5010100.{ID}.0000000000000003.00000bb8"
    for text in (f"{head}.00", f"{head}.04.6563", f"{head}.04.6563686f", f"{head}.04.6563686f 6869"):
        assert native_broker.asker_of([b"id", *frames(text)]) == ASKER
    others = (head, f"b5020100{head[8:]}.00", f"b5010300{head[8:]}.00", f"- {head}.00", "4d4450433032")
    for text in ("", "-", *others, f"b5010100.{NOBODY}.0000000000000003.00000bb8.00"):
        assert native_broker.asker_of([b"id", *frames(text)]) is None


REFUSED_TO_SEND: list[Callable[[], object]] = [
    lambda: native.encode_request(IDENTITY, b"", [b""]),
    lambda: native.encode_request(IDENTITY, b"x" * 256, [b""]),
    lambda: native.encode_request(IDENTITY, b"echo", []),
    lambda: native.encode_request(IDENTITY, b"echo", [b""], ttl_ms=-1),
    lambda: native.encode_request(IDENTITY, b"echo", [b""], ttl_ms=2**32),
    lambda: native.encode_ready(b""),
    lambda: native.encode_ready(b"echo", credit=0),
    lambda: native.encode_ready(b"echo", credit=65_536),
    lambda: native.encode_partial(IDENTITY, 1, 0, []),
    lambda: native.encode_final(IDENTITY, 1, 0, []),
]


@pytest.mark.requirement("BSN-G-02")
@pytest.mark.parametrize("send", REFUSED_TO_SEND)
def test_we_are_not_made_to_send_what_no_broker_takes(send: Callable[[], object]) -> None:
    with pytest.raises(LocalProtocolError):
        send()


def test_times_beyond_32_bits_are_told_as_never() -> None:
    status = NodeStatus(3, 1, 4, 2**40, 2**40, 1000, 2000)
    told = native.decode_status(native.decode(CODEC.pong(b"id", IDENTITY, status)[1:]))
    assert (told.peer_age_ms, told.retry_after_ms) == (NEVER_MS, NEVER_MS)


@pytest.mark.requirement("BSN-G-13")
def test_an_error_text_is_for_people_and_short() -> None:
    assert native.encode_error(IDENTITY, 1, 1, b"x" * 5_000)[1] == b"x" * limits.TEXT_BYTES_MAX


# Numbers that never change --------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-G-01")
def test_the_numbers_on_the_wire() -> None:
    commands = (
        "REQUEST PARTIAL FINAL ERROR BUSY NOT_ACTIVE PING PONG READY WELCOME HEARTBEAT DISCONNECT "
        "STALE_EPOCH REQUESTS FINALS CANCEL PROGRESS DIRECTED"
    )
    assert [getattr(native, name) for name in commands.split()] == list(range(1, 19))
    assert (native.FLAG_REDELIVERED, native.FLAG_DISPATCHED) == (1, 2)
    codes = (
        "HANDLER_FAILED HANDLER_TIMEOUT WORKER_LOST POISON EXPIRED INVALID NOT_ALLOWED RETRY CANCELLED "
        "WORKER_GONE"
    )
    assert [(code.value, code.name) for code in ErrorCode] == [*enumerate(codes.split(), 1)]
    reasons = "GOODBYE UNKNOWN UNEXPECTED INVALID RESERVED FULL NOT_ALLOWED"
    assert [(reason.value, reason.name) for reason in Reason] == [*enumerate(reasons.split())]


# There and back -------------------------------------------------------------------------------------------


@given(identity, service, body, u32, u64, extensions)
def test_a_request_reaches_the_broker_as_it_was_said(
    name: bytes, wanted: bytes, parts: list[bytes], ttl_ms: int, epoch: int, octets: bytes
) -> None:
    said = extended(native.encode_request(name, wanted, parts, ttl_ms=ttl_ms, epoch=epoch), octets)
    assert wire.decode([b"id", *said]) == Request(b"id", 3, (), wanted, parts, name, ttl_ms, epoch, octets)


@given(identity, body, u32, u64, u32)
def test_a_reply_of_a_native_worker_passes_through_unchanged(
    name: bytes, parts: list[bytes], index: int, epoch: int, code: int
) -> None:
    partial = wire.decode([b"w", *native.encode_partial(name, epoch, index, parts)])
    assert isinstance(partial, Partial)
    passed = CODEC.partial(NativeAsker(b"c", name), b"echo", 0, 0, partial.body, partial.header)
    assert passed[1:] == native.encode_partial(name, epoch, index, parts)
    final = wire.decode([b"w", *native.encode_final(name, epoch, index, parts)])
    assert isinstance(final, Final)
    heard = native.decode(CODEC.final(NativeAsker(b"c", name), b"echo", 0, 0, final.body, final.header)[1:])
    assert heard == native.Message(native.FINAL, 0, name, epoch, index, b"", b"", parts)
    failure = wire.decode([b"w", *native.encode_error(name, epoch, code, b"why")])
    assert isinstance(failure, Failure)
    assert (failure.address, failure.code, failure.text) == (name, code, b"why")


@given(identity, body, u32, u64, st.booleans())
def test_a_request_reaches_its_worker_as_the_broker_said_it(
    name: bytes, parts: list[bytes], ttl_ms: int, epoch: int, is_redelivered: bool
) -> None:
    heard = native.decode(CODEC.request(b"w", (), asked(parts), name, ttl_ms, epoch, is_redelivered)[1:])
    assert heard == native.Message(native.REQUEST, int(is_redelivered), name, epoch, ttl_ms, b"", b"", parts)


@given(identity, statuses, st.booleans(), st.integers(1, 2**31), st.integers(0, 2**31 - 1))
def test_a_status_reaches_its_reader_as_it_was_told(
    name: bytes, status: NodeStatus, was_dispatched: bool, heartbeat_ms: int, longer_ms: int
) -> None:
    pong = native.decode(CODEC.pong(b"c", name, status)[1:])
    assert (pong.identity, native.decode_status(pong)) == (name, status)
    refusal = native.decode(CODEC.not_active(NativeAsker(b"c", name), status, was_dispatched)[1:])
    assert (native.decode_status(refusal), bool(refusal.flags & native.FLAG_DISPATCHED)) == (
        status,
        was_dispatched,
    )
    expiry_ms = heartbeat_ms + longer_ms
    welcome = native.decode(CODEC.welcome(b"w", (), status, heartbeat_ms, expiry_ms)[1:])
    assert native.decode_welcome(welcome) == native.Welcome(status, heartbeat_ms, expiry_ms)


@pytest.mark.requirement("BSN-W-18")
@given(st.text(max_size=100), st.integers(0, 2**40), st.text(max_size=50), extensions)
def test_what_a_worker_tells_of_its_process_is_bounded_and_fit_for_a_terminal(
    host: str, pid: int, version: str, behind: bytes
) -> None:
    said = process_extension(Process(host, pid, version))
    assert len(said) <= 3 + 5 + limits.HOST_BYTES_MAX + limits.VERSION_BYTES_MAX
    told = process_of(said + behind)
    assert told.pid == min(pid, 2**32 - 1)
    assert (told.host + told.version).isprintable()
    if host.isprintable() and len(host.encode("utf-8", "replace")) <= limits.HOST_BYTES_MAX:
        assert told.host == host.encode("utf-8", "replace").decode()


@pytest.mark.requirement("BSN-W-18")
@pytest.mark.parametrize(
    "told",
    [
        "",
        "05.0004.0000012c",  # without the length of the name
        "05.0006.0000012c.02.68",  # a name longer than the extension
        "05.0009.0000012c.01.68.31",  # torn
        "40.0002.beef",
    ],
)
def test_a_malformed_word_about_a_process_says_nothing_and_costs_no_registration(told: str) -> None:
    ready = native.encode_ready(b"echo", extensions=bytes.fromhex(told.replace(".", "")))
    assert wire.decode([b"w", *ready]) == Ready(b"w", 3, (), b"echo", process=NO_PROCESS)


@pytest.mark.requirement("BSN-W-18")
@given(extensions)
def test_no_extension_of_a_ready_costs_a_registration(told: bytes) -> None:
    ready = wire.decode([b"w", *native.encode_ready(b"echo", extensions=told)])
    assert isinstance(ready, Ready)
    assert len(ready.process.host) <= 10 * limits.HOST_BYTES_MAX


@pytest.mark.requirement("BSN-W-24")
@given(st.integers(0, 2**32 - 1), extensions)
def test_a_worker_tells_what_it_does_for_other_connections(count: int, behind: bytes) -> None:
    ready = wire.decode([b"w", *native.encode_ready(b"echo", extensions=elsewhere_extension(count) + behind)])
    assert isinstance(ready, Ready)
    assert ready.elsewhere == count
    assert wire.decode([b"w", *native.encode_heartbeat(3, count)]) == Heartbeat(b"w", 3, (), 3, count)


@pytest.mark.requirement("BSN-W-24")
@pytest.mark.parametrize("told", ["", "07.0003.000001", "07.0004.000001", "05.0004.00000001"])
def test_a_worker_that_does_not_tell_it_is_known_as_such(told: str) -> None:
    ready = wire.decode(
        [b"w", *native.encode_ready(b"echo", extensions=bytes.fromhex(told.replace(".", "")))]
    )
    assert isinstance(ready, Ready)
    assert ready.elsewhere is None


@given(service, st.integers(1, 65_535), u64, st.sampled_from(Reason), identity)
def test_a_worker_is_heard_as_it_spoke(
    wanted: bytes, credit: int, epoch: int, reason: Reason, name: bytes
) -> None:
    ready = wire.decode([b"w", *native.encode_ready(wanted, credit=credit, epoch=epoch)])
    assert ready == Ready(b"w", 3, (), wanted, credit, epoch)
    assert wire.decode([b"w", *native.encode_heartbeat(epoch)]) == Heartbeat(b"w", 3, (), epoch)
    assert wire.decode([b"w", *native.encode_disconnect(reason, epoch)]) == Disconnect(b"w", 3)
    assert wire.decode([b"w", *native.encode_stale_epoch(name, epoch)]) == StaleEpoch(b"w", name, epoch)


# The specification itself -----------------------------------------------------------------------------------


SPECIFICATION = (Path(__file__).parents[1] / "docs" / "protocol" / "native.md").read_text()


def specified_examples() -> list[tuple[str, list[bytes]]]:
    """The (command, frames) of the examples: a title, two spaces or more, bytes that may go on below."""
    block = SPECIFICATION.split("### 3.5 Examples")[1].split("### 3.6")[0]
    examples: list[tuple[str, str]] = []
    for line in re.findall(r"^    (.+)$", block, flags=re.MULTILINE):
        title, text = line[:36].strip(), line[36:]
        if title:
            examples.append((title, text))
        else:
            examples[-1] = (examples[-1][0], examples[-1][1] + text)
    return [(title, frames(text.replace("|", " "))) for title, text in examples]


@pytest.mark.parametrize(("title", "example"), specified_examples())
def test_an_example_of_the_specification_is_a_message_of_its_name(title: str, example: list[bytes]) -> None:
    if not title.startswith("…"):
        assert example[0][2] == getattr(native, title.replace(",", "").split()[0])
    assert check("broker", [b"id", *example]) or check("native", example)


def test_the_specification_has_an_example_of_every_command() -> None:
    assert {example[0][2] for _, example in specified_examples()} == set(range(1, 19))


def test_requirements_are_numbered_without_gaps_and_tests_name_real_ones() -> None:
    specified = re.findall(r"\*\*BSN-([GCWB])-(\d\d)\*\*", SPECIFICATION)
    for role in "GCWB":
        numbers = sorted(int(number) for letter, number in specified if letter == role)
        assert numbers == list(range(1, len(numbers) + 1))
    named = re.findall(r"requirement\(\"BSN-([GCWB])-(\d\d)\"\)", Path(__file__).read_text())
    assert set(named) <= set(specified)


def test_the_status_tells_what_the_node_can() -> None:
    for obeys_once in (0, OBEYS_ONCE):
        for reads_batches in (0, READS_BATCHES):
            told = msgspec.structs.replace(STATUS, features=obeys_once | reads_batches)
            pong = native.decode(native_broker.CODEC.pong(b"c", IDENTITY, told)[1:])
            assert native.decode_status(pong) == told
    old = native_broker.CODEC.pong(b"c", IDENTITY, STATUS)[1:]
    assert not native.decode_status(native.decode([old[0], old[1][:18]])).features & OBEYS_ONCE
