"""The message by which the two nodes of a pair tell each other their state, in two dialects.

A **published** Binary Star server subscribes to everything and gets the published message: one frame, one
ASCII digit ``1``..``4`` (PRIMARY, BACKUP, ACTIVE, PASSIVE). Everything else about such a peer is unknown.

A **native** node subscribes to ``TOPIC`` and gets ``[BSTP01] [code] [JSON object]``; the topic is the prefix
of every version's header, so a node hears a node of another version and can report it. It subscribes to the
four codes as well, because the other node may be a published server. A subscriber gets one dialect only, by
its topics (``bstar.pair.state_publisher``). Readers skip unknown keys, so a newer node may add some.

Source: zguide chapter 4, Binary Star; BST-S-01, BST-R-02.
"""

from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError

HEADER = b"BSTP01"
# A native node's topic: the prefix of every version's header.
TOPIC = b"BSTP"
# The published message of each state.
CODES = {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
# A node's topics, for a peer of either dialect.
TOPICS_HEARD = (TOPIC, *CODES.values())
_STATES = {code: state for state, code in CODES.items()}
_DETAIL_BYTES_MAX = 4_096
# An operator's name and reason; readers cut longer ones off.
PAUSE_WHY_CHARS_MAX = 300

# JSON's numbers have no end. Ours fit in 63 bits, and times in 32, so that every number of a peer can be
# packed, added and divided without an overflow.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class PeerState(msgspec.Struct, frozen=True, gc=False):
    """One node's state message.

    ``state`` is the code 1..4. The rest is None when the peer speaks the published one-frame message.
    ``node`` names one run of one process and ``seq`` counts its messages, so that late ones are recognised.
    ``asks``/``answers``: a node that woke from a stall asks with a token; its peer echoes the last token it
    read, which proves that the answer is younger than the question. ``released``: the sender gave the active
    role up on purpose; ``leaving``: and its process is about to end. ``hears`` is the run that the sender has
    for its peer, empty while it hears none.

    ``arbiter`` is where the sender's arbiter is, empty if it has none. With one, ``claims``: it keeps its own
    ballot for itself, to serve or to begin; ``granted``/``granted_to``: its ballot is the reader's, and the
    last claim it read was number ``granted`` of the run ``granted_to``.

    ``cut_off``: how many clients asked the passive sender because they do not reach the reader; the first of
    them ``cut_off_ms`` ago.

    ``pause`` is the number of the last order to pause takeovers, or to resume them, that the sender knows;
    0 for none. Takeovers are paused for ``paused_ms`` more, 0 if they are not. ``pause_why`` says who gave
    that order, and why.

    ``fronts`` names the protocols that the sender serves on sockets of their own, with commas between.

    ``timeout_max_ms`` is 0 if the sender's failover timeout is fixed: ``timeout_ms``. Otherwise the nodes
    adapt it between the two. ``needs_ms`` is the timeout that the sender needs for the reader, and
    ``hears_seq`` the number of the last message of ``hears`` that it has read. A claim is for ``lease_ms``.
    """

    state: int
    pair: str | None = None
    role: str | None = None
    node: str | None = None
    seq: _Count | None = None
    epoch: _Count | None = None
    heartbeat_ms: _Milliseconds | None = None
    timeout_ms: _Milliseconds | None = None
    asks: _Count = 0
    answers: _Count = 0
    released: bool = False
    leaving: bool = False
    arbiter: str = ""
    claims: bool = False
    granted: _Count = 0
    granted_to: str = ""
    cut_off: _Count = 0
    cut_off_ms: _Milliseconds = 0
    hears: str = ""
    pause: _Count = 0
    paused_ms: _Milliseconds = 0
    pause_why: str = ""
    fronts: str = ""
    timeout_max_ms: _Milliseconds = 0
    needs_ms: _Milliseconds = 0
    hears_seq: _Count = 0
    lease_ms: _Milliseconds = 0


_REQUIRED = {
    "pair": str,
    "role": Literal["primary", "backup"],
    "node": str,
    **dict.fromkeys(("seq", "epoch"), _Count),
    **dict.fromkeys(("heartbeat_ms", "timeout_ms"), _Milliseconds),
}
# The JSON object: the fields of a message without ``state``.
_Detail = msgspec.defstruct(
    "_Detail",
    [
        (each.name, _REQUIRED[each.name]) if each.name in _REQUIRED else (each.name, each.type, each.default)
        for each in msgspec.structs.fields(PeerState)[1:]
    ],
    frozen=True,
    omit_defaults=True,
    gc=False,
)
_fields_of = attrgetter(*_Detail.__struct_fields__)
_decode_detail = msgspec.json.Decoder(_Detail).decode
_encode_detail = msgspec.json.Encoder().encode


def encode(message: PeerState) -> list[bytes]:
    """Frames ``[BSTP01] [code] [JSON]``; the code alone if the sender's ``node`` is None."""
    code = CODES[message.state]
    if message.node is None:
        return [code]
    return [HEADER, code, _encode_detail(_Detail(*_fields_of(message)))]


def decode(frames: list[bytes]) -> PeerState:
    """Read a state message; anything but the two shapes above raises RemoteProtocolError."""
    first = frames[0] if frames else b""
    if first == HEADER:
        return _decode_native(frames)
    if first[: len(TOPIC)] == TOPIC:
        raise RemoteProtocolError(
            "peer-version", f"the peer speaks {first[:16]!r}, this node {HEADER!r}: run one release on both"
        )
    state = _STATES.get(first)
    if state is None:
        raise RemoteProtocolError("peer-state", "the first frame is neither a node's header nor 1, 2, 3 or 4")
    if len(frames) == 1:
        return PeerState(state)
    raise RemoteProtocolError("peer-header", f"a state code with more behind it: {frames[1][:16]!r}")


def _decode_native(frames: list[bytes]) -> PeerState:
    state = _STATES.get(frames[1]) if len(frames) > 1 else None
    if state is None:
        raise RemoteProtocolError("peer-state", "the frame behind the header is not 1, 2, 3 or 4")
    if len(frames) < 3 or len(frames[2]) > _DETAIL_BYTES_MAX:
        raise RemoteProtocolError("peer-detail", "the detail frame is missing or too long")
    try:
        detail = _decode_detail(frames[2])
    except UNDECODABLE as error:
        # RecursionError: a few thousand brackets under an unknown key; skipped one inside the other.
        raise RemoteProtocolError("peer-detail", str(error)) from error
    return PeerState(state, *_fields_of(detail))
