"""What nodes and the arbiter say to each other, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import RemoteProtocolError
from bstar.wire import arbiter
from bstar.wire.arbiter import Answer, Question

QUESTION = b'{"verb":"claim","pair":"p","role":"backup","node":"b1","number":7,"ttl_ms":2000}'
ANSWER = b'{"node":"b1","number":7,"is_granted":true,"holder":"backup","free_in_ms":2000}'
READERS = (arbiter.decode_question, arbiter.decode_answer)

names = st.text(min_size=1, max_size=64)
counts = st.integers(0, 2**63 - 1)
roles = st.sampled_from(["primary", "backup"])


def test_a_question_is_as_documented() -> None:
    question = Question("claim", "p", "backup", "b1", 7, 2000)
    assert arbiter.encode_question(question) == [b"BSTA01", QUESTION]
    assert arbiter.decode_question([b"BSTA01", QUESTION]) == question


def test_an_answer_is_as_documented() -> None:
    answer = Answer("b1", 7, True, "backup", 2000)
    assert arbiter.encode_answer(answer) == [b"BSTA01", ANSWER]
    assert arbiter.decode_answer([b"BSTA01", ANSWER]) == answer
    assert arbiter.encode_answer(Answer("b1", 7)) == [b"BSTA01", b'{"node":"b1","number":7}']


@given(
    st.builds(
        Question,
        st.sampled_from(["claim", "release", "look"]),
        names,
        roles,
        names,
        counts,
        st.integers(1, 3_600_000),
    )
)
def test_a_question_arrives_as_it_was_asked(question: Question) -> None:
    assert arbiter.decode_question(arbiter.encode_question(question)) == question


@given(
    st.builds(
        Answer,
        names,
        counts,
        st.booleans(),
        st.sampled_from(["", "primary", "backup"]),
        st.integers(0, 2**32 - 1),
    )
)
def test_an_answer_arrives_as_it_was_given(answer: Answer) -> None:
    assert arbiter.decode_answer(arbiter.encode_answer(answer)) == answer


def test_what_a_newer_release_adds_is_skipped() -> None:
    for reader, detail in zip(READERS, (QUESTION, ANSWER), strict=True):
        newer = detail[:-1] + b',"mood":{"good":[1,2.5,null]}}'
        assert reader([b"BSTA01", newer, b"more"]) == reader([b"BSTA01", detail])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "arbiter-header"),
        ([b""], "arbiter-header"),
        ([b"3", b"BSTP01", QUESTION], "arbiter-header"),
        ([QUESTION], "arbiter-header"),
        ([b"BSTA02", QUESTION], "arbiter-version"),
        ([b"BSTA01"], "arbiter-detail"),
        ([b"BSTA01", b""], "arbiter-detail"),
        ([b"BSTA01", b"[]"], "arbiter-detail"),
        ([b"BSTA01", b"{}"], "arbiter-detail"),
        ([b"BSTA01", b"\xff\xfe"], "arbiter-detail"),
        ([b"BSTA01", b"[" * 1_000], "arbiter-detail"),
        ([b"BSTA01", b"x" * 1_025], "arbiter-detail"),
    ],
)
def test_anything_else_is_refused_with_a_reason(read: object, frames: list[bytes], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read(frames)  # type: ignore[operator]
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"claim"', b'"steal"'),
        (b'"backup"', b'"spare"'),
        (b'"p"', b'""'),
        (b'"b1"', b'"' + b"b" * 65 + b'"'),
        (b":7", b":-1"),
        (b":7", b":9223372036854775808"),
        (b":2000", b":0"),
        (b":2000", b":3600001"),
    ],
)
def test_a_question_beyond_its_bounds_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="arbiter-detail"):
        arbiter.decode_question([b"BSTA01", QUESTION.replace(old, new)])
