"""EventMQ's messages, byte by byte, and what is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import RemoteProtocolError
from bstar.wire import emq, emq_jobs
from bstar.wire.emq import Kind, Queue, Wire
from bstar.wire.emq_jobs import Headers, Job

VERSION = b"eMQP/1.0"
JOB = b'["run", {"path": "test", "callable": "do"}]'
QUEUES = (Queue(20, "fast"), Queue(10, "default"))
BOTH = Headers(reply_requested=True, timeout_s=30)

# Each message, its frames behind the version, and those of the specification where they differ.
TABLE: tuple[tuple[emq.Message, list[bytes], list[bytes] | None], ...] = (
    (
        emq.Inform(b"m", Kind.WORKER, QUEUES),
        [b"INFORM", b"m", b'[[20,"fast"],[10,"default"]]', b"worker"],
        [b"INFORM", b"m", b'[20,"fast"],[10,"default"]', b"worker"],
    ),
    (emq.Inform(b"m", Kind.SCHEDULER), [b"INFORM", b"m", b"", b"scheduler"], None),
    (emq.Ack(b"m", b"i"), [b"ACK", b"m", b"i"], None),
    (emq.Ready(b"m"), [b"READY", b"m"], None),
    (
        emq.Request(b"m", "fast", JOB, BOTH),
        [b"REQUEST", b"m", b"fast", b"reply-requested,timeout:30", JOB],
        None,
    ),
    (emq.Reply(b"m", b"r"), [b"REPLY", b"m", b"r"], None),
    (emq.Reply(b"m", b"r", b'{"value": 1}'), [b"REPLY", b"m", b'{"value": 1}', b"r"], None),
    (emq.Heartbeat(b"m", 1795219586.850946), [b"HEARTBEAT", b"m", b"1795219586.850946"], None),
    (
        emq.Schedule(b"m", "fast", JOB, Headers(nohaste=True, run_count=2), 60),
        [b"SCHEDULE", b"m", b"fast", b"nohaste,run_count:2", b"60", JOB, b""],
        None,
    ),
    (
        emq.Schedule(b"m", "fast", JOB, cron="*/5 * * * *"),
        [b"SCHEDULE", b"m", b"fast", b"", b"-1", JOB, b"*/5 * * * *"],
        None,
    ),
    (
        emq.Unschedule(b"m", "fast", JOB),
        [b"UNSCHEDULE", b"m", b"fast", b"", b"-1", JOB, b""],
        [b"UNSCHEDULE", b"m", b"fast", b"", JOB],
    ),
    (
        emq.Publish(b"m", b"news", b'"x"'),
        [b"PUBLISH", b"m", b"news", b'"x"'],
        [b"PUBLISH", b"m", b"news", b"", b'"x"'],
    ),
    (emq.Disconnect(b"m"), [b"DISCONNECT", b"m"], None),
    (emq.Goodbye(b"m"), [b"KBYE", b"m"], [b"KBAI", b"m"]),
    (emq.Status(b"m"), [b"STATUS", b"m"], None),
    (emq.ShowWorkers(b"m"), [b"ROUTER_SHOW_WORKERS", b"m"], None),
    (emq.ShowSchedulers(b"m"), [b"ROUTER_SHOW_SCHEDULERS", b"m"], None),
    (emq.Hello(b"m"), [b"HELLO", b"m"], None),
)


def ids(row: object) -> str | None:
    return type(row).__name__ if isinstance(row, emq.Message) else None


def refused(*frames: bytes, wire: Wire = Wire.PUBLISHED) -> str:
    """The reason why these frames behind the version are no message."""
    with pytest.raises(RemoteProtocolError) as caught:
        emq.decode([b"", VERSION, *frames], wire=wire)
    return caught.value.reason


@pytest.mark.requirement("EMQ-G-01")
@pytest.mark.parametrize(("message", "frames", "specified"), TABLE, ids=ids)
def test_each_message_has_its_frames(
    message: emq.Message, frames: list[bytes], specified: list[bytes] | None
) -> None:
    """EMQ-G-01: an empty frame, the version, the command, the msgid, the arguments."""
    assert emq.encode(message) == [b"", VERSION, *frames]
    assert emq.decode([b"", VERSION, *frames]) == message
    # Behind a routing id.
    assert emq.decode([b"\x00\x01", b"", VERSION, *frames], 1) == message
    if specified is not None:
        assert emq.encode(message, wire=Wire.SPECIFICATION) == [b"", VERSION, *specified]
        assert emq.decode([b"", VERSION, *specified], wire=Wire.SPECIFICATION) == message


def test_the_specifications_schedule_has_neither_interval_nor_cron() -> None:
    frames = [b"", VERSION, b"SCHEDULE", b"m", b"fast", b"", JOB]
    schedule = emq.Schedule(b"m", "fast", JOB)
    assert emq.decode(frames, wire=Wire.SPECIFICATION) == schedule
    assert emq.encode(schedule, wire=Wire.SPECIFICATION) == frames


def test_the_specifications_result_has_the_msgid_of_its_request() -> None:
    frames = [b"", VERSION, b"REPLY", b"m", b'{"value": 1}']
    assert emq.decode(frames, wire=Wire.SPECIFICATION) == emq.Reply(b"m", b"m", b'{"value": 1}')
    assert emq.encode(emq.Reply(b"e", b"m", b'{"value": 1}'), wire=Wire.SPECIFICATION) == frames


@pytest.mark.requirement("EMQ-R-05")
@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_both_words_of_a_farewell_are_read(word: bytes, wire: Wire) -> None:
    """EMQ-R-05: KBYE is sent, KBYE and KBAI are read."""
    assert emq.decode([b"", VERSION, word, b"m"], wire=wire) == emq.Goodbye(b"m")


def test_what_nobody_reads_behind_a_bare_command_is_skipped() -> None:
    assert emq.decode([b"", VERSION, b"READY", b"m", b""]) == emq.Ready(b"m")


def test_an_unschedule_keeps_its_job_only() -> None:
    frames = [b"", VERSION, b"UNSCHEDULE", b"m", b"q", b"", b"None", JOB, b"* * * * *"]
    assert emq.decode(frames) == emq.Unschedule(b"m", "q", JOB)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"READY"], "frames"),
        ([b"READY", b"m", *[b""] * 13], "frames"),
        ([b"READY", b""], "msgid"),
        ([b"READY", b"m" * 256], "msgid"),
        ([b"RUN", b"m"], "command"),
        ([b"ACK", b"m"], "arguments"),
        ([b"REQUEST", b"m", b"q", JOB], "arguments"),
        ([b"REQUEST", b"m", b"q", b"timeout:soon", JOB], "number"),
        ([b"REQUEST", b"m", b"q", b"x" * 5_000, JOB], "headers"),
        ([b"REPLY", b"m", b"1", b"2", b"3"], "arguments"),
        ([b"HEARTBEAT", b"m", b"now"], "number"),
        ([b"HEARTBEAT", b"m", b"inf"], "number"),
        ([b"INFORM", b"m", b"", b"router"], "kind"),
        ([b"INFORM", b"m", b"[[10]]", b"worker"], "queues"),
        ([b"INFORM", b"m", b'[[-1,"q"]]', b"worker"], "queues"),
        ([b"INFORM", b"m", b'[[1,""]]', b"worker"], "queues"),
        ([b"INFORM", b"m", b"[" * 100_000, b"worker"], "queues"),
        ([b"INFORM", b"m", b"[" + b",".join([b'[1,"q"]'] * 1_001) + b"]", b"worker"], "queues"),
        ([b"INFORM", b"m", '[[1,"{}"]]'.format("ü" * 200).encode(), b"worker"], "queues"),
        ([b"SCHEDULE", b"m", b"q", b"", b"soon", JOB, b""], "number"),
        ([b"SCHEDULE", b"m", b"q", b"", b"-2", JOB, b""], "number"),
        ([b"SCHEDULE", b"m", b"q", b"", b"-1", JOB, b""], "schedule"),
        ([b"SCHEDULE", b"m", b"q", b"", b"5", JOB, b"* * * * *"], "schedule"),
        ([b"SCHEDULE", b"m", b"q", b"", b"-1", JOB, b"*" * 257], "arguments"),
    ],
)
def test_what_is_no_message_is_refused_with_its_reason(frames: list[bytes], reason: str) -> None:
    assert refused(*frames) == reason


@pytest.mark.requirement("EMQ-R-04")
@pytest.mark.parametrize("command", [b"SCHEDULE", b"UNSCHEDULE"])
def test_three_arguments_of_a_schedule_are_an_error_and_nothing_worse(command: bytes) -> None:
    """EMQ-R-04: five arguments are sent; three are refused."""
    assert refused(command, b"m", b"q", b"", JOB) == "arguments"


@pytest.mark.requirement("EMQ-R-03")
@pytest.mark.parametrize("command", [b"STATUS", b"ROUTER_SHOW_WORKERS", b"DISCONNECT"])
def test_a_command_without_msgid_is_no_message(command: bytes) -> None:
    """EMQ-R-03: each message has a msgid."""
    assert refused(command) == "frames"


@pytest.mark.requirement("EMQ-R-02")
@pytest.mark.parametrize("at", range(4))
def test_octets_that_are_no_text_are_refused(at: int) -> None:
    """EMQ-R-02: every frame is UTF-8, because the published router decodes each of them."""
    frames = [b"m", b"q", b"", JOB]
    frames[at] = b"\xff\xfe"
    assert refused(b"REQUEST", *frames) == "text"


def test_the_frame_in_front_and_the_version_are_checked() -> None:
    for frames, reason in (
        ([b"x", VERSION, b"READY", b"m"], "delimiter"),
        ([b"", b"eMQP/2.0", b"READY", b"m"], "version"),
        ([b"", b"MDPC01", b"READY", b"m"], "version"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            emq.decode(frames)
        assert caught.value.reason == reason


def test_a_message_beyond_its_bound_is_refused() -> None:
    frames = emq.encode(emq.Publish(b"m", b"news", b"x" * 1_000))
    assert emq.decode(frames).msgid == b"m"
    with pytest.raises(RemoteProtocolError, match="size"):
        emq.decode(frames, message_bytes_max=1_000)


@pytest.mark.requirement("EMQ-G-03")
def test_headers_are_words_with_commas_and_empty_if_there_are_none() -> None:
    """EMQ-G-03: zero or more comma-separated values; unknown ones are kept."""
    assert emq_jobs.parse_headers("") == Headers()
    assert Headers().text() == ""
    text = "reply-requested,retry-count:3,timeout:30,guarantee,nohaste,run_count:2,colour:red,x"
    headers = Headers(True, 3, 30, True, True, 2, ("colour:red", "x"))
    assert emq_jobs.parse_headers(text) == headers
    assert headers.text() == text
    assert emq_jobs.parse_headers(" nohaste ,, guarantee") == Headers(guarantee=True, nohaste=True)


@pytest.mark.parametrize(
    "text", ["timeout:", "timeout:-1", "run_count:-2", "retry-count:9999999999", "timeout:²"]
)
def test_a_header_without_its_number_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        emq_jobs.parse_headers(text)
    assert caught.value.reason == "number"


def test_the_identity_of_a_schedule_is_the_published_one() -> None:
    """The test vector of PROTOCOLS.md 12.7."""
    job = Job(
        "test",
        "do_the_thing",
        [33, "asdf"],
        {"zeta": "Z", "alpha": "\u03b1"},
        [0],
        {"donkey": True, "apple": False},
    )
    assert emq_jobs.schedule_id(job) == "4658982cab9d32bf1ef9113a9d8bdec01775e2bc"
    assert emq_jobs.schedule_id(emq_jobs.decode_job(emq_jobs.encode_job(job))) == emq_jobs.schedule_id(job)


def test_a_jobs_omitted_keys_are_empty_and_its_first_word_is_not_read() -> None:
    assert emq_jobs.decode_job(b'[7, {"path": "m", "callable": "f", "more": 1}]') == Job("m", "f")


@pytest.mark.parametrize(
    "message",
    [
        b"", b"{}", b'["run"]', b'["run", {"path": "m"}]', b'["run", {"path": "", "callable": "f"}]',
        b'["run", {"path": "m", "callable": "f", "args": {}}]', b"\xff", b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        emq_jobs.decode_job(message)
    assert caught.value.reason == "job"


def test_a_result_that_is_not_json_is_the_text_of_the_error() -> None:
    assert emq_jobs.encode_result([1, "a"]) == b'{"value": [1, "a"]}'
    assert emq_jobs.encode_result({1, 2}) == b'{"value": "Object of type set is not JSON serializable"}'
    assert "not JSON compliant" in emq_jobs.decode_result(emq_jobs.encode_result(math.nan))
    circle: list[object] = []
    circle.append(circle)
    assert "Circular" in emq_jobs.decode_result(emq_jobs.encode_result(circle))


@pytest.mark.parametrize("result", [b"", b"1", b"{}", b"[" * 100_000])
def test_what_is_no_result_or_report_is_refused(result: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        emq_jobs.decode_result(result)
    if result != b"{}":
        with pytest.raises(RemoteProtocolError):
            emq_jobs.decode_report(result)


def test_a_publication_is_topic_and_message() -> None:
    assert emq.publication([b"news", b'"x"']) == [b"news", b'"x"']
    for body in ([b"news"], [b"news", b'"x"', b""], [b"news", b"\xff"]):
        with pytest.raises(RemoteProtocolError):
            emq.publication(body)


@pytest.mark.requirement("EMQ-P-01")
def test_the_headers_of_a_publication_stand_last_where_the_published_program_reads_none() -> None:
    """EMQ-P-01: on the specification's wire they stand before the message, or nowhere."""
    message = emq.Publish(b"m", b"news", b'"x"', Headers(reply_requested=True))
    for wire, arguments in (
        (Wire.PUBLISHED, [b"news", b'"x"', b"reply-requested"]),
        (Wire.SPECIFICATION, [b"news", b"reply-requested", b'"x"']),
    ):
        frames = [b"", VERSION, b"PUBLISH", b"m", *arguments]
        assert emq.encode(message, wire=wire) == frames
        assert emq.decode(frames, wire=wire) == message
        bare = emq.decode([b"", VERSION, b"PUBLISH", b"m", b"news", b'"x"'], wire=wire)
        assert bare == emq.Publish(b"m", b"news", b'"x"')


