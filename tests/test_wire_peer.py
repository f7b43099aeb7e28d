"""The message between the two nodes of a pair, byte by byte, and what of the published one it keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import RemoteProtocolError
from bstar.wire import peer
from bstar.wire.peer import CODES, HEADER, TOPIC, PeerState

DETAIL = b'{"pair":"p","role":"backup","node":"b1","seq":7,"epoch":2,"heartbeat_ms":1000,"timeout_ms":2000}'
STATE = PeerState(4, "p", "backup", "b1", 7, 2, 1000, 2000)

counts = st.integers(0, 2**63 - 1)
text = st.text(max_size=20)
states = st.builds(
    PeerState,
    state=st.integers(1, 4),
    pair=text,
    role=st.sampled_from(["primary", "backup"]),
    node=text,
    seq=counts,
    epoch=counts,
    heartbeat_ms=st.integers(0, 2**32 - 1),
    timeout_ms=st.integers(0, 2**32 - 1),
    asks=counts,
    answers=counts,
    released=st.booleans(),
    leaving=st.booleans(),
    hears=text,
)


@pytest.mark.requirement("BST-S-01")
@pytest.mark.parametrize(("octet", "state"), [(b"\x31", 1), (b"\x32", 2), (b"\x33", 3), (b"\x34", 4)])
def test_the_published_message_of_one_frame_is_read_and_said(octet: bytes, state: int) -> None:
    assert peer.decode([octet]) == PeerState(state)
    assert peer.encode(PeerState(state)) == [octet]


def test_a_message_has_the_fields_of_its_json_object_in_their_order() -> None:
    assert PeerState.__struct_fields__ == ("state", *peer._Detail.__struct_fields__)


def test_our_message_is_as_documented() -> None:
    assert peer.encode(STATE) == [b"\x42\x53\x54\x50\x30\x31", b"\x34", DETAIL]
    assert peer.decode([b"BSTP01", b"4", DETAIL]) == STATE


def test_what_a_node_subscribes_to_begins_its_message_and_no_published_one() -> None:
    """So a publisher can send either dialect to a subscriber and never both."""
    assert HEADER.startswith(TOPIC)
    assert not any(code.startswith(TOPIC) or TOPIC.startswith(code) for code in CODES.values())


@pytest.mark.requirement("BST-R-02")
@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"0"],
        [b"5"],
        [b"9"],
        [b"31"],
        [b" 3"],
        [b"3 "],
        [b"3\0"],
        [b"abc"],
        [b"\x03"],
        [b"BSTP01"],
        [b"BSTP01", b"5", DETAIL],
        [b"BSTP01", DETAIL],
        ["³".encode()],
    ],
)
def test_anything_but_the_four_characters_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match="peer-state"):
        peer.decode(frames)


def test_another_version_is_refused_by_its_own_reason() -> None:
    for frames in ([b"BSTP02", b"3", DETAIL], [b"BSTP1"], [b"BSTP"], [b"BSTP01x", b"3"]):
        with pytest.raises(RemoteProtocolError, match="one release on both") as caught:
            peer.decode(frames)
        assert caught.value.reason == "peer-version"


@pytest.mark.requirement("BST-R-02")
@pytest.mark.parametrize("header", [b"", b"3", b"BST", b"BSTP01", b"{}", DETAIL])
def test_what_stands_behind_a_state_code_is_not_taken_for_another_release(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        peer.decode([b"3", header])
    assert caught.value.reason == "peer-header"


def test_what_a_newer_node_adds_is_skipped() -> None:
    newer = DETAIL[:-1] + b',"mood":{"good":[1,2.5,null]}}'
    assert peer.decode([b"BSTP01", b"4", newer, b"more"]) == STATE


@pytest.mark.parametrize(
    "detail",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        DETAIL + b"x",
        DETAIL[:-1],
        DETAIL.replace(b"backup", b"spare"),
        DETAIL.replace(b'"p"', b"1"),
    ],
)
def test_a_detail_that_is_not_one_is_refused(detail: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="peer-detail"):
        peer.decode([b"BSTP01", b"3", detail])


def test_a_missing_detail_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="peer-detail"):
        peer.decode([b"BSTP01", b"3"])


@given(states)
def test_a_state_reaches_the_peer_as_it_was_said(state: PeerState) -> None:
    assert peer.decode(peer.encode(state)) == state
