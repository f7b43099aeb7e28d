"""The messages between a node and the arbiter: one question, one answer.

Frames: ``[BSTA01] [JSON object]`` in both directions. A question has a verb and a number that rises with
every question of the run. The answer repeats run and number, so the node knows when it asked. Unknown keys of
the object are skipped, so that a newer release may say more.

Every question says everything, so any of them may be lost; nothing is repeated.

A ``look`` may carry ``store``: what the durable store of the pair asks of its in-sync set. An arbiter that
knows nothing of stores answers the look without ``store``, so the node sees that it keeps no set.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError

_T = TypeVar("_T")

HEADER = b"BSTA01"
# Every version's header begins so.
_FAMILY = b"BSTA"
_DETAIL_BYTES_MAX = 1_024
# A longer message is not ours: libzmq hangs up.
MESSAGE_BYTES_MAX = 65_536

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# An hour: no failover timeout is longer, and no stranger may hold a ballot for longer.
_Ttl = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]

_StoreId = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2}){1,16}$")]

Verb = Literal["claim", "release", "look"]
Role = Literal["primary", "backup"]
_Roles = Annotated[list[Role], msgspec.Meta(max_length=2)]


class SetClaim(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The leader of ``store`` (hexadecimal) in ``epoch`` says whose copies have all that is committed.

    ``in_sync`` empty: it only asks. ``is_forced``: an operator's word, whatever the set is. ``is_held``: the
    arbiter has granted this set before, in this epoch.
    """

    store: _StoreId
    epoch: _Count = 0
    in_sync: _Roles = []
    is_forced: bool = False
    is_held: bool = False


class SetAnswer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The set as it is now, empty if the arbiter knows none, and whether it is what was claimed.

    ``is_kept``: the arbiter keeps it on a disk.
    """

    is_granted: bool = False
    epoch: _Count = 0
    in_sync: _Roles = []
    is_kept: bool = False


class Question(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A node's question. ``claim``: grant or extend the ballot for ``ttl_ms``. ``release``: free it.
    ``look``: report the ballot, and change nothing.

    ``node`` names one run of one process of ``role`` in ``pair``; ``number`` counts its questions. No
    question of the pair has a longer ttl than ``ttl_max_ms``; 0: all have the same.
    """

    verb: Verb
    pair: _Name
    role: Role
    node: _Name
    number: _Count
    ttl_ms: _Ttl
    store: SetClaim | None = None
    ttl_max_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 0


class Answer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The arbiter's answer to question ``number`` of ``node``. ``is_granted``: the ballot is that node's for
    the ttl it asked for. ``holder`` is the role that has the ballot, empty if it is free; ``free_in_ms`` is
    the rest of its time. ``ttl_max_ms`` repeats the question's: the arbiter heeds it.
    """

    node: _Name
    number: _Count
    is_granted: bool = False
    holder: Literal["", "primary", "backup"] = ""
    free_in_ms: _Milliseconds = 0
    store: SetAnswer | None = None
    ttl_max_ms: _Milliseconds = 0


_encode = msgspec.json.Encoder().encode
_decode_question = msgspec.json.Decoder(Question).decode
_decode_answer = msgspec.json.Decoder(Answer).decode


def encode_question(question: Question) -> list[bytes]:
    """Frames ``[BSTA01] [JSON]``."""
    return [HEADER, _encode(question)]


def encode_answer(answer: Answer) -> list[bytes]:
    """Frames ``[BSTA01] [JSON]``."""
    return [HEADER, _encode(answer)]


def decode_question(frames: list[bytes]) -> Question:
    """Read a node's question; anything else raises RemoteProtocolError."""
    return _read(frames, _decode_question)


def decode_answer(frames: list[bytes]) -> Answer:
    """Read the arbiter's answer; anything else raises RemoteProtocolError."""
    return _read(frames, _decode_answer)


def _read(frames: list[bytes], decode: Callable[[bytes], _T]) -> _T:
    header = frames[0] if frames else b""
    if header != HEADER:
        if header[: len(_FAMILY)] == _FAMILY:
            raise RemoteProtocolError(
                "arbiter-version",
                f"the other side speaks {header[:16]!r}, this one {HEADER!r}: run one release everywhere",
            )
        raise RemoteProtocolError("arbiter-header", f"no message between node and arbiter: {header[:16]!r}")
    if len(frames) < 2 or len(frames[1]) > _DETAIL_BYTES_MAX:
        raise RemoteProtocolError("arbiter-detail", "the detail frame is missing or too long")
    try:
        return decode(frames[1])
    except UNDECODABLE as error:
        raise RemoteProtocolError("arbiter-detail", str(error)) from error