COMMANDS = [frames[0] for _, frames, _ in TABLE]
pieces = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"", VERSION, *COMMANDS, JOB, b"-1", b"worker", b'[[1,"q"]]', b"timeout:1,,:"]),
)


@given(
    st.one_of(
        st.lists(pieces, max_size=12),
        st.builds(
            lambda command, rest: [b"", VERSION, command, b"m", *rest],
            st.sampled_from(COMMANDS),
            st.lists(pieces, max_size=6),
        ),
    ),
    st.integers(0, 2),
    st.sampled_from(Wire),
)
def test_any_octets_are_a_message_or_a_remote_protocol_error(
    frames: list[bytes], at: int, wire: Wire
) -> None:
    try:
        message = emq.decode(frames, at, wire=wire)
    except RemoteProtocolError:
        return
    # What was read can be written, and means the same.
    assert emq.decode(emq.encode(message, wire=wire), wire=wire) == message


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_payload_is_read_or_a_remote_protocol_error(octets: bytes) -> None:
    for read in (emq_jobs.decode_job, emq_jobs.decode_result, emq_jobs.decode_report):
        try:
            read(octets)
        except RemoteProtocolError:
            continue


words = st.sampled_from(["x", "colour:red", "trace:1"])
headers = st.builds(
    Headers,
    st.booleans(),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**31 - 1),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 2**31 - 1),
    st.lists(words, max_size=3).map(tuple),
)


@given(headers)
def test_headers_arrive_as_they_were_sent(sent: Headers) -> None:
    assert emq_jobs.parse_headers(sent.text()) == sent
