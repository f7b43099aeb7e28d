"""Whatever a peer sends: a codec returns a message or raises RemoteProtocolError, and nothing else."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar import wire
from bstar.errors import RemoteProtocolError
from bstar.wire import limits, native, peer, pirate, pzq
from bstar.wire.mdp import MDP01, MDP02
from bstar.wire.messages import Failure, Request
from fuzz.fuzz_wire import CORPUS, TARGETS, TOKENS, check, describe, frames_from, read_corpus, run

VALID = read_corpus()
ENTRIES = [
    pytest.param(target, frames, id=f"{target}-{name}") for target in VALID for name, frames in VALID[target]
]
ONE_ENTRY = st.sampled_from([(target, frames) for target in VALID for _, frames in VALID[target]])

frame = st.one_of(st.binary(max_size=64), st.sampled_from(TOKENS))
DETAIL = (
    b'{"pair":"p","role":"primary","node":"n","seq":1,"epoch":2,"heartbeat_ms":10,"timeout_ms":20,"later":%b}'
)


# Valid messages, and what becomes of them when they are broken --------------------------------------------


@pytest.mark.parametrize(("target", "frames"), ENTRIES)
def test_every_message_of_the_corpus_is_accepted(target: str, frames: list[bytes]) -> None:
    assert check(target, frames)


@pytest.mark.parametrize(("target", "frames"), ENTRIES)
def test_no_truncation_breaks_a_codec(target: str, frames: list[bytes]) -> None:
    for at, whole in enumerate(frames):
        check(target, frames[:at])
        for size in range(len(whole)):
            check(target, [*frames[:at], whole[:size], *frames[at + 1 :]])
            check(target, [*frames[:at], whole[:size]])


@pytest.mark.parametrize(("target", "frames"), ENTRIES)
def test_no_missing_or_doubled_frame_breaks_a_codec(target: str, frames: list[bytes]) -> None:
    for at in range(len(frames)):
        check(target, [*frames[:at], *frames[at + 1 :]])
        check(target, [*frames[: at + 1], *frames[at:]])
        check(target, [*frames[:at], b"", *frames[at:]])


@pytest.mark.storm
@pytest.mark.parametrize("target", TARGETS)
@given(frames=st.lists(frame, max_size=12))
def test_random_frames_break_no_codec(target: str, frames: list[bytes]) -> None:
    check(target, frames)


@given(entry=ONE_ENTRY, data=st.data())
def test_a_changed_octet_breaks_no_codec(entry: tuple[str, list[bytes]], data: st.DataObject) -> None:
    target, valid = entry
    frames = list(valid)
    at = data.draw(st.integers(0, len(frames) - 1))
    changed = bytearray(frames[at] or b"\x00")
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    frames[at] = bytes(changed)
    check(target, frames)


@pytest.mark.parametrize("command", range(256))
def test_every_native_command_octet_is_read_or_refused(command: int) -> None:
    header = native.MAGIC + bytes([command, 0xFF]) + bytes(range(24)) + b"\xff" * 12 + b"\x04echo"
    for body in ([], [b""], [b"", b""], [b"\xff" * 18, b"\xff" * 4]):
        check("broker", [b"id", header, *body])
        check("native", [header, *body])


# What once broke ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"[" * 1_900 + b"]" * 1_900, b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 3_900]
)
def test_deeply_nested_json_from_a_peer_is_no_recursion_error(value: bytes) -> None:
    check("peer", [peer.HEADER, b"3", DETAIL % value])


def test_nested_json_is_refused_from_deep_inside_our_own_calls() -> None:
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        else:
            check("peer", [peer.HEADER, b"3", DETAIL % (b"[" * 500 + b"]" * 500)])

    descend(600)


@pytest.mark.parametrize("key", [b"seq", b"epoch", b"heartbeat_ms", b"timeout_ms", b"asks", b"answers"])
@pytest.mark.parametrize(
    "number", [b"-1", b"9223372036854775808", b"1" + b"0" * 400, b"1.5", b"1e999", b"true", b'"1"', b"null"]
)
def test_a_number_of_a_peer_that_nothing_could_count_is_refused(key: bytes, number: bytes) -> None:
    detail = DETAIL % b"0"
    detail = detail.replace(b'"later":0', b'"%b":%b' % (key, number))
    with pytest.raises(RemoteProtocolError, match="peer-detail"):
        peer.decode([peer.HEADER, b"3", detail])


@pytest.mark.parametrize("text", [b'"\xff"', b'"\\ud800"', b'"\\ud800\\u0041"', b'"\xed\xa0\x80"', b'"p'])
def test_a_name_of_a_peer_that_is_no_text_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="peer-detail"):
        peer.decode([peer.HEADER, b"3", (DETAIL % b"0").replace(b'"p"', text)])


@pytest.mark.parametrize("request_id", [b"\xb5\x01\x00\x00", b"\xb5\x01\xff\xff", b"\xb5\x01\x02\x03"])
@pytest.mark.parametrize(
    ("rest", "dialect"), [([MDP01.client, b"echo", b"hi"], 1), ([MDP02.client, b"\x01", b"echo", b"hi"], 2)]
)
def test_a_correlated_request_whose_id_looks_native_is_still_mdp(
    request_id: bytes, rest: list[bytes], dialect: int
) -> None:
    message = wire.decode([b"id", request_id, b"", *rest])
    assert isinstance(message, Request)
    assert (message.dialect, message.envelope) == (dialect, (request_id, b""))


def test_a_workers_endless_error_text_is_cut() -> None:
    message = wire.decode([b"id", native.header(native.ERROR, value=1), b"x" * 100_000])
    assert isinstance(message, Failure)
    assert message.text == b"x" * limits.TEXT_BYTES_MAX


@pytest.mark.parametrize("command", [native.FINAL, native.PARTIAL, native.ERROR])
def test_a_reply_header_that_no_client_could_read_does_not_reach_one(command: int) -> None:
    torn = native.header(command, identity=bytes(range(24)), service=b"echo")[:-1]
    with pytest.raises(RemoteProtocolError, match="native-header"):
        wire.decode([b"id", torn, b"body"])


def test_a_native_request_without_identity_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="identity"):
        wire.decode([b"id", native.header(native.REQUEST, service=b"echo"), b"body"])


@pytest.mark.parametrize(
    "frames",
    [
        [b"id", b"", MDP01.worker, b"\x01", b"x" * 256],
        [b"id", MDP02.worker, b"\x01", b"x" * 256],
        [b"id", native.header(native.READY, value=1)],
        [b"id", native.header(native.READY, value=0, service=b"echo")],
    ],
)
def test_a_ready_that_cannot_be_served_tells_whose_fault_it_is(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode(frames)
    assert caught.value.from_worker


# Bounds ---------------------------------------------------------------------------------------------------


def test_a_message_of_too_many_frames_is_refused() -> None:
    head = [b"id", MDP02.client, b"\x01", b"echo"]
    assert check("broker", head + [b""] * (limits.FRAMES_MAX - len(head)))
    with pytest.raises(RemoteProtocolError, match="frames"):
        wire.decode(head + [b""] * (limits.FRAMES_MAX - len(head) + 1))


def test_a_message_of_too_many_octets_is_refused() -> None:
    frames = [b"id", MDP02.client, b"\x01", b"echo", b"12345", b"67890"]
    size = sum(map(len, frames))
    assert isinstance(wire.decode(frames, size), Request)
    with pytest.raises(RemoteProtocolError, match="size"):
        wire.decode(frames, size - 1)


def test_an_envelope_of_too_many_frames_is_refused() -> None:
    rest = [b"", MDP01.client, b"echo", b"hi"]
    message = wire.decode([b"id", *[b"x"] * limits.ENVELOPE_FRAMES_MAX, *rest])
    assert isinstance(message, Request)
    assert len(message.envelope) == limits.ENVELOPE_FRAMES_MAX + 1
    with pytest.raises(RemoteProtocolError, match="header"):
        wire.decode([b"id", *[b"x"] * (limits.ENVELOPE_FRAMES_MAX + 1), *rest])


@pytest.mark.parametrize("header", [[MDP01.client], [MDP02.client, b"\x01"], [MDP01.worker, b"\x01"]])
def test_an_envelope_of_too_many_octets_is_refused(header: list[bytes]) -> None:
    """A request keeps it while it waits, a worker while it is registered, and no queue counts it."""
    rest = [b"", *header, b"echo", *([b"hi"] if b"C" in header[0] else [])]
    wire.decode([b"id", bytes(limits.ENVELOPE_BYTES_MAX), *rest])
    with pytest.raises(RemoteProtocolError, match="header"):
        wire.decode([b"id", bytes(limits.ENVELOPE_BYTES_MAX), b"x", *rest])
    with pytest.raises(RemoteProtocolError, match="envelope"):
        pirate.decode_client([b"id", bytes(limits.ENVELOPE_BYTES_MAX + 1), b"", b"hi"])
    with pytest.raises(RemoteProtocolError, match="pzq"):
        pzq.read_message([bytes(256), b"", b"hi"])


def test_extensions_beyond_their_room_are_refused() -> None:
    head = native.header(native.REQUEST, identity=bytes(range(24)), service=b"s" * 255) + bytes(8_192)
    assert check("broker", [b"id", head, b""])
    assert not check("broker", [b"id", head + b"\x00", b""])
    assert not check("native", [head + b"\x00", b""])


def test_a_peers_detail_beyond_its_room_is_refused() -> None:
    detail = DETAIL % b'"%b"'
    room = 4_096 - len(detail) + 2
    assert check("peer", [peer.HEADER, b"3", detail % (b"x" * room)])
    assert not check("peer", [peer.HEADER, b"3", detail % (b"x" * (room + 1))])


@pytest.mark.parametrize(
    ("make", "decode"),
    [
        pytest.param(lambda n: [b"id", b"x" * n], wire.decode, id="one frame"),
        pytest.param(lambda n: [b"id", *[b"x"] * n], wire.decode, id="many frames"),
        pytest.param(lambda n: [b"id", native.MAGIC + b"x" * n, b""], wire.decode, id="native header"),
        pytest.param(
            lambda n: [native.MAGIC + b"x" * n, b""], native.decode, id="native header for a client"
        ),
        pytest.param(lambda n: [peer.HEADER, b"3", b"[" * n], peer.decode, id="peer detail"),
        pytest.param(lambda n: [b"3", b"x" * n], peer.decode, id="peer header"),
        pytest.param(lambda n: [peer.TOPIC + b"x" * n, b"3"], peer.decode, id="peer version"),
    ],
)
def test_a_huge_message_is_refused_without_being_read(
    make: Callable[[int], list[bytes]], decode: Callable[[list[bytes]], object]
) -> None:
    frames = make(10_000_000)
    times_s = []
    for _ in range(5):
        started = time.perf_counter()
        with pytest.raises(RemoteProtocolError):
            decode(frames)
        times_s.append(time.perf_counter() - started)
    # Copying or parsing ten million of anything takes longer than this; refusing takes microseconds.
    assert min(times_s) < 0.002


# The fuzzer itself ----------------------------------------------------------------------------------------


@pytest.mark.storm
def test_a_short_seeded_fuzz_run_finds_nothing() -> None:
    accepted = run(20_000, seed=2_024)
    # A run in which nothing or everything is accepted has lost its way and shows nothing.
    assert 1_000 < accepted < 15_000


@pytest.mark.loopback
def test_the_fuzzer_runs_as_a_program_and_repeats_itself() -> None:
    program = [sys.executable, str(CORPUS.with_name("fuzz_wire.py")), "--runs", "500", "--seed", "7"]
    first, second = (
        subprocess.run(program, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second
    assert "seed 7" in first


@given(octets=st.binary(max_size=200))
def test_every_flat_input_of_the_guided_fuzzer_is_a_message_to_try(octets: bytes) -> None:
    check(*frames_from(octets))


def test_frames_are_described_in_the_notation_of_the_corpus() -> None:
    assert describe([b"\x00\xff", b"", b"1"]) == "00ff - 31"
